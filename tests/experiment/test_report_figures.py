"""What the figures of a report owe their readers."""

import itertools
import warnings

import pytest
from hypothesis import given, strategies as st

from fedlada.experiment.report import pairs
from fedlada.experiment.report.figures import (
    EARLY,
    FAR,
    Panel,
    Series,
    curves,
    svg_of,
    y_limits,
)
from fedlada.experiment.report.report import HTML, MARKDOWN, report
from reports import Page, write


def line(heights, *, name="a", position=0):
    return Series(name, position, tuple(range(1, len(heights) + 1)), *[tuple(heights)] * 3)


heights = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40)


@given(st.lists(heights, min_size=1, max_size=3))
def test_the_y_axis_covers_every_value_after_the_first_tenth(lines):
    low, high, _ = y_limits([line(ys) for ys in lines])
    for ys in lines:
        late = [y for x, y in enumerate(ys, 1) if x >= EARLY * len(ys)]
        assert low < min(late)
        assert max(late) < high


def test_early_values_do_not_stretch_the_y_axis():
    late = [0.90 + n / 1000 for n in range(90)]
    assert y_limits([line([0.1] * 9 + late)]) == y_limits([line([0.9] * 9 + late)])


@pytest.mark.parametrize("factor", [FAR / 2, FAR * 2])
def test_values_that_lie_far_apart_have_a_logarithmic_axis(factor):
    assert y_limits([line([1.0] * 5), line([factor] * 5)])[2] == (factor > FAR)
    assert not y_limits([line([-1.0] * 5), line([factor] * 5)])[2]


@pytest.mark.parametrize("ys", [[50, 90, 100], [95, 95, 95], [0.0], [-40, -20, -10], [1, 99, 1e5]])
def test_any_line_can_be_drawn_and_equal_lines_give_equal_bytes(ys):
    panel = Panel(title="t", across="rounds", series=[line(ys, name="own")], levels=[50])
    svg = curves([panel], "a drawing")
    assert svg == curves([panel], "a drawing")
    assert ">own</text>" in svg
    assert "<title>a drawing</title>" in svg


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A report with names in other scripts, made with every warning an error."""
    directory = tmp_path_factory.mktemp("foreign")
    for seed in (0, 1):
        write(directory / f"a{seed}", "fedavg", seed, [0.2, 0.5, 0.7], label="日本語")
        write(directory / f"b{seed}", "fedlada", seed, [0.3, 0.6, 0.8 + 0.1 * seed], label="עברית")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return report([directory], reference="עברית")


def test_names_in_other_scripts_are_text_in_every_figure_without_a_warning(foreign):
    for name in ("accuracy-rounds", "accuracy-bytes", "accuracy-time", "losses", "drift", "pairs"):
        svg = (foreign / "figures" / f"{name}.svg").read_text()
        assert ">日本語</text>" in svg


def test_captions_beside_each_other_do_not_overlap(tmp_path, monkeypatch):
    """Those of the panels with paired intervals: the final score and two targets."""
    for seed in range(3):
        for faster, name in enumerate(("fedavg", "fedcm", "scaffold")):
            heights = [0.04 * (1 + 0.2 * faster * (1 + seed)) * number for number in range(1, 11)]
            settings = {"rounds": 10, "evaluate.targets": [0.1, 0.2, 0.3]}
            settings["label"] = f"{name} with a long description of what it is"
            write(tmp_path / f"{name}{seed}", name, seed, heights, **settings)
    drawn = []

    def watched(figure, alt):
        figure.canvas.draw()
        boxes = [
            [text.get_window_extent() for text in (axes.title, axes.xaxis.label)]
            for axes in figure.axes
        ]
        drawn.append(boxes)
        return svg_of(figure, alt)

    monkeypatch.setattr(pairs, "svg_of", watched)
    report([tmp_path])
    (boxes,) = drawn
    assert len(boxes) == pairs.SHOWN
    for left, right in itertools.pairwise(boxes):
        assert all(a.x1 < b.x0 for a, b in zip(left, right, strict=True))


def test_the_score_against_bytes_and_time_is_folded_below_that_against_rounds(foreign):
    page = Page((foreign / HTML).read_text())
    text = (foreign / MARKDOWN).read_text()
    assert page.tags.count("details") == text.count("<details>") == 3  # and a configuration
    for word in ("MB sent, both ways", "seconds of training"):
        assert f"<summary>The same against {word}</summary>" in text
    assert text.count("not smoothed") == 1


def test_drift_and_consistency_are_explained_where_they_are_drawn(tmp_path):
    write(tmp_path / "run", "fedavg", 0, [0.2, 0.5], always={"drift": 3.0, "consistency": 6.0})
    where = report([tmp_path])
    svg = (where / "figures/drift.svg").read_text()
    assert svg.index(">Drift: ") < svg.index(">Consistency: ")
    assert "Δᵢ is the displacement of client i" in (where / MARKDOWN).read_text()
