"""A report says what the records say: every number by hand, in HTML and in Markdown alike."""

import base64
import math
import re
import statistics
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from fedlada.cli import main
from fedlada.errors import ExperimentError
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.report.compare import compared
from fedlada.experiment.report.report import HTML, MARKDOWN, report
from fedlada.experiment.report.runs import CROWD
from fedlada.experiment.run import execute
from fedlada.experiment.run.directory import RunDirectory
from fedlada.results.plot import colour, dashes, marker
from reports import BYTES, SECONDS, Page, write

# Test accuracy after each round, by algorithm and seed.
ACCURACY = {
    "fedavg": {0: [0.2, 0.5, 0.7], 1: [0.3, 0.6, 0.65], 2: [0.25, 0.45, 0.5]},
    "fedlada": {0: [0.5, 0.8, 0.75], 1: [0.4, 0.7, 0.9], 2: [0.55, 0.6]},
    "localadam": {0: [0.1, 0.15, 0.3], 1: [0.1, 0.2, 0.2], 2: [0.1, 0.1, 0.25]},
}
T = {1: 12.7062, 2: 4.3027}  # Student's 97.5 % by degrees of freedom, from a textbook


@pytest.fixture
def drawn():
    """Of tests that look at figures."""


@pytest.fixture(autouse=True)
def _undrawn(request, monkeypatch):
    """Figures take most of the time of a report: only those that a test looks at are drawn."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: file.write("<svg></svg>"))


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("sweep")
    for algorithm, seeds in ACCURACY.items():
        for seed, accuracies in seeds.items():
            odd = {"rejected": {"norm": 2}, "limited": {"v_hat": 1}} if seed == 1 else None
            write(directory / f"{algorithm}-seed{seed}", algorithm, seed, accuracies, incidents=odd)
    write(directory / "fedcm-seed0", "fedcm", 0, [])
    return directory


@pytest.fixture(scope="module")
def made(swept) -> Path:
    return report([swept])


@pytest.fixture(scope="module")
def page(made) -> Page:
    return Page((made / HTML).read_text())


def rows(page, caption):
    """The rows of a table by algorithm, cells by column."""
    head, *body = page.tables[caption]
    return {row[0]: dict(zip(head, row, strict=True)) for row in body}


def spread(values, digits):
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(set(values)) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def first(accuracies, target):
    """The first round at or above a target, counted from 1."""
    return next((n for n, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)


def test_accuracies_are_those_of_the_records(page):
    table = rows(page, "Accuracy on the test split, %")
    assert list(table) == ["fedlada", "fedavg", "localadam"]
    for algorithm, seeds in ACCURACY.items():
        row, sent = table[algorithm], [2e-6 * BYTES[algorithm] * len(a) for a in seeds.values()]
        assert row["runs"] == "3"
        assert row["rounds"] == ("2–3" if algorithm == "fedlada" else "3")
        assert row["final"] == spread([100 * a[-1] for a in seeds.values()], 2)
        assert row["best"] == spread([100 * max(a) for a in seeds.values()], 2)
        assert row["MB"] == spread(sent, 1)
        assert row["seconds"] == spread([SECONDS * len(a) for a in seeds.values()], 1)


def test_costs_to_targets_are_those_of_the_records_and_not_reached_is_said(page):
    tables = {"Rounds": 1, "MB": None, "Seconds": SECONDS}
    for caption, scale in tables.items():
        table = rows(page, caption)
        for algorithm, seeds in ACCURACY.items():
            each = scale or 2e-6 * BYTES[algorithm]
            for target in (0.5, 0.7):
                rounds = [first(a, target) for a in seeds.values()]
                there = [each * n for n in rounds if n]
                text = spread(there, 1) if there else "not reached"
                text += f" ({len(there)} of 3)" if 0 < len(there) < 3 else ""
                assert table[algorithm][f"{100 * target:g} %"] == text
    assert rows(page, "Rounds")["localadam"]["50 %"] == "not reached"
    assert rows(page, "Rounds")["fedavg"]["70 %"] == "3.0 (1 of 3)"


def interval(differences):
    mean, count = statistics.mean(differences), len(differences)
    half = T[count - 1] * statistics.stdev(differences) / math.sqrt(count)
    return mean, mean - half, mean + half


def test_pairs_are_students_intervals_of_differences_with_the_same_seed(page):
    points = rows(page, "Accuracy minus that of fedavg, points")
    ratios = rows(page, "Rounds divided by those of fedavg")
    assert points.keys() == {"fedlada", "localadam"}
    for name, seeds in (("localadam", (0, 1, 2)), ("fedlada", (0, 1))):
        # Seed 2 of fedlada has fewer rounds than that of fedavg: no pair.
        pairs = [(ACCURACY[name][s], ACCURACY["fedavg"][s]) for s in seeds]
        note = " (2 of 3)" if len(seeds) < 3 else ""
        for column, number in (("final", lambda a: a[-1]), ("best", max)):
            found = interval([100 * (number(a) - number(b)) for a, b in pairs])
            text = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*found) + note
            assert points[name][column] == text.replace("-", "−")
    pairs = [(first(ACCURACY["fedlada"][s], 0.5), first(ACCURACY["fedavg"][s], 0.5)) for s in T]
    pairs += [(first(ACCURACY["fedlada"][0], 0.5), first(ACCURACY["fedavg"][0], 0.5))]
    found = map(math.exp, interval([math.log(a / b) for a, b in pairs]))
    assert ratios["fedlada"]["to 50 %"] == "×{:.2f} [{:.2f}, {:.2f}]".format(*found)
    assert ratios["fedlada"]["to 70 %"] == f"×{2 / 3:.2f} (1 of 3)"


def test_a_table_says_how_many_of_its_differences_remain_after_holms_correction(tmp_path):
    """Three comparisons with p between 0.028 and 0.047: each is shown, none remains."""
    leads = {"fedcm": (7, 10, 13), "fedlada": (6.5, 10, 13.5), "localadam": (6.1, 10, 13.9)}
    for name, points in ({"fedavg": (0, 0, 0)} | leads).items():
        for seed, lead in enumerate(points):
            curve = [0.1, 0.1, 0.5 + seed / 10 + lead / 100]
            write(tmp_path / f"{name}{seed}", name, seed, curve)
    text = (report([tmp_path], targets=[]) / MARKDOWN).read_text()
    assert "correction for all of their column: final 0 of 3, best 0 of 3." in text


def test_one_seed_has_no_interval_and_the_report_says_so(tmp_path):
    for algorithm in ("fedavg", "fedlada"):
        write(tmp_path / algorithm, algorithm, 0, ACCURACY[algorithm][0])
    text = (report([tmp_path]) / HTML).read_text()
    assert "One seed has no interval" in text
    cell = rows(Page(text), "Accuracy minus that of fedavg, points")["fedlada"]["final"]
    assert cell == "+5.00"
    assert "so there are no bands" in text
    assert "One seed cannot show who is ahead." in text
    assert "is above" not in text


EVEN = {
    "fedavg": {0: [0.5, 0.8], 1: [0.5, 0.9], 2: [0.5, 0.7]},
    "fedlada": {0: [0.5, 0.9], 1: [0.5, 0.8], 2: [0.5, 0.7]},
    "localadam": {0: [0.2, 0.31], 1: [0.2, 0.42], 2: [0.2, 0.2]},
    "fedcm": {0: [0.1, 0.95]},
}


def test_the_summary_ranks_no_tie_and_nothing_that_one_seed_shows(tmp_path):
    for algorithm, seeds in EVEN.items():
        for seed, accuracies in seeds.items():
            write(tmp_path / f"{algorithm}{seed}", algorithm, seed, accuracies, rounds=2)
    text = (report([tmp_path], targets=[0.5]) / MARKDOWN).read_text()
    first, second, *_ = re.findall(r"^- (.*)$", text, re.MULTILINE)
    pairs = [(EVEN["fedavg"][s][-1], EVEN["fedlada"][s][-1]) for s in (0, 1, 2)]
    tie = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*interval([100 * (a - b) for a, b in pairs]))
    tie = tie.replace("-", "−")
    assert "+0.00 [" in tie
    said = re.match(
        r"Final accuracy: (\w+), .* is above localadam \(paired difference \+\d.*"
        r"; is not told apart from (\w+) \(paired difference (.*?)\)",
        first,
    )
    assert {said[1], said[2]} == {"fedavg", "fedlada"}
    assert said[3] == tie
    assert "One seed cannot show who is ahead: fedcm." in text
    assert "Highest" not in text
    # The same number of rounds with every seed: no interval, no rank.
    assert second.startswith("Rounds to 50 %: ")
    assert " is not told apart from fed" in second
    assert "(paired ratio ×1.00" in second


def test_few_seeds_that_agree_exactly_show_nothing(tmp_path):
    for seed in (0, 1):
        write(tmp_path / f"a{seed}", "fedavg", seed, [0.1, 0.2, 0.6])
        write(tmp_path / f"b{seed}", "fedlada", seed, [0.1, 0.6, 0.6])
    text = (report([tmp_path], targets=[0.5]) / MARKDOWN).read_text()
    assert "is not told apart from fedavg (paired ratio ×0.67)" in text


def test_the_summary_tells_of_one_target_that_most_reached(tmp_path):
    for algorithm, best in (("fedavg", 0.6), ("fedlada", 0.9)):
        for seed in (0, 1):
            write(tmp_path / f"{algorithm}{seed}", algorithm, seed, [0.1, 0.3, best + 0.01 * seed])
    text = (report([tmp_path], targets=[0.2, 0.5, 0.8, 0.95]) / MARKDOWN).read_text()
    points = re.findall(r"^- (.*)$", text, re.MULTILINE)
    assert [p.partition(":")[0] for p in points[1:4]] == [
        "Rounds to 50 %",
        "MB to 50 %",
        "Seconds to 50 %",
    ]
    assert points[4] == "No algorithm reached 95 % in all its runs."


def test_a_run_of_which_no_round_was_applied_is_no_normal_run(tmp_path, capsys):
    idle = {"applied": False, "rejected": {"delta not finite": 4}}
    write(tmp_path / "a", "fedavg", 0, [0.2, 0.5, 0.7])
    write(tmp_path / "b", "fedlada", 0, [0.1, 0.1, 0.1], always=idle)
    warning = "No round was applied in 1 of 2 runs, whose scores are those of the first model: b."
    where = report([tmp_path])
    for name in (HTML, MARKDOWN):
        assert warning in (where / name).read_text()
    row = rows(Page((where / HTML).read_text()), "Accuracy on the test split, %")["fedlada"]
    assert row["rounds"] == "3 (0 applied)"
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path)])
    printed = " ".join(capsys.readouterr().out.split())
    assert warning in printed
    assert "3 (0 applied)" in printed
    assert "fedlada rejected delta not finite 12" in printed


def test_what_the_guard_did_is_counted_by_reason(page):
    head, *body = page.tables["Replies that failed, were rejected or were limited"]
    assert head == ["algorithm", "what", "reason", "replies"]
    for algorithm in ACCURACY:
        assert [algorithm, "rejected", "norm", "2"] in body
        assert [algorithm, "accepted, but limited", "v_hat", "1"] in body


def test_unfinished_runs_are_named(made):
    for name in (HTML, MARKDOWN):
        text = (made / name).read_text()
        assert "2 of 10 runs are not finished" in text
        assert "fedlada-seed2 (2 of 3)" in text
        assert "Not started and not counted: fedcm-seed0" in text


def test_a_report_up_to_a_round_knows_nothing_of_later_ones(tmp_path):
    write(tmp_path / "long" / "fedavg", "fedavg", 0, [0.1, 0.2, 0.9])
    write(tmp_path / "cut" / "fedavg", "fedavg", 0, [0.1, 0.2], rounds=2)
    write(tmp_path / "under way" / "fedavg", "fedavg", 0, [0.1, 0.2])
    tables = {
        name: Page((report([tmp_path / name], rounds=2) / HTML).read_text()).tables
        for name in ("long", "cut", "under way")
    }
    first = [rows for caption, rows in tables["cut"].items() if "ccuracy" in caption]
    assert first
    for found in tables.values():
        assert [rows for caption, rows in found.items() if "ccuracy" in caption] == first
    assert "not finished" not in (tmp_path / "under way" / "report" / MARKDOWN).read_text()


def test_every_plus_minus_is_said_to_be_the_standard_deviation_over_seeds(made):
    for name in (HTML, MARKDOWN):
        for section in re.split(r"<section|^## ", (made / name).read_text(), flags=re.MULTILINE):
            assert ("±" in section) == ("± is the standard deviation over seeds" in section)


def test_the_page_asks_for_nothing_from_elsewhere(made, page):
    assert "http" not in (made / HTML).read_text()
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    for tag, name, value in page.attributes:
        if name in ("href", "src"):
            assert value.startswith(("#", "data:image/svg+xml;base64,")), (tag, value)
    assert "@import" not in (made / HTML).read_text()


def test_every_figure_has_a_text_and_every_header_a_scope(page):
    texts = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(texts) == page.tags.count("img") == page.tags.count("figure") > 0
    assert all(len(text) > 20 for text in texts)
    scopes = [value for tag, name, value in page.attributes if (tag, name) == ("th", "scope")]
    assert len(scopes) == page.tags.count("th")
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    anchors = [v[1:] for t, name, v in page.attributes if (t, name) == ("a", "href")]
    assert set(anchors) <= set(ids)


def test_markdown_says_the_same_and_its_links_resolve(made, page):
    text = (made / MARKDOWN).read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == page.tags.count("figure")
    shown = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    for link, source in zip(links, shown, strict=True):
        svg = (made / link).read_bytes()
        assert base64.b64decode(source.partition(",")[2]) == svg
        assert ElementTree.fromstring(svg).find("{*}title").text
    for caption, table in page.tables.items():
        assert f"**{caption}**" in text
        for row in table:
            line = f"| {' | '.join(row)} |".replace("_", "\\_")
            assert line in text


def test_no_two_lines_of_a_panel_differ_in_colour_alone():
    assert len({(dashes(k), marker(k)) for k in range(CROWD)}) == CROWD
    assert len({(colour(k), dashes(k)) for k in range(2 * CROWD)}) == 2 * CROWD


@pytest.mark.usefixtures("drawn")
def test_the_same_runs_give_the_same_report(swept, made, tmp_path):
    report([swept], out=tmp_path)
    for path in tmp_path.rglob("*.*"):
        again = path.read_text().replace(str(tmp_path), str(made))
        assert again == (made / path.relative_to(tmp_path)).read_text()


def test_commands_machine_and_configuration_are_there(swept, made):
    text = (made / MARKDOWN).read_text()
    assert "fedlada sweep 'my file.toml'  # 8 runs" in text
    assert f"fedlada run {swept}/fedavg-seed0/config.toml --out again/fedavg-seed0" in text
    assert f"fedlada report {swept} --out {made}" in text
    assert "| Z80 | 1 | 1 | cpu | CP/M | fedlada 0 | 8 |" in text
    assert (swept / "fedlada-seed0" / "config.toml").read_text().strip() in text


@pytest.mark.usefixtures("drawn")
def test_of_many_variants_the_best_are_drawn_and_the_table_has_all(tmp_path):
    for k in range(CROWD + 2):
        write(tmp_path / f"{k}", "fedavg", 0, [0.1, 0.2 + k / 100], **{"settings.lr": 1.0 + k})
    where = report([tmp_path], targets=[0.15], reference="fedavg lr=3.0")
    text, svg = (where / HTML).read_text(), (where / "figures/accuracy-rounds.svg").read_text()
    assert "1 algorithm in 12 variants" in text
    assert f"Only the {CROWD} best variants are drawn" in text
    assert len(rows(Page(text), "Accuracy on the test split, %")) == CROWD + 2
    drawn = {
        f"fedavg lr={1.0 + k}" for k in range(CROWD + 2) if f">fedavg lr={1.0 + k}</text>" in svg
    }
    assert drawn == {f"fedavg lr={1.0 + k}" for k in range(2, CROWD + 2)}
    for name in ("losses", "drift"):
        assert f">fedavg lr={CROWD + 2.0}</text>" in (where / f"figures/{name}.svg").read_text()


@pytest.mark.usefixtures("drawn")
def test_long_runs_are_thinned_in_figures_below_300_kb_which_say_so(tmp_path):
    curve = [0.5 - 0.4 / (1 + n) + 0.01 * math.sin(n) for n in range(700)]
    for algorithm in ("fedavg", "fedcm", "fedlada", "localadam", "scaffold"):
        for seed in (0, 1):
            lines = [x + 0.01 * seed for x in curve]
            write(tmp_path / f"{algorithm}{seed}", algorithm, seed, lines, rounds=700)
    where = report([tmp_path], targets=[])
    assert "one in 5 evaluations" in (where / HTML).read_text()
    assert all(path.stat().st_size < 300_000 for path in where.rglob("*.svg"))


def test_what_cannot_be_reported_is_a_sentence(swept, tmp_path, monkeypatch):
    with pytest.raises(ExperimentError, match=r"'fedsgd' is none of the algorithms.*'fedavg'"):
        report([swept], out=tmp_path, reference="fedsgd")
    write(tmp_path / "again" / "copy", "fedavg", 0, [0.1])
    with pytest.raises(ExperimentError, match="are the same run; give only one"):
        report([swept, tmp_path / "again"], out=tmp_path)
    for package in ("jinja2", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(
            SystemExit, match=r'^fedlada: fedlada report needs .*"fedlada\[report\]"'
        ):
            main(["report", str(swept)])


def test_export_writes_the_model_of_the_newest_checkpoint(tmp_path, swept):
    import torch
    from safetensors.torch import load_file

    from fedlada import Checkpoints

    flat = {"data.dataset": "digits", "data.clients": 5, "federation.cohort": 2}
    flat |= {"train.steps": 1, "federation.rounds": 2}
    RunDirectory(tmp_path / "run").prepare(experiment(flat, source="test"))
    list(execute.run(tmp_path / "run"))
    with pytest.raises(SystemExit) as ended:
        main(["export", str(tmp_path / "run"), str(tmp_path / "model.safetensors")])
    assert not ended.value.code
    wanted = Checkpoints(tmp_path / "run" / "checkpoints").latest().model()
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in found)
    with pytest.raises(SystemExit, match="holds several runs"):
        main(["export", str(swept), str(tmp_path / "other.safetensors")])
    with pytest.raises(SystemExit, match="no checkpoint"):
        main(["export", str(swept / "fedcm-seed0"), str(tmp_path / "other.safetensors")])


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("label", ["a$\\frac{1$", "$x$", "50 $ a $ b"])
def test_a_label_with_dollar_signs_is_drawn_as_it_is(tmp_path, label):
    for seed in (0, 1):
        write(tmp_path / f"a{seed}", "fedavg", seed, [0.2, 0.5, 0.7], label=label)
        write(tmp_path / f"b{seed}", "fedlada", seed, [0.3, 0.6, 0.8])
    where = report([tmp_path])
    for name in ("accuracy-rounds", "losses"):
        assert label in (where / "figures" / f"{name}.svg").read_text()
        assert "mathdefault" not in (where / "figures" / f"{name}.svg").read_text()


def test_neither_report_nor_comparison_imports_what_somebodys_run_names(tmp_path, monkeypatch):
    trace, run = tmp_path / "trace", tmp_path / "runs" / "theirs-seed0"
    text = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\nload = make = A = print\n"
    (tmp_path / "theirs.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    write(run, "fedavg", 0, [0.2, 0.5, 0.7])
    file = RunDirectory(run).config_file
    for old, new in (("fedavg", "theirs:A"), ("digits", "theirs:load"), ("mlp", "theirs:make")):
        assert f'"{old}"' in file.read_text()
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
    compared([tmp_path / "runs"])
    where = report([tmp_path / "runs"])
    assert "a report does not import theirs:load" in (where / "report.md").read_text()
    assert not trace.exists()


BY_CONCENTRATION = {
    0.1: {"fedavg": [0.2, 0.3], "fedlada": [0.3, 0.4], "fedcm": [0.1, 0.2]},
    1.0: {"fedavg": [0.6, 0.7], "fedlada": [0.8, 0.9]},
}


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("problems")
    for concentration, algorithms in BY_CONCENTRATION.items():
        for algorithm, accuracies in algorithms.items():
            for seed in (0, 1):
                curve = [accuracy + 0.01 * seed for accuracy in accuracies]
                name = f"{algorithm}-{concentration}-{seed}"
                keys = {"data.concentration": concentration, "settings.lr": 0.1, "modules": "/tmp"}
                write(directory / name, algorithm, seed, curve, rounds=2, **keys)
    return directory


@pytest.mark.usefixtures("drawn")
def test_runs_are_compared_within_their_problem(problems):
    where = report([problems])
    page, text = Page((where / HTML).read_text()), (where / MARKDOWN).read_text()
    head, *body = page.tables["Final accuracy, %"]
    assert head == ["algorithm", "digits, concentration 0.1", "digits, concentration 1.0"]
    for row in body:
        for cell, algorithms in zip(row[1:], BY_CONCENTRATION.values(), strict=True):
            finals = (
                [100 * (algorithms[row[0]][-1] + 0.01 * s) for s in (0, 1)]
                if (row[0] in algorithms)
                else []
            )
            assert cell == (spread(finals, 2) if finals else "–")
    assert {row[0] for row in body} == {"fedavg", "fedlada", "fedcm"}
    easy, hard = text.split("\n## digits, concentration ")[1:]
    assert "fedcm" in easy
    assert "fedcm" not in hard.partition("\n## ")[0]
    assert "concentration=" not in text  # no rival algorithms by concentration
    assert text.count("minus that of fedavg") == 2
    assert "3 algorithms on 2 problems, 2 seeds each" in text
    figures = {path.name for path in (where / "figures").iterdir()}
    assert "problems.svg" in figures
    assert {f"digits-concentration-{c}-drift.svg" for c in ("0-1", "1-0")} <= figures
    svg = (where / "figures" / "problems.svg").read_text()
    assert ">digits, concentration 1.0</text>" in svg


def test_a_reference_that_only_one_problem_has_is_used_there(problems, tmp_path):
    where = report([problems], out=tmp_path, reference="fedcm")
    text = (where / MARKDOWN).read_text()
    assert text.count("minus that of fedcm") == 1
    assert text.count("minus that of fedavg") == 1
    with pytest.raises(ExperimentError, match="'fedsgd' is none of the algorithms"):
        report([problems], out=tmp_path, reference="fedsgd")


def test_settings_have_no_directory_and_no_null(problems):
    text = (report([problems]) / MARKDOWN).read_text()
    rows_of_settings = re.findall(r"^\| fed\w+ \| (.*lr.*) \|", text, re.MULTILINE)
    assert len(rows_of_settings) == 5
    assert not any("modules" in row or "null" in row for row in rows_of_settings)


def test_compare_has_the_tables_of_each_problem(problems, capsys):
    with pytest.raises(SystemExit):
        main(["compare", str(problems)])
    printed = " ".join(capsys.readouterr().out.split())
    for concentration in BY_CONCENTRATION:
        assert f"digits, concentration {concentration}: Accuracy on the test split" in printed


def test_tables_as_latex_have_their_numbers_and_no_bare_special_character(tmp_path, capsys):
    for seed in (0, 1):
        write(tmp_path / f"{seed}", "fedavg", seed, [0.2, 0.5 + 0.1 * seed], label="50%_&#$ best")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), "--target", "0.4", "--latex"])
    assert not ended.value.code
    text = capsys.readouterr().out
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 4
    assert r"50\%\_\&\#\$ best & 2 & 2 & 55.00 $\pm$ 7.07" in text
    content = [line for line in text.splitlines() if not line.startswith("%")]
    assert not [line for line in content if re.search(r"(?<!\\)[%#_]", line)]
    for line in content:
        if line.endswith(r"\\"):
            columns = len(re.findall(r"(?<!\\)&", line))
            assert columns in (1, 6)


def test_many_lines_are_named_in_the_summary_and_their_intervals_stand_below(tmp_path):
    for k in range(8):
        for seed in (0, 1, 2):
            keys = {"settings.lr": 1.0 + k}
            curve = [0.1, 0.2 + k / 100 + seed / 1000 * (k + 1)]
            write(tmp_path / f"{k}-{seed}", "fedavg", seed, curve, rounds=2, **keys)
    text = (report([tmp_path], targets=[]) / MARKDOWN).read_text()
    (point,) = re.findall(r"^- (.*)$", text, re.MULTILINE)
    assert len(point) < 200
    assert "[" not in point
    assert "and 4 more" in point
    assert "How sure has the interval of each." in text
