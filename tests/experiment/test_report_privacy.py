"""A report on private runs says what each and all of them together have spent."""

import json

import pytest

from fedlada.experiment.report.compare import compared
from fedlada.experiment.report.report import HTML, report
from fedlada.privacy.account import Event, composed
from reports import Page, write

DELTA, RATE, ROUNDS = 1e-3, 0.25, 3
CAPTION = "Privacy of each client"


def write_private(directory, algorithm, seed, noise, *, lost=0, seeded=True):
    """A run on record; a kill before each of the ``lost`` rounds has cost one release more."""
    privacy = {"noise": noise, "delta": DELTA, "seeded": seeded}
    keys = {f"federation.privacy.{key}": value for key, value in privacy.items()}
    write(directory, algorithm, seed, [0.3, 0.4, 0.5], **keys, **{"federation.cohort": RATE})
    file, lines = directory / "records.jsonl", []
    for line in file.read_text().splitlines():
        record = json.loads(line)
        event = {Event(RATE, noise): record["round"] + lost}
        spent = {"epsilon": composed(event, DELTA) if noise else None, "delta": DELTA}
        lines.append(json.dumps({**record, **spent, "noise": noise, "seeded": seeded}) + "\n")
    file.write_text("".join(lines))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    where = tmp_path_factory.mktemp("private")
    write_private(where / "a", "fedavg", 0, 1.0)
    write_private(where / "b", "fedavg", 1, 1.0, lost=1)
    write_private(where / "c", "fedcm", 0, 2.0)
    write_private(where / "d", "fedavg", 0, 0.0)
    write(where / "e", "fedavg", 0, [0.5, 0.6, 0.9])
    return where


def test_epsilon_of_each_run_and_of_all_together(made):
    where = report([made])
    page = Page((where / HTML).read_text())
    head, *body = page.tables[CAPTION]
    rows = {row[0]: dict(zip(head, row, strict=True)) for row in body}
    assert len(rows) == 3
    (name,) = (name for name in rows if "noise=1.0" in name)
    assert rows[name]["releases"] == "3–4"
    assert rows[name]["epsilon"] == f"{composed({Event(RATE, 1.0): ROUNDS + 1}, DELTA):.2f}"
    assert rows[name]["final"] == "50.00"
    total = composed({Event(RATE, 1.0): 2 * ROUNDS + 1, Event(RATE, 2.0): ROUNDS}, DELTA)
    last = rows["all together"]
    assert (last["runs"], last["releases"], last["epsilon"]) == ("3", "10", f"{total:.2f}")
    drawn = (where / "figures" / "epsilon.svg").read_text()
    assert f"50.0 at {composed({Event(RATE, 2.0): ROUNDS}, DELTA):.2f}" in drawn


def test_a_note_says_what_is_not_counted(made):
    (table,) = (block for block in compared([made]) if getattr(block, "caption", "") == CAPTION)
    assert "Not counted: 2 of 5 runs, which have no noise" in table.note
    assert "Seeded runs are simulations" in table.note


def test_runs_without_privacy_have_no_such_table(tmp_path):
    write(tmp_path / "a", "fedavg", 0, [0.5, 0.6, 0.7])
    assert all(getattr(block, "caption", "") != CAPTION for block in compared([tmp_path]))
