"""Verdicts on pairs of runs: what varies is never level, and many verdicts are less sure."""

import math

import pytest
from hypothesis import assume, given, settings, strategies as st

from fedlada.experiment.report.pairs import Interval, Measure, final_of, holm, paired, rule
from fedlada.experiment.report.runs import Runs
from fedlada.training.objective import BITS, PERCENT, Scale
from reports import write

MARGIN = 2.0
SCORE = Measure("final", "final", ratio=False, margin=MARGIN)
ROUNDS = Measure("rounds", "rounds_to_0.5", ratio=True)
DIFFERENCES = st.lists(st.floats(-20, 20), min_size=2, max_size=6)


@settings(deadline=None)
@given(DIFFERENCES)
def test_ahead_is_an_interval_without_0_and_level_one_within_the_margin(differences):
    found = paired(differences)
    assume(found.low is not None)
    word = SCORE.word(found, 1)
    assert (word == "ahead") == (found.low > 0)
    assert (word == "behind") == (found.high < 0)
    within = -MARGIN <= found.low <= 0 <= found.high <= MARGIN
    assert (word == "level") == within
    swapped = {"ahead": "behind", "behind": "ahead"}
    other_way = paired([-d for d in differences])
    assert SCORE.word(found, -1) == SCORE.word(other_way, 1) == swapped.get(word, word)


@settings(deadline=None)
@given(DIFFERENCES, st.floats(1, 100))
def test_what_varies_more_does_not_become_level(differences, times):
    """The same mean with more spread: a verdict that improves with variance rewards noise."""
    mean = math.fsum(differences) / len(differences)
    wider = [mean + times * (d - mean) for d in differences]
    if SCORE.word(paired(differences), 1) == "not told apart":
        assert SCORE.word(paired(wider), 1) == "not told apart"


def test_ratios_are_level_within_a_tenth_and_ahead_where_fewer_is_better():
    for low, high, word in (
        (0.95, 1.05, "level"),
        (0.8, 1.05, "not told apart"),
        (0.4, 0.6, "ahead"),
        (1.2, 1.3, "behind"),
    ):
        found = Interval(math.sqrt(low * high), low, high, 3, 3, 0.5)
        assert ROUNDS.word(found, -1) == word


def test_equal_runs_are_level_and_one_seed_says_nothing():
    assert SCORE.word(paired([0.0, 0.0, 0.0]), 1) == "level"
    assert SCORE.word(paired([1.0, 1.0]), 1) == "not told apart"
    assert ROUNDS.word(Interval(1.0, None, None, 3, 3), -1) == "not told apart"  # whole numbers
    assert SCORE.word(paired([0.0]), 1) == "not told apart"
    assert SCORE.word(None, 1) == "not told apart"


@settings(deadline=None)
@given(st.lists(DIFFERENCES, min_size=1, max_size=8))
def test_holm_keeps_as_many_as_bonferroni_at_least_and_all_at_most(each):
    found = [one for one in map(paired, each) if one.chance is not None]
    shown = [one for one in found if SCORE.word(one, 1) in ("ahead", "behind")]
    assert all(one.chance <= 0.05 for one in shown)
    bonferroni = sum(one.chance <= 0.05 / len(found) for one in found)
    assert bonferroni <= holm(found) <= len(shown)
    assert len(found) != 1 or holm(found) == len(shown)


def test_holm_stops_at_the_first_that_fails():
    def chances(*values: float) -> list[Interval]:
        return [Interval(1.0, 0.5, 1.5, 3, 3, value) for value in values]

    assert holm(chances(0.04, 0.01, 0.03, 0.02)) == 1
    assert holm(chances(0.012, 0.016, 0.024, 0.049)) == 4
    assert holm([*chances(0.04), None, Interval(1.0, None, None, 1, 1)]) == 1


def test_a_metric_without_a_known_margin_is_never_level(tmp_path):
    metres = Scale(unit="m", factor=1.0, difference="metres", most=None)
    assert "Level" not in rule(metres)
    assert "within 2 points" in rule(PERCENT)
    assert "within 0.05 bits" in rule(BITS)
    write(tmp_path / "run", "fedavg", 0, [0.1, 0.2, 0.3])
    assert final_of(Runs.read([tmp_path], None)).margin == MARGIN
    unknown = Measure("final", "final", ratio=False)
    assert unknown.word(paired([-0.001, 0.001, 0.002]), 1) == "not told apart"


def test_the_chance_is_that_of_students_t():
    """Of the differences 1, 2 and 3 the t is 2 sqrt(3); its p is from a table."""
    assert paired([1.0, 2.0, 3.0]).chance == pytest.approx(0.0742, abs=1e-4)
