"""What the figures of a report owe their readers."""

import math
import re
import warnings
from itertools import pairwise

import pytest

from fedlada.experiment.report.figures import Panel, curves, new_figure
from fedlada.experiment.report.labels import LINE, apart, label_ends, width_of
from fedlada.experiment.report.report import HTML, MARKDOWN, report
from fedlada.experiment.report.series import Series
from fedlada.experiment.report.style import tidied
from fedlada.experiment.report.window import BELOW, window
from reports import Page, write


def line(heights, *, name="a", position=0, x=None):
    across = tuple(range(1, len(heights) + 1)) if x is None else tuple(x)
    return Series(name, position, across, *[tuple(heights)] * 3)


def rising(best, rounds, *, half):
    """A line that has made half of its way to the best after so many rounds."""
    return line([best * (1 - 0.5 ** (n / half)) for n in range(1, rounds + 1)])


def test_lines_that_soon_saturate_are_drawn_by_their_errors_and_on_a_logarithmic_axis():
    drawn = window([rising(96, 60, half=2), rising(95, 60, half=4)])
    assert drawn.errors
    assert drawn.ratios
    assert not drawn.cut
    assert "log error" in drawn.title
    assert "logarithm of the error" in drawn.caption("accuracy")
    assert "logarithmic" in drawn.caption("accuracy")


def test_lines_that_rise_to_the_end_keep_their_rounds():
    drawn = window([rising(60, 100, half=40)])
    assert not drawn.errors
    assert not drawn.ratios


@pytest.mark.parametrize("ends", [(60, 65), (60, 65, 12), (10, 11)])
@pytest.mark.parametrize("half", [2, 20])
def test_an_axis_that_does_not_begin_below_all_says_so_and_shows_every_end(ends, half):
    lines = [rising(end, 100, half=half) for end in ends]
    drawn = window(lines)
    assert all(drawn.low < s.mean[-1] < drawn.high for s in lines)
    if drawn.low > min(min(s.low) for s in lines):
        assert f"from {drawn.low:g} on" in drawn.title
        assert f"begins at {drawn.low:g} %" in drawn.caption("accuracy")
        assert drawn.cut
    if not drawn.ratios:
        below = [y < drawn.low for s in lines for y in s.mean]
        assert sum(below) <= BELOW * len(below) + len(lines)


def test_a_perfect_or_constant_score_is_drawn_too():
    for heights in ([50, 90, 100], [95, 95, 95], [0.0], [-40, -20, -10]):
        drawn = window([line(heights)])
        assert drawn.low < min(heights) or drawn.cut
        assert drawn.high > max(heights)
        assert not drawn.errors or drawn.high < 100
        panel = Panel(
            title="t",
            across="rounds",
            series=[line(heights)],
            errors=drawn.errors,
            ratios=drawn.ratios,
            between=(drawn.low, drawn.high),
        )
        assert curves([panel], columns=1, height=2, alt="a drawing")


def test_labels_at_the_ends_of_lines_lie_apart():
    together = [(100.0, 50.0, 40.0), (100.0, 50.1, 30.0), (95.0, 52.0, 40.0), (300.0, 50.0, 40.0)]
    *near, far = apart(together, low=0, high=200)
    assert far == 50.0
    assert all(b - a > LINE - 0.01 for a, b in pairwise(sorted(near)))
    assert sorted(near) == near


def test_a_label_of_a_line_that_ends_early_lies_on_no_line():
    """Two lines just above and below the end leave no room at the next places."""
    axes = new_figure(4).add_axes((0.1, 0.1, 0.8, 0.8))
    short = line([50, 50], name="short", x=(0, 50))
    others = [
        line([y, y], name=str(y), position=k, x=(0, 100)) for k, y in enumerate((45, 55, 100))
    ]
    lines = [short, *others, line([0, 0], name="0", x=(0, 100))]
    for own in lines:
        axes.plot(own.x, own.mean)
    label_ends(axes, lines)
    unit = 72 / axes.figure.dpi
    label = next(text for text in axes.texts if text.get_text() == "short")
    end = unit * axes.transData.transform((50, 50))
    left, middle = end + label.get_position()
    for own in others:
        height = unit * axes.transData.transform((50, own.mean[0]))[1]
        assert abs(height - middle) >= LINE / 2
    assert unit * axes.bbox.x0 < left < unit * axes.bbox.x1 - width_of("short")


def test_dense_paths_lead_to_the_same_places():
    points = [(100 + 1.237 * k, 50 + 30 * math.sin(k)) for k in range(200)]
    path = " ".join(f"{'L' if k else 'M'} {x:.6f} {y:.6f} \n" for k, (x, y) in enumerate(points))
    svg = tidied(f'<svg viewBox="0 0 1 1"><path d="{path}z"/></svg>', "a drawing")
    start, steps = re.search(r' d="M([^l]*)l([^z]*)z"', svg).groups()
    numbers = [[float(n) for n in re.findall(r"-?[\d.]+", text)] for text in (start, steps)]
    x, y = numbers[0]
    for (dx, dy), (own_x, own_y) in zip(
        zip(numbers[1][::2], numbers[1][1::2], strict=True), points[1:], strict=True
    ):
        x, y = x + dx, y + dy
        assert abs(x - own_x) < 0.06
        assert abs(y - own_y) < 0.06


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
    assert width_of("日本語") > width_of("abc")


def test_of_the_score_one_figure_is_seen_and_its_axis_can_be_chosen_without_a_script(foreign):
    page = Page((foreign / HTML).read_text())
    buttons = [value for tag, name, value in page.attributes if (tag, name) == ("input", "type")]
    assert buttons == ["radio"] * 3
    assert [tag for tag, name, _ in page.attributes if name == "checked"] == ["input"]
    assert "script" not in page.tags
    text = (foreign / MARKDOWN).read_text()
    assert text.count("![Accuracy on the test split") == 1
    assert "The same against [MB](figures/accuracy-bytes.svg) and [seconds](" in text
    assert text.count("not smoothed") == 1


def test_a_narrow_screen_has_the_names_above_the_lines(foreign):
    text = (foreign / HTML).read_text()
    figures = re.findall(r'<div class="narrow">(.*?)</div>', text, re.DOTALL)
    curved = [figure for figure in figures if 'class="legend"' in figure]
    assert len(curved) == 5  # accuracy three times, losses, drift
    for figure in curved:
        assert "日本語</li>" in figure
        assert ">日本語</text>" not in figure


def test_drift_and_consistency_are_drawn_once_where_they_are_the_same(tmp_path):
    for name, factor in (("same", 1.0), ("other", 2.0)):
        run = tmp_path / name / "run"
        write(run, "fedavg", 0, [0.2, 0.5], always={"drift": 3.0, "consistency": 3.0 * factor})
        text = (report([tmp_path / name]) / MARKDOWN).read_text()
        assert ("Consistency: mean" in text) == (name == "other")
        assert "Consistency is how far" in text
