"""Tables as people have them: words, dates, missing values, outcomes, sites without a name."""

import datetime
import warnings

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch.utils.data import Dataset

from fedlada import FedladaError
from fedlada.data import by_owner, from_table, moments

COLUMNS = {
    "age": [31, 64, None, 50, 28, 71],
    "crp": [1.5, 2.0, 0.5, 80.0, None, 3.0],
    "sex": ["f", "m", "m", "f", None, "f"],
    "died": [0, 1, 0, 1, 0, 0],
    "stay": [3.0, 9.5, 1.0, 2.0, 4.0, 1.0],
    "site": ["north", "south", "north", "south", "north", "south"],
}
TABLES = {
    "dict": lambda columns: columns,
    "pandas": pd.DataFrame,
    "pandas with its own types": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "polars": pl.DataFrame,
    "Hugging Face": datasets.Dataset.from_dict,
}
tables = pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)


def whole(**columns):
    """The table without missing values, and with other columns."""
    filled = {"age": [31, 64, 47, 50, 28, 71], "crp": [1.0] * 6, "sex": list("fmmfmf")}
    return COLUMNS | filled | columns


@tables
def test_words_become_columns_of_0_and_1(make):
    found = from_table(
        make(whole()), inputs=["age", "sex"], categories=["sex"], label="died", owner="site"
    )
    assert found.columns == ("age", "sex=f", "sex=m")
    assert found.inputs.tolist()[:3] == [[31, 1, 0], [64, 0, 1], [47, 0, 1]]
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 0]
    assert by_owner(found)[1].columns == found.columns


def test_tables_of_different_sites_have_the_same_columns_if_the_words_are_given():
    words = {"sex": ["f", "m", "x"]}
    sites = [["f", "f"], ["m", "x"]]
    made = [
        from_table({"sex": cells, "y": [0, 1]}, inputs=["sex"], label="y", categories=words)
        for cells in sites
    ]
    assert {each.columns for each in made} == {("sex=f", "sex=m", "sex=x")}
    assert made[1].inputs.tolist() == [[0, 1, 0], [0, 0, 1]]
    with pytest.raises(FedladaError, match=r"'sex' has 'd' in row 1.*none of its categories f, m"):
        from_table({"sex": ["f", "d"], "y": [0, 1]}, inputs="sex", label="y", categories=words)


@tables
def test_a_missing_value_is_named_with_its_column_row_and_site(make):
    with pytest.raises(FedladaError, match=r"'age' has no value in row 2 \(north\); missing='drop"):
        from_table(make(COLUMNS), inputs=["age", "crp"], label="died", owner="site")


@tables
def test_rows_without_a_value_are_left_out_and_counted(make):
    with pytest.warns(UserWarning, match="2 of 6 rows.*age in 1, crp in 1, sex in 1"):
        found = from_table(
            make(COLUMNS),
            inputs=["age", "crp", "sex"],
            categories=["sex"],
            label="died",
            owner="site",
            missing="drop",
        )
    assert found.inputs.tolist() == [
        [31, 1.5, 1, 0],
        [64, 2, 0, 1],
        [50, 80, 1, 0],
        [71, 3, 1, 0],
    ]
    assert list(found.owners) == ["north", "south", "south", "south"]
    assert found.labels.tolist() == [0, 1, 1, 0]


@tables
def test_missing_inputs_may_be_kept_for_the_mean_over_sites(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = from_table(
            make(COLUMNS),
            inputs=["age", "crp", "sex"],
            categories=["sex"],
            label="died",
            missing="keep",
        )
    assert found.inputs.isnan().nonzero().tolist() == [[2, 0], [4, 1], [4, 2], [4, 3]]
    assert moments(found, missing="mean").count == (5, 5, 5, 5)


@tables
@pytest.mark.parametrize("missing", ["refuse", "keep"])
@pytest.mark.parametrize("column", ["died", "site"])
def test_a_label_or_a_site_may_not_be_missing(make, missing, column):
    table = make(whole(**{column: [*COLUMNS[column][:4], None, COLUMNS[column][5]]}))
    with pytest.raises(FedladaError, match=f"'{column}' has no value in row 4"):
        from_table(table, inputs=["age"], label="died", owner="site", missing=missing)


@tables
def test_words_and_dates_among_numbers_are_named(make):
    with pytest.raises(FedladaError, match=r"'sex' has words, such as 'f' in row 0; .*categories="):
        from_table(make(whole()), inputs=["age", "sex"], label="died")
    born = [datetime.datetime(1990, 1, day) for day in range(1, 7)]
    with pytest.raises(FedladaError, match="'born' has dates, such as 1990-01-01"):
        from_table(make(whole(born=born)), inputs=["age", "born"], label="died")


@tables
def test_several_columns_may_be_labels(make):
    found = from_table(make(whole()), inputs=["age"], label=["stay", "died"])
    assert found.labels.tolist()[:2] == [[3, 0], [9.5, 1]]
    assert found.labels.is_floating_point()


@tables
def test_numbers_keep_all_their_digits(make):
    exact = [0.1 + 0.2, 16777217.0, 1e-17, 2.0**53 - 1, -0.3, 7.0]
    found = from_table(make(whole(number=exact)), inputs=["number", "age"], label="died")
    assert found.inputs[:, 0].tolist() == exact


class Rows(Dataset):
    """A dataset whose examples are tables."""

    def __len__(self):
        return 3

    def __getitem__(self, row):
        return {"image": torch.full((2, 2), float(row)), "label": row}


def test_a_dataset_of_dicts_is_a_table():
    found = from_table(Rows(), inputs="image", label="label")
    assert found.inputs.shape == (3, 2, 2)
    assert found.labels.tolist() == [0, 1, 2]
    with pytest.raises(FedladaError, match=r"no column 'img' in the Rows; it has image, label"):
        from_table(Rows(), inputs="img", label="label")


def test_what_is_asked_for_in_vain_is_a_sentence():
    with pytest.raises(FedladaError, match="categories have 'sexx', which is none of the inputs"):
        from_table(whole(), inputs=["age"], label="died", categories=["sexx"])
    with pytest.raises(FedladaError, match="missing is 'mean'; it must be 'refuse', 'drop' or 'ke"):
        from_table(whole(), inputs=["age"], label="died", missing="mean")
    with pytest.raises(FedladaError, match=r"row 1 has no owner, and neither have 1 other rows"):
        by_owner(np.zeros((3, 1)), [0, 1, 0], owners=["a", float("nan"), None])
