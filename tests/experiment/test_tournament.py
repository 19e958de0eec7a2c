"""A tournament: equal tries, halved on validation data, then other seeds on test data."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console

from fedlada.cli import main
from fedlada.errors import FedladaError
from fedlada.experiment.packed import pack, unpack
from fedlada.experiment.report.runs import Runs
from fedlada.experiment.results.scores import best_first, ranks
from fedlada.experiment.run import progress
from fedlada.experiment.run.directory import RunDirectory, runs_in
from fedlada.experiment.run.execute import run as rounds_of
from fedlada.experiment.run.sweep import Standing
from fedlada.experiment.tournament.file import Contest, Rules, read_tournament
from fedlada.experiment.tournament.page import tournament_page, unfinished
from fedlada.experiment.tournament.play import plan, play, report
from fedlada.experiment.tournament.stages import FINALS, TRIES, course, mean_ranks, stages, verdict
from fedlada.training.objective import BITS, PERCENT
from reports import Page, write

FILE = """
name = "small"
[rules]
seeds = [0, 1]
rungs = [0.3, 0.7]
last = 2
[common]
data = { dataset = "digits", clients = 4 }
model.hidden = 8
train = { steps = 1, batch_size = 5 }
federation = { cohort = 2, rounds = 7 }
evaluate.targets = [0.1]
[problem.even]
data.partition = "iid"
[problem.uneven]
file = "problem.toml"
[contestant.fedavg]
settings.lr = [0.01, 0.1, 0.3]
[contestant.twin]
algorithm = "fedavg"
settings.lr = [0.01, 0.1, 0.3]
[contestant.fedlada]
settings = { lr = [0.01, 0.02], alpha = 0.2 }
on.even.settings.lr = [0.01, 0.02, 0.04]
on.uneven.settings = { lr = 0.01, alpha = [0.1, 0.2, 0.3] }
"""
PROBLEM = """
algorithm = "fedcm"
data.concentration = 0.3
evaluate.split = "test"
evaluate.every = 2
[sweep]
federation.seed = [0, 1]
"""
QUIET = Console(quiet=True)


class InProcess:
    """Runs as ``finish`` does, but in this process; the time is up after ``most`` rounds."""

    most = math.inf
    begun = staticmethod(lambda run: None)

    def __call__(self, runs, *, jobs, watch, until):
        standing, done = Standing(), 0
        for run in runs:
            self.begun(run)
            for _ in rounds_of(run):
                watch(standing)
                done += 1
                if done >= self.most:
                    return standing
            standing.done.append(run)
        return standing


@pytest.fixture(autouse=True, scope="module")
def _no_processes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "finish", InProcess())
        yield


def played_to_the_end(found, base) -> bool:
    return play(found, base, jobs=1, until=math.inf, console=QUIET)


def written(directory: Path, text: str = FILE) -> Path:
    (directory / "problem.toml").write_text(PROBLEM)
    (directory / "file.toml").write_text(text)
    return directory / "file.toml"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The tournament of the file and its directory, after all of it was run at once."""
    file = written(tmp_path_factory.mktemp("tournament"))
    found, base = read_tournament(file), file.parent / "out"
    assert played_to_the_end(found, base)
    return found, base


def records(base: Path) -> dict[str, list[dict]]:
    """The records of all runs without what a clock had to say."""
    found = {}
    parts = sorted(part for name in (TRIES, FINALS) for part in base.glob(f"*/{name}"))
    for run in (run for part in parts for run in runs_in(part)):
        lines = map(json.loads, RunDirectory(run).records_file.read_text().splitlines())
        found[str(run.relative_to(base))] = [
            {k: v for k, v in line.items() if "seconds" not in k} for line in lines
        ]
    return found


def test_everybody_has_the_same_number_of_tries_on_every_problem(tmp_path, played):
    found, _ = played
    assert {len(t) for contest in found.contests for t in contest.tries.values()} == {3}
    for old, new in (("0.01, 0.1, 0.3", "0.01, 0.1"), ("[0.1, 0.2, 0.3]", "0.1")):
        with pytest.raises(FedladaError, match="same number"):
            read_tournament(written(tmp_path, FILE.replace(old, new, 1)))


def test_the_clients_of_a_tournament_are_trained_at_once_if_that_is_faster(played):
    _, base = played
    runs = [run for part in base.glob("*/*") if part.is_dir() for run in runs_in(part)]
    assert {RunDirectory(run).config.engine.at_once for run in runs} == {100}


def test_a_stopped_tournament_resumed_has_the_records_of_one_that_was_not(
    tmp_path, played, monkeypatch
):
    found, base = read_tournament(written(tmp_path), only=["uneven"]), tmp_path / "again"
    monkeypatch.setattr(InProcess, "most", 17)
    stops = 0
    while not played_to_the_end(found, base):
        stops += 1
    assert stops > 3
    whole = {run: own for run, own in records(played[1]).items() if run.startswith("uneven/")}
    assert records(base) == whole


def test_wider_grids_and_new_contestants_keep_the_runs_that_are_done(tmp_path):
    rules = ["rules.seeds=[0]", "contestant.twin.settings.lr=[0.03, 0.1]"]
    narrow = [*rules, "contestant.fedavg.settings.lr=[0.01, 0.1]"]
    narrow += ["contestant.fedlada.on.even.settings.lr=[0.01, 0.02]"]
    file, base = written(tmp_path), tmp_path / "out"
    assert played_to_the_end(read_tournament(file, narrow, only=["even"]), base)
    before = records(base)
    (tmp_path / "file.toml").write_text(f"{FILE}[contestant.fedcm]\nsettings.lr = [0.1, 0.2, 0.4]")
    wide = ["rules.seeds=[0]", "contestant.twin.settings.lr=[0.01, 0.03, 0.1]"]
    found = read_tournament(file, wide, only=["even"])
    assert played_to_the_end(found, base)
    after = records(base)
    assert {run: after[run][: len(lines)] for run, lines in before.items()} == before
    one = course(found.contests[0], found, base)
    assert (one.next, [*one.finals[0].by]) == (None, found.contestants)


def test_the_losers_of_a_rung_get_no_more_rounds_and_the_best_on_validation_stay(played):
    found, base = played
    for contest in found.contests:
        rungs = [at for at, _ in contest.rungs(found.rules)]
        assert rungs == {1: [3, 5], 2: [4, 6]}[contest.every]
        *_, first, second = [s for s in stages(contest, found.rules, base) if s.seed is None]
        for contestant, tries in first.by.items():
            scores = first.scores(found.rules.last)
            stayed = set(second.by[contestant])
            assert len(stayed) == 2
            assert min(scores[run] for run in stayed) >= max(scores[r] for r in {*tries} - stayed)
            assert {RunDirectory(run).round for run in {*tries} - stayed} == {rungs[0]}
            assert {RunDirectory(run).round for run in stayed} == {rungs[1]}


def test_a_run_that_went_from_rung_to_rung_is_the_run_that_was_not_stopped(played, tmp_path):
    found, base = played
    *_, last = [s for s in stages(found.contests[0], found.rules, base) if s.seed is None]
    run = next(iter(last.runs))
    RunDirectory(tmp_path / "x" / TRIES / run.name).prepare(RunDirectory(run).config)
    assert list(rounds_of(tmp_path / "x" / TRIES / run.name))
    (whole,) = records(tmp_path).values()
    assert whole == records(base)[str(run.relative_to(base))]


def test_finals_have_other_seeds_than_tries_and_alone_see_test_data(played):
    found, base = played
    for contest in found.contests:
        tries, finals = (
            [RunDirectory(run).config for run in runs_in(base / contest.name / part)]
            for part in (TRIES, FINALS)
        )
        assert {c.federation.seed for c in tries} == {found.rules.tuning_seed}
        assert {c.federation.seed for c in finals} == {0, 1}
        assert {c.evaluate.split for c in tries} == {"validation"}
        assert {c.evaluate.split for c in finals} == {"test"}
        assert len(finals) == 2 * len(found.contestants)


def test_finals_of_few_are_those_of_the_best_on_validation_and_nobody_takes_their_place(tmp_path):
    file, base = written(tmp_path), tmp_path / "out"
    for finalists, always in ((1, []), (1, ["fedlada"]), (2, ["fedlada"])):
        rules = [f"rules.finalists={finalists}", f"rules.always={always}", "rules.seeds=[0]"]
        found = read_tournament(file, rules, only=["even"])
        assert played_to_the_end(found, base)
        one = course(found.contests[0], found, base)
        told = one.rungs[-1].scores(found.rules.last)
        best = {c: max(told[run] for run in own) for c, own in one.rungs[-1].by.items()}
        first = sorted(best, key=lambda c: -best[c])[:finalists]
        in_finals = {*one.finals[0].by}
        assert in_finals == {*first, *always}
        tuning = 3 * (3 * 3 + 2 * 2)
        assert [n for _, n in rounds_in(plan(found, base, jobs=1))] == [tuning + len(in_finals) * 7]
    places = one.ranks()
    assert math.fsum(places.values()) == 1 + 2 + 3
    assert [places[c] for c in one.leading()] == sorted(places.values())
    pages = tournament_page(found, [one], file=file, out=tmp_path / "page", command="fedlada")
    text = pages[0].read_text()
    assert "2 of 3 contestants run the finals" in text
    assert "beside them, whatever their score, fedlada" in text


def test_every_seed_has_another_partition_unless_the_problem_sets_one(played, tmp_path):
    found, base = played
    for contest in found.contests:
        runs = [run for part in (TRIES, FINALS) for run in runs_in(base / contest.name / part)]
        configs = [RunDirectory(run).config for run in runs]
        assert {c.federation.seed for c in configs} == {0, 1, 100}
        assert all(c.data.seed == c.federation.seed for c in configs)
    fixed = read_tournament(written(tmp_path), ["problem.even.data.seed=3"])
    tried = [next(stages(contest, fixed.rules, tmp_path)).runs for contest in fixed.contests]
    assert [{c.data.seed for c in runs.values()} for runs in tried] == [{3}, {100}]
    courses = [course(contest, found, base) for contest in found.contests]
    file = tmp_path / "file.toml"
    page, *_ = tournament_page(fixed, courses, file=file, out=tmp_path, command="fedlada")
    assert "All seeds share one partition, which the file sets: even." in page.read_text()


@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_finals_wait_while_a_chosen_number_is_at_an_edge_and_the_rules_refuse_that(tmp_path):
    file = written(tmp_path)
    rules = ["rules.edges=refuse", "rules.seeds=[0]", "common.train.steps=5"]
    low, inside = [1e-9, 1e-8, 1e-7], [1e-9, 0.1, 1e3]  # 1e3 ruins the model
    for name, fedavg in (("low", low), ("inside", inside)):
        grids = [f"contestant.{c}.settings.lr={fedavg}" for c in ("fedavg", "twin")]
        grids += [f"contestant.fedlada.on.even.settings.lr={[1e-9, 0.02, 1e3]}"]
        found, base = read_tournament(file, rules + grids, only=["even"]), tmp_path / name
        assert played_to_the_end(found, base)
        one = course(found.contests[0], found, base)
        printed = [*report(found, base, file=file, command="fedlada")]
        refused = [told for told in printed if "there are no finals" in told]
        assert one.refused == bool(refused) == (not (base / "even" / FINALS).exists())
        assert one.refused == (name == "low")
        assert all(f"at the edge of those tried: {one.edges()};" in told for told in refused)


def test_at_equal_compute_slow_rounds_count_for_more(played):
    """A contestant whose rounds take k times as long has the rank of its score at 1/k of them."""
    found, base = played
    one = course(found.contests[0], found, base)
    assert min(one.costs.values()) == 1
    assert math.fsum(one.ranks(equal_compute=True).values()) == 1 + 2 + 3
    same = replace(one)
    same.__dict__["costs"] = dict.fromkeys(found.contestants, 1.0)
    assert same.ranks(equal_compute=True) == one.ranks()
    same.__dict__["costs"] = {"fedavg": 1.0, "twin": 2.0, "fedlada": 100.0}
    assert same.affordable(7) == {"fedavg": 7, "twin": 3, "fedlada": 0}
    for stage in one.finals:
        early = stage.scores(1, {"fedavg": 3, "twin": 3, "fedlada": 0})
        for run, score in early.items():
            scores = [r["metrics"]["test_accuracy"] for r in RunDirectory(run).records()]
            assert score == (None if "fedlada" in run.name else scores[2])


OUTSIDE = """
from fedlada import Algorithm
from fedlada.algorithms.local import SGD
MINE = Algorithm(SGD(lr=0.2))
"""


def test_one_command_adds_a_contestant_to_the_runs_of_the_records(
    played, tmp_path, monkeypatch, capsys
):
    """An outside one, which alone is run; all others have the scores that they had."""
    found, base = played
    (tmp_path / "packed").mkdir()
    pack(base / "even", tmp_path / "packed/even.jsonl")
    file = written(tmp_path, FILE.replace("[rules]", 'records = "packed"\n[rules]'))
    (tmp_path / "outside_contestant.py").write_text(OUTSIDE)
    ran = []
    monkeypatch.setattr(InProcess, "begun", ran.append)
    words = ['contestant.mine.algorithm="outside_contestant:MINE"']
    words += ["contestant.mine.settings.lr=[0.01, 0.1, 0.3]", "--only", "even"]
    with pytest.raises(SystemExit) as ended:
        main(["tournament", str(file), *words, "--out", str(tmp_path / "out")])
    assert not ended.value.code
    assert {run.name.partition("-")[0] for run in ran} == {"mine"}
    assert "mean ranks: " in capsys.readouterr().out
    after = {run: own for run, own in records(tmp_path / "out").items() if "mine" not in run}
    assert after == {run: own for run, own in records(base).items() if run.startswith("even/")}
    page = Page((tmp_path / "out/report/report.html").read_text())
    scores = {row[0]: row[1] for row in page.tables["Ranks over problems"][1:]}
    assert scores.keys() == {*found.contestants, "mine"}


def test_records_that_are_not_there_are_a_sentence(tmp_path):
    with pytest.raises(FedladaError, match="there is no directory"):
        read_tournament(written(tmp_path), ["records=elsewhere"])


def rounds_in(sentences) -> list[tuple[int, int]]:
    """The rounds that are done and all rounds, of each problem of a plan."""
    found = [re.search(r"([\d,]+) of ([\d,]+) rounds", one) for one in sentences]
    return [tuple(int(number.replace(",", "")) for number in one.groups()) for one in found]


def test_the_plan_counts_the_rounds_that_are_run(played, tmp_path):
    found, base = played
    before, after = (list(plan(found, b, jobs=1)) for b in (tmp_path, base))
    assert all("hours left: unknown" in one for one in before)
    assert all("hours left: 0.0" in one for one in after)
    for contest, (none, total), (done, same) in zip(
        found.contests, rounds_in(before), rounds_in(after), strict=True
    ):
        (first, tries), (second, stayed) = contest.rungs(found.rules)
        tuning = tries * first + stayed * (second - first)
        assert none == 0
        assert done == same == total == 3 * (tuning + 2 * contest.rounds)


def test_no_hours_plan_and_run_nothing(tmp_path, capsys):
    file = written(tmp_path)
    for word in (["--hours", "0"], ["--plan"]):
        with pytest.raises(SystemExit) as ended:
            main(["tournament", str(file), "--out", str(tmp_path / "out"), *word])
        assert not ended.value.code
        printed = " ".join(capsys.readouterr().out.split())
        assert "3 contestants with 3 tries to round 3, 2 tries to round 5" in printed
        assert "then 3 with 2 seeds" in printed
    assert not (tmp_path / "out").exists()


def test_when_time_is_up_the_report_is_about_whole_stages(tmp_path, capsys, monkeypatch):
    file = written(tmp_path)
    words = ["tournament", str(file), "--out", str(tmp_path / "out"), "--hours", "1"]

    monkeypatch.setattr(InProcess, "most", 3 * 9 + 1)  # a rung of "even" and a round more
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    printed = " ".join(capsys.readouterr().out.split())
    assert f"the 1 hours are over; to resume: fedlada tournament {file}" in printed
    assert "even: 1 stages are done, and rung 2 of 2" in printed
    assert "uneven: 0 stages are done, and rung 1 of 2" in printed
    page = Page((tmp_path / "out/report/report.html").read_text())
    assert [caption.partition(":")[0] for caption in page.tables] == ["even"]


def test_the_page_names_the_winner_and_calls_twins_level(played, tmp_path):
    found, base = played
    courses = [course(contest, found, base) for contest in found.contests]
    assert not unfinished(courses)
    file = written(tmp_path)
    tournament_page(found, courses, file=file, out=tmp_path, command="fedlada tournament ...")
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.tags.count("figure") == len(list(tmp_path.rglob("*.svg"))) == 3 * len(courses)
    for one in courses:
        runs = one.runs(found.contestants, found.contestants)
        result = verdict(runs)
        assert result.sentence in text.replace("\u00a0", " ")
        own, twin = ({*runs.of(name)["final"]} for name in ("fedavg", "twin"))
        assert own == twin
        if result.winner in ("fedavg", "twin"):
            (other,) = {"fedavg", "twin"} - {result.winner}
            assert other in result.level
            assert "level with" in result.sentence
        rows = page.tables[f"{one.contest.name}: validation accuracy of every try, %"]
        assert len(rows) == 1 + 3 * 3
        assert sum(row[-2] == "out" for row in rows) == 3
    table = mean_ranks(courses)
    assert table["fedavg"] == table["twin"]
    head, *rows = page.tables["Ranks over problems"]
    assert head == ["contestant", "mean rank", "even", "uneven", "won or level"]
    assert math.fsum(float(row[1]) for row in rows) == pytest.approx(6, abs=0.05)


def test_a_packed_tournament_unpacked_has_the_same_stages_and_verdicts(played, tmp_path):
    found, base = played
    for contest in found.contests:
        file = tmp_path / f"{contest.name}.jsonl"
        pack(base / contest.name, file)
        unpack(file, tmp_path / contest.name)
        before, after = (course(contest, found, b) for b in (base, tmp_path))
        assert (len(after.done), after.next) == (len(before.done), None)
        one, two = (verdict(c.runs(found.contestants, ())) for c in (before, after))
        assert one.sentence == two.sentence
        assert before.leading() == after.leading()


def test_the_score_of_a_final_is_of_a_window_in_rounds_however_often_it_is_evaluated(played):
    found, base = played
    windowed = replace(found, rules=found.rules.model_copy(update={"window": 4}))
    for contest, evaluations in zip(found.contests, (4, 3), strict=True):  # the last one always
        one, plain = (course(contest, rules, base) for rules in (windowed, found))
        assert one.chosen() == plain.chosen()  # it does not choose
        ends = one.runs(found.contestants, ()).ends
        for directory, final in ends.select("directory", "final").rows():
            records = [r for r in RunDirectory(Path(directory)).records() if r["round"] > 3]
            seen = [m["test_accuracy"] for r in records if (m := r["metrics"])]
            assert len(seen) == evaluations
            assert final == pytest.approx(math.fsum(seen) / evaluations)


def test_a_clear_lead_over_the_same_seeds_is_won_and_one_that_varies_is_not_told_apart(tmp_path):
    scores = {"fedavg": (0.5, 0.6, 0.7), "fedcm": (0.45, 0.54, 0.65), "fedlada": (0.2, 0.9, 0.5)}
    for name, own in scores.items():
        for seed, score in enumerate(own):
            write(tmp_path / f"{name}-{seed}", name, seed, [0.1, 0.1, score])
    every = verdict(Runs.read([tmp_path], None))
    assert (every.winner, [*every.level], [*every.unclear]) == ("fedavg", [], ["fedlada"])
    assert "; not told apart from fedlada (+6.67 [" in every.sentence
    assert every.sentence.startswith(
        "no single winner: fedavg, 60.00 ± 10.00 % accuracy, is ahead of fedcm (+5.33 ["
    )
    assert every.sentence.endswith(" Holm's correction leaves 1 of its 1 leads.")
    two = verdict(
        Runs.read([tmp_path / f"{n}-{s}" for n in scores if n < "fedl" for s in range(3)], None)
    )
    assert "won: ahead of fedcm (+5.33 [" in two.sentence
    one = verdict(Runs.read([tmp_path / f"{n}-0" for n in scores], None))
    assert "one seed cannot tell" in one.sentence


@settings(max_examples=40)
@given(
    st.dictionaries(st.integers(), st.none() | st.floats(0, 1), min_size=1, max_size=6),
    st.sampled_from([PERCENT, BITS]),
)
def test_ranks_are_shared_by_equals_and_agree_with_the_order(scores, scale):
    found, order = ranks(scores, scale), best_first(scores, scale)
    assert math.fsum(found.values()) == len(scores) * (len(scores) + 1) / 2
    assert [found[name] for name in order] == sorted(found.values())
    known = [scores[name] for name in order if scores[name] is not None]
    assert known == sorted(known, reverse=scale.higher)
    assert all(scores[name] is None for name in order[len(known) :])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds = [0, 1]", "seeds = [0, 100]", "tuning_seed"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "each seed once"),
        ("seeds = [0, 1]", "seed = [0, 1]", "there is no key 'rules.seed'"),
        ("[0.3, 0.7]", "[0.7, 0.3]", "rising shares"),
        ("[0.3, 0.7]", "[0.3, 1.7]", "rising shares"),
        ("last = 2", "last = 0", "rules.last is 0; it must be greater than 0"),
        ("last = 2", "last = 'two'", "rules.last is 'two'; it must be a valid integer"),
        ("seeds = [0, 1]", "seeds = 5", "rules.seeds is 5; it must be a valid tuple"),
        ("last = 2", "last = 2\nalways = ['fedav']", "'fedav'"),
        ("last = 2", "finalists = -1", "rules.finalists is -1; it must be greater"),
        ("on.even", "on.evn", "'evn'"),
        ("last = 2", "edges = 'move'", "rules.edges is 'move'"),
        ("alpha = 0.2 }", "alpha = 0.2 }\ndata.seed = 1", "data.seed, for fedlada on even"),
        ('data.partition = "iid"', 'evaluate.split = "test"', "evaluate.split, for fedavg on even"),
        ("alpha = 0.2", "alpa = 0.2", "alpa"),
        ("[common]", "[commun]", "there is no key 'commun'"),
        ("[problem.uneven]", "[problem.uneven.data]", "file"),
    ],
)
def test_a_mistake_in_the_file_is_a_sentence(tmp_path, old, new, sentence):
    assert old in FILE
    with pytest.raises(FedladaError, match=sentence):
        read_tournament(written(tmp_path, FILE.replace(old, new, 1)))


def test_only_some_problems_and_another_number_of_seeds(tmp_path):
    file = written(tmp_path)
    found = read_tournament(file, ["rules.seeds=[7]"], only=["un*"])
    assert ([c.name for c in found.contests], found.rules.seeds) == (["uneven"], (7,))
    with pytest.raises(FedladaError, match="there are even, uneven"):
        read_tournament(file, only=["odd"])


@given(
    st.integers(1, 400), st.integers(1, 20), st.lists(st.floats(0.01, 1), min_size=1, max_size=4)
)
def test_rungs_rise_to_evaluations_and_end_within_the_rounds(rounds, every, shares):
    contest = Contest("one", rounds, every, {"fedavg": dict.fromkeys(range(5))})
    rungs, tries = zip(*contest.rungs(Rules(rungs=tuple(sorted(set(shares))))), strict=True)
    assert [*tries] == [5, 3, 2, 1][: len(rungs)]
    assert [*rungs] == sorted(set(rungs))
    assert all(at % every == 0 or at == rounds for at in rungs)
    assert 0 < rungs[0] <= rungs[-1] <= rounds


def test_a_chosen_number_at_the_edge_of_those_tried_is_reported(played, tmp_path):
    found, base = played
    printed = list(report(found, base, file=written(tmp_path), command="fedlada"))
    page = Page((base / "report/report.html").read_text())
    for one in (course(contest, found, base) for contest in found.contests):
        (told,) = [text for text in printed if text.startswith(f"{one.contest.name}: chosen")]
        for contestant, (run, _) in one.rungs[-1].best(found.rules.last).items():
            tries = one.contest.tries[contestant]
            key = "alpha" if (contestant, one.contest.name) == ("fedlada", "uneven") else "lr"
            values = [config.settings[key] for config in tries.values()]
            chosen = tries[run.name].settings[key]
            edge = {min(values): " (lowest)", max(values): " (highest)"}.get(chosen)
            named = f"{contestant} {key} {chosen}{edge}"
            assert (named in told) == (edge is not None)
            rows = page.tables[f"{one.contest.name}: validation accuracy of every try, %"]
            (mark,) = [row[-1] for row in rows if row[0] == contestant and row[-1]]
            assert mark == (f"chosen: {key} {chosen}{edge}" if edge else "chosen")
        assert told.count("(") >= 1
