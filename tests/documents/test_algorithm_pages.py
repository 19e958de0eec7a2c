"""Every named algorithm has a page, made from the registry and the committed records."""

import re

import pytest
import torch
from algorithm_pages import VECTORS, algorithm_pages
from tuning_records import tunings

from fedlada import ALGORITHMS


@pytest.fixture(scope="session")
def pages():
    return algorithm_pages()


def test_each_name_has_a_page_that_the_index_links(pages):
    assert set(pages) == {f"algorithms/{name}.md" for name in (*ALGORITHMS, "index", "sources")}
    assert all(f"]({name}.md)" in pages["algorithms/index.md"] for name in ALGORITHMS)


@pytest.mark.documents(seconds=20)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_example_of_a_page_runs(pages, name):
    (program,) = re.findall(r"^```python\n(.*?)^```", pages[f"algorithms/{name}.md"], re.M | re.S)
    assert len(program.splitlines()) == 3
    inputs = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    clients = [(x, x.argmax(1)) for x in inputs]
    exec(
        program.replace("rounds=20", "rounds=1"),
        {"model": torch.nn.Linear(4, 4), "clients": clients},
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_page_has_every_setting_with_its_meaning_and_every_vector(pages, name):
    algorithm, page = ALGORITHMS[name], pages[f"algorithms/{name}.md"]
    for setting, value in algorithm.settings().items():
        (meaning,) = re.findall(
            rf"^\| `{setting}` \| `{re.escape(str(value))}` \| (.*) \|$", page, re.M
        )
        assert meaning, f"the field {setting} has no docstring"
    for names in (algorithm.down, algorithm.up, algorithm.client_state, algorithm.server_state):
        assert all(f"| `{vector}` | {VECTORS[vector]} |" in page for vector in names)


def test_the_page_of_sources_has_a_row_for_each_name(pages):
    rows = [line for line in pages["algorithms/sources.md"].splitlines() if line.startswith("| [`")]
    assert [row.split("`")[1] for row in rows] == [*ALGORITHMS]
    for row in rows:
        _, _, source, *_ = (cell.strip() for cell in row.split("|"))
        assert source == "this library" or re.search(r"et al\.|and .*, 20\d\d", source)


def test_a_page_has_equations_and_a_reference(pages):
    for name in ALGORITHMS:
        page = pages[f"algorithms/{name}.md"]
        assert "<math" in page
        assert re.search(r"et al\.|\b20[12]\d\b", page)


def test_the_best_lr_was_tried_and_has_the_best_score():
    found = list(tunings())
    assert {one.algorithm for one in found} >= {"fedavg", "fedcm", "fedlada", "sharedmuon"}
    for one in found:
        assert one.best in one.tried
        rivals = one.scores.values()
        assert one.scores[one.best] == (min(rivals) if one.bits else max(rivals))
        assert bool(one.edge) == (one.best in (one.tried[0], one.tried[-1]))
