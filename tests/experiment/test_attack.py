"""Attack and defence as keys of an experiment: such runs resume and compare as all others do."""

import dataclasses
import io
import json
import tomllib
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from federations import KINDS
from fedlada import ALGORITHMS, simulate
from fedlada.cli import main
from fedlada.errors import ExperimentError
from fedlada.experiment.config.cells import cells
from fedlada.experiment.config.reading import experiment, parse, read
from fedlada.experiment.report.compare import compared, on_terminal
from fedlada.experiment.results.damage import damages
from fedlada.experiment.run import execute
from fedlada.experiment.run.attack import attacked_engine
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.problem import build
from fedlada.redteam.attacks import ATTACKS
from fedlada.redteam.defences import ABSENT, ATTACK_NAMES, DEFENCES, HONEST
from fedlada.training.objective import PERCENT
from places import ROOT

FAMILIES = ("fedavg", "scaffold", "feddyn", "fedcm", "fedadam", "localadam", "fedlada", "fedlion")
LIMITED = "ignore:the guard stepped in"

FILE = """
name = "small"
[data]
dataset = "digits"
clients = 6
[train]
steps = 2
batch_size = 5
[federation]
attackers = 0.2
cohort = 6
rounds = 2
"""
NORMALISED = """
from math import prod
from torch import nn
def make(data):
    wide = prod(data.shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(wide, 8), nn.BatchNorm1d(8), nn.ReLU(),
                         nn.Linear(8, data.outputs))
"""
SWEEP = """
[sweep]
federation.attack = ["none", "absent", "scaling"]
federation.defence = ["default", "strict"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    where = tmp_path_factory.mktemp("attacks")
    for name in FAMILIES:
        (where / f"{name}.toml").write_text(f'algorithm = "{name}"\n' + FILE)
    (where / "normalised.py").write_text(NORMALISED)
    (where / "buffers.toml").write_text(
        FILE + 'buffers = "average"\nweighting = "examples"\n[model]\nname = "normalised:make"\n'
    )
    return where


def run(file, out, *words):
    RunDirectory(out).prepare(read(file, words))
    return list(execute.run(out))


def numbers(records):
    """The records without what a clock had to say."""
    return [
        {k: v for k, v in dataclasses.asdict(record).items() if "seconds" not in k}
        for record in records
    ]


@pytest.mark.filterwarnings(LIMITED)
@pytest.mark.parametrize("name", [*FAMILIES, "buffers"])
def test_every_attack_runs_wherever_it_applies(place, tmp_path, name):
    problem, unfit = None, set()
    for attack in ATTACK_NAMES[1:]:
        config = read(place / f"{name}.toml", [f"federation.attack={attack}"])
        problem = problem or build(config)
        try:
            engine = attacked_engine(config, problem, tmp_path / attack)
        except ExperimentError:
            unfit.add(attack)
            continue
        with simulate(
            problem.model,
            problem.clients,
            train=problem.train,
            engine=engine,
            quiet=True,
            **config.plan().settings(),
        ) as simulation:
            assert [record.round for record in simulation] == [1, 2]
    assert ("buffers" in unfit) is ("examples" in unfit) is (name != "buffers")
    assert ("high-v" in unfit) is not bool(config.optimizer().moments)
    assert ("c-drift" in unfit) is not bool(config.optimizer().sums)
    assert ("m-flip" in unfit) is not bool(config.optimizer().directions)


def test_an_attack_that_does_not_apply_is_a_sentence(place, tmp_path):
    with pytest.raises(ExperimentError, match="'high-v', but the algorithm sends no second moment"):
        run(place / "fedavg.toml", tmp_path, "federation.attack=high-v")


@pytest.mark.filterwarnings(LIMITED)
def test_without_an_attack_a_run_is_the_run_of_a_file_without_these_keys(place, tmp_path):
    file, bare = place / "fedlada.toml", tmp_path / "bare.toml"
    bare.write_text(file.read_text().replace("attackers = 0.2\n", ""))
    plain, named = (
        read(bare),
        read(file, ["federation.attack=none", "federation.attack_strength=2"]),
    )
    assert plain.identity() == named.identity()
    assert not [key for key in plain.identity() if "attack" in key or "defence" in key]
    honest = numbers(run(bare, tmp_path / "bare"))
    assert numbers(run(file, tmp_path / "none", "federation.attack=none")) == honest
    ends = {HONEST: honest[-1]}
    for attack in (ABSENT, "scaling"):
        config = read(file, [f"federation.attack={attack}"])
        assert config.identity() != plain.identity()
        ends[attack] = numbers(run(file, tmp_path / attack, f"federation.attack={attack}"))[-1]
    assert len({json.dumps(end["client_metrics"]) for end in ends.values()}) == 3


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_defence_is_a_name_for_keys_of_the_federation(place, defence):
    file = place / "fedlada.toml"
    keys = [f"federation.{key}={value}" for key, value in DEFENCES[defence].items()]
    named, written = read(file, [f"federation.defence={defence}"]), read(file, keys)
    assert named.plan().identity() == written.plan().identity()
    assert named.identity() == written.identity()


@pytest.mark.filterwarnings(LIMITED)
@pytest.mark.parametrize("attack", ["c-drift", "backdoor"])
def test_a_stopped_attack_resumes_in_the_same_bits(place, tmp_path, attack):
    words = [f"federation.attack={attack}", "federation.rounds=4"]
    whole = numbers(run(place / "scaffold.toml", tmp_path / "whole", *words))
    RunDirectory(tmp_path / "parts").prepare(read(place / "scaffold.toml", words))
    parts = execute.run(tmp_path / "parts")
    next(parts)
    parts.close()
    list(execute.run(tmp_path / "parts"))
    lines = (tmp_path / "parts" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["metrics"] for line in lines] == [r["metrics"] for r in whole]
    assert 0 <= whole[-1]["metrics"]["stamped_accuracy"] <= 1


@pytest.mark.filterwarnings(LIMITED)
def test_attackers_may_be_trained_together_with_the_others(place, tmp_path):
    """One stacked model computes the same replies, up to rounding."""
    words = ["federation.attack=sign-flip"]
    alone = run(place / "fedlada.toml", tmp_path / "alone", *words)
    together = run(place / "fedlada.toml", tmp_path / "together", *words, "engine.at_once=6")
    for one, other in zip(alone, together, strict=True):
        assert other.client_metrics["loss"] == pytest.approx(one.client_metrics["loss"], rel=1e-3)
        assert (one.limited, one.rejected) == (other.limited, other.rejected)


@pytest.fixture(scope="module")
def swept(place):
    file = place / "sweep.toml"
    file.write_text('algorithm = "fedavg"\n' + FILE + SWEEP)
    for name, config in cells(file).items():
        RunDirectory(place / "swept" / name).prepare(config)
        list(execute.run(place / "swept" / name))
    return place / "swept"


@pytest.mark.filterwarnings(LIMITED)
def test_a_sweep_over_attacks_and_defences_is_compared_in_a_table(swept, tmp_path):
    console = Console(width=200, file=io.StringIO())
    console.print(on_terminal(compared([swept])))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["attack", "default", "strict"] in lines
    (scaling,) = (line for line in lines if line[:1] == ["scaling"])
    assert len(scaling) == 3
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(swept), "--out", str(tmp_path)])
    text = (tmp_path / "report.md").read_text()
    assert "20 % of the clients attack" in text
    assert f"\n| scaling | {scaling[1]} | {scaling[2]} |" in text


def made_up(*runs):
    """Configurations and records of runs: attack, defence, seed, strength, score."""
    configs, lines = {}, []
    for attack, defence, seed, strength, score in runs:
        words = [f"federation.attack={attack}", f"federation.defence={defence}"]
        words += [f"federation.seed={seed}", "data.dataset=digits", "data.clients=10"]
        words += [] if strength is None else [f"federation.attack_strength={strength}"]
        where = Path(f"run{len(configs)}")
        configs[where] = experiment(dict(map(parse, words)), source="words")
        about = {"directory": str(where), "run": where.name, "title": "fedlada", "variant": ""}
        about |= {"split": "test", "measure": "accuracy", "higher": True, "applied": True}
        about |= dict.fromkeys(("asked", "failures", "rejected", "limited"), 0)
        evaluated = [0.1, *[score] * 5]  # the first is not among the last five
        lines += [about | {"round": t, "score": value} for t, value in enumerate(evaluated)]
    return configs, pl.DataFrame(lines)


def test_damage_is_counted_against_absent_attackers_with_the_same_defence_and_seed():
    (found,) = damages(
        *made_up(
            (HONEST, "default", 0, None, 0.80),
            (HONEST, "default", 1, None, 0.70),
            (ABSENT, "default", 0, None, 0.75),
            (ABSENT, "default", 1, None, 0.65),
            (ABSENT, "strict", 0, None, 0.60),
            ("scaling", "default", 0, None, 0.50),
            ("scaling", "default", 1, None, 0.60),
            ("scaling", "strict", 0, None, 0.65),
            ("scaling", "default", 0, 9.0, 0.70),
            ("sign-flip", "none", 0, None, 0.10),
        ),
        PERCENT,
    )
    assert found.columns == ["attack", "default", "none", "strict"]
    assert found.rows == [
        [HONEST, "75.0 [70.0, 80.0]", "", ""],
        [ABSENT, "70.0 [65.0, 75.0]", "", "60.0"],
        ["scaling", "15.0 [5.0, 25.0]", "", "−5.0"],
        ["scaling × 9", "5.0", "", ""],
        ["sign-flip", "", "–", ""],
    ]


def test_without_absent_attackers_damage_is_counted_against_none():
    (found,) = damages(
        *made_up((HONEST, "default", 0, None, 0.8), ("alie", "default", 0, None, 0.5)), PERCENT
    )
    assert found.rows == [[HONEST, "80.0"], ["alie", "30.0"]]
    assert "compared with none" in found.note


def test_runs_without_an_attack_have_no_table():
    assert damages(*made_up((HONEST, "default", 0, None, 0.8)), PERCENT) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["federation.attack=scalling"], "did you mean 'scaling'"),
        (["federation.defence=trimmed"], "did you mean 'trimmed-mean'"),
        (["federation.attack=scaling", "federation.attackers=0.01"], "at least one must attack"),
        (["federation.attack=scaling", "federation.attackers=6"], "one must not"),
        (["federation.attack=scaling", "federation.attackers=1.5"], r"federation\.attackers"),
        (["federation.attack=scaling", "engine.name=ray"], "all clients in one process"),
        (["federation.attack=scaling", "engine.workers=2"], "all clients in one process"),
        (["federation.weighting=examples", "federation.defence=trimmed-mean"], "takes no weights"),
    ],
)
def test_what_cannot_be_attacked_or_defended_is_a_sentence(place, words, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        read(place / "fedlada.toml", words)


def test_the_table_of_attacks_has_every_algorithm_and_three_seeds_of_every_kind():
    text = (ROOT / "experiments" / "attacks" / "family.toml").read_text()
    kinds, others = (set(cell["algorithm"]) for cell in tomllib.loads(text)["sweep"]["cell"][:2])
    assert kinds == set(KINDS)
    assert others == ALGORITHMS.keys() - kinds
    lines = (ROOT / "experiments" / "attacks" / "family.jsonl").read_text().splitlines()
    runs = [json.loads(line) for line in lines]
    for attack in (ABSENT, "sign-flip", "cancel"):
        assert {run["algorithm"] for run in runs if run["attack"] == attack} == ALGORITHMS.keys()
    assert not any(run["others rejected"] for run in runs)


def test_the_page_on_attacks_lists_every_attack_and_every_defence():
    page = (ROOT / "docs" / "attacks.md").read_text()
    assert [name for name in (*ATTACKS, *DEFENCES, ABSENT) if f"`{name}`" not in page] == []
