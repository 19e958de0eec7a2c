"""Attacks: each does what its line says, runs wherever it applies, and its damage is counted."""

import csv
import io
import json
import math
import statistics
from contextlib import nullcontext

import pytest
import torch

from fedlada import (
    ALGORITHMS,
    Failure,
    Reply,
    Task,
    algorithm,
    simulate,
)
from fedlada.algorithms import Vector, Vectors
from fedlada.cli import main
from fedlada.engines.attacks import ATTACKS, Target
from fedlada.engines.hostile import Hostile, Sight, colluders_of
from fedlada.engines.poison import TARGET, Stamp, backdoored, flipped
from fedlada.errors import ExperimentError, FedladaError
from fedlada.experiment.config.reading import read
from fedlada.experiment.results.damage import as_csv, damages, rows_of, worst
from fedlada.experiment.run.attack import ABSENT, HONEST, Cell, attacked, run_cell, target_of
from fedlada.experiment.run.attack_directory import AttackDirectory, wanted
from fedlada.experiment.run.defences import DEFENCES
from fedlada.experiment.run.problem import build
from fedlada.server.guard import Admission, Guard
from fedlada.server.guard.contract import Contract

NAMES = {"parameters": ["0.weight", "0.bias", "2.weight", "2.bias"], "buffers": []}
SHAPES = ((4, 3), (4,), (3, 4), (3,))
AT_THE_LIMIT = ("sign-flip", "fixed-direction", "dead-units", "class-bias", "backdoor")
FAMILIES = ("fedavg", "scaffold", "feddyn", "fedcm", "fedadam", "localadam", "fedlada")

FILE = """
name = "small"
[data]
dataset = "digits"
clients = 6
[train]
steps = 2
batch_size = 5
[federation]
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


def drawn(generator):
    return Vector(torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES)


def scene(name="fedlada", *, round=3, honest=5):
    """A round of an algorithm with random vectors: what colluders see, and one of their replies."""
    generator, chosen = torch.Generator().manual_seed(round), algorithm(name)
    down = chosen.start(drawn(generator))
    moments = {moment.of for moment in chosen.moments}
    for vector in chosen.down[1:]:
        own = drawn(generator)
        down[vector] = own * own if vector in moments else own
    task = Task(round=round, seed=0, lr=0.1, vectors=down.only(chosen.down), nonce="n")
    rises = {moment.up: moment.of for moment in chosen.moments}
    replies = []
    for client in range(honest + 1):
        vectors = Vectors((vector, drawn(generator)) for vector in chosen.up)
        for up, of in rises.items():
            vectors[up] = down[of] + vectors[up] * vectors[up]
        replies.append(
            Reply(
                client=client,
                round=round,
                vectors=vectors,
                examples=10,
                steps=5,
                lr_sum=0.5,
                nonce="n",
            )
        )
    own, *others = replies
    return Sight(task, chosen, others, names=NAMES), own


def target(name, *, classes=3, weighted=True):
    return Target(algorithm=algorithm(name), names=NAMES, classes=classes, weighted=weighted)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_false_reply_meets_the_contract(name):
    sight, own = scene(name)
    for attack in ATTACKS.values():
        if attack.unfit(target(name)) is None:
            false = attack.lie(sight, own, attack.strength or 1.0)
            assert Contract(sight.algorithm, sight.task, [own.client]).breach(false) is None
            assert all(math.isfinite(vector.norm()) for vector in false.vectors.values())


@pytest.mark.parametrize("name", AT_THE_LIMIT)
@pytest.mark.parametrize("strength", [1.0, 5.0])
def test_a_delta_at_the_limit_is_so_many_median_honest_distances_from_coasting(name, strength):
    sight, own = scene()
    false = ATTACKS[name].lie(sight, own, strength).vectors.delta
    median = statistics.median(r.vectors.delta.distance(sight.base) for r in sight.honest)
    assert sight.base.norm() > 0
    assert false.distance(sight.base) == pytest.approx(strength * median)


@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_the_guard_cuts_a_delta_at_the_limit_and_does_not_reject_it(name):
    sight, own = scene()
    guard, clients = Guard(), range(6)

    def admission(history):
        return Admission(guard, sight.algorithm, sight.task, clients, history=history)

    sizes = [admission({"steps": [(5.0, 0.0, 5)]}).measure(r).sizes for r in sight.honest]
    seen = {quantity: [own[quantity] for own in sizes] for quantity in sizes[0]}
    judge = admission(guard.remember({}, seen))
    admitted = judge.admit(judge.measure(ATTACKS[name].lie(sight, own, 5.0)))
    assert admitted.limited[:1] == ("delta",)
    assert admitted.reply.vectors.delta.distance(sight.base) == pytest.approx(
        judge.limits["delta"].high
    )


def test_alie_lies_within_its_standard_deviations_of_the_mean_and_reaches_them():
    sight, own = scene()
    for name, z in (("alie", 1.5), ("alie-5", 5.0)):
        false = ATTACKS[name].lie(sight, own, ATTACKS[name].strength or 1.0).vectors.delta
        for t, *honest in zip(false, *(r.vectors.delta for r in sight.honest), strict=True):
            mean = torch.stack(honest).mean(0)
            deviation = torch.stack(honest).var(0, correction=0).sqrt()
            torch.testing.assert_close(mean - t, z * deviation)


def test_a_fixed_direction_is_the_same_in_every_round_and_another_for_another_seed():
    def direction(round, seed=0):
        sight, own = scene(round=round)
        sight = Sight(sight.task, sight.algorithm, sight.honest, names=NAMES, seed=seed)
        false = ATTACKS["fixed-direction"].lie(sight, own, 5.0).vectors.delta - sight.base
        return false / false.norm()

    assert direction(1).distance(direction(7)) < 1e-12
    assert direction(1).distance(direction(1, seed=1)) > 0.5


def test_a_sign_flip_and_an_inner_product_point_against_the_honest_mean():
    sight, own = scene()
    flip = ATTACKS["sign-flip"].lie(sight, own, 5.0).vectors.delta - sight.base
    honest = sight.mean - sight.base
    assert flip.dot(honest) == pytest.approx(-flip.norm() * honest.norm())
    inner = ATTACKS["inner-product"].lie(sight, own, 2.0).vectors.delta
    assert inner.distance(sight.mean * -2.0) < 1e-12


def test_biases_move_where_the_attack_says():
    sight, own = scene()
    dead = ATTACKS["dead-units"].lie(sight, own, 5.0).vectors.delta - sight.base
    assert [bool(t.abs().sum() > 1e-9) for t in dead] == [False, True, False, False]
    assert (dead.tensors[1] > 0).all()  # the server subtracts a delta
    towards = ATTACKS["class-bias"].lie(sight, own, 5.0).vectors.delta - sight.base
    assert [bool(t.abs().sum() > 1e-9) for t in towards] == [False, False, False, True]
    assert towards.tensors[3].argmin() == TARGET


def test_second_moments_rise_by_what_the_attack_says_and_where():
    sight, own = scene()
    root = sight.task.vectors.v.sqrt()

    def rise(name, strength):
        return ATTACKS[name].lie(sight, own, strength).vectors.v_hat.sqrt() - root

    def total(vector):
        return sum(float(t.abs().sum()) for t in vector)

    honest = statistics.median(total(r.vectors.v_hat.sqrt() - root) for r in sight.honest)
    allowed = max(honest, total(root) / (sight.task.round + 1))
    for name, where in (
        ("high-v", [0, 1, 2, 3]),
        ("high-v-layer", [2, 3]),
        ("high-v-first", [0, 1]),
        ("ratchet", [0, 1, 2, 3]),
    ):
        risen = rise(name, 6.0)
        assert total(risen) == pytest.approx(6 * allowed)
        assert [i for i, t in enumerate(risen) if t.abs().sum() > 1e-9] == where
    ratio = Vector(t / u for t, u in zip(rise("ratchet", 1.0), root, strict=True))
    assert ratio.distance(ratio.full_like(float(ratio.tensors[0][0, 0]))) < 1e-9


def test_lies_about_numbers_leave_the_rest_alone():
    sight, own = scene()
    tiny = ATTACKS["lr-sum"].lie(sight, own, 1.0)
    assert (tiny.steps, tiny.lr_sum, tiny.vectors) == (1, pytest.approx(5e-13), own.vectors)
    half = ATTACKS["lr-sum-half"].lie(sight, own, 1.0)
    assert (half.steps, half.lr_sum, half.vectors) == (2, 0.25, own.vectors)
    more = ATTACKS["steps"].lie(sight, own, 5.0)
    assert (more.steps, more.lr_sum) == (25, 2.5)
    assert more.vectors.delta.equal(own.vectors.delta * 5.0)
    assert ATTACKS["examples"].lie(sight, own, 1000.0).examples == 10_000


def test_the_attack_of_the_first_round_is_over_after_it():
    sight, own = scene(round=0)
    assert (
        float(ATTACKS["first-round"].lie(sight, own, 100.0).vectors.v_hat.tensors[0].min()) == 1e4
    )
    sight, own = scene(round=1)
    assert ATTACKS["first-round"].lie(sight, own, 100.0) is own


@pytest.mark.parametrize(("name", "vector"), [("scaffold", "c_change"), ("feddyn", "delta")])
def test_a_drift_is_in_what_the_server_adds_up(name, vector):
    sight, own = scene(name)
    false = ATTACKS["c-drift"].lie(sight, own, 5.0).vectors
    median = statistics.median(r.vectors[vector].norm() for r in sight.honest)
    assert false[vector].norm() == pytest.approx(5 * median)
    assert all(false[n].equal(own.vectors[n]) for n in own.vectors if n != vector)


def test_what_is_not_there_cannot_be_attacked():
    def unfit(name, **about):
        return {n for n, attack in ATTACKS.items() if attack.unfit(target(name, **about))}

    moments = {"high-v", "high-v-layer", "high-v-first", "zero-v", "ratchet"}
    assert unfit("fedlada") == {"buffers", "c-drift"}
    assert unfit("fedavg", weighted=False) == moments | {"buffers", "c-drift", "examples"}
    assert unfit("scaffold", classes=0) == moments | {
        *("buffers", "label-flip", "backdoor", "class-bias")
    }


def test_poisoned_data():
    inputs = torch.randint(0, 200, (9, 1, 8, 8), dtype=torch.uint8)
    labels, stamp = torch.arange(9) % 3, Stamp(classes=3, bright=255.0)
    same, other = flipped(inputs, labels, stamp)
    assert same is inputs
    assert other.tolist() == [2, 1, 0] * 3
    stamped, targets = backdoored(inputs, labels, stamp)
    assert torch.equal(stamped[::2], stamp(inputs)[::2])
    assert torch.equal(stamped[1::2], inputs[1::2])
    assert (targets[::2] == TARGET).all()
    assert torch.equal(targets[1::2], labels[1::2])
    marked = stamp(inputs) != inputs
    assert marked.any(0).sum() == 4
    assert (stamp(inputs)[marked] == 255).all()
    flat = stamp(torch.zeros(2, 20))
    assert (flat[:, 0] == 255).all()
    assert (flat[:, 1:] == 0).all()


@pytest.mark.parametrize(("clients", "share"), [(100, 0.1), (10, 0.1), (50, 0.2), (7, 0.3)])
def test_colluders_are_their_share_of_the_clients(clients, share):
    found = colluders_of(clients, share)
    assert len(found) == round(clients * share)
    assert found <= set(range(clients))


@pytest.mark.parametrize("share", [0, 1, -0.1, 0.01, 0.99])
def test_a_share_of_nobody_or_of_everybody_is_a_sentence(share):
    with pytest.raises(FedladaError, match=f"share is {share}"):
        colluders_of(10, share)


class Given:
    """An engine that gives the replies of a scene."""

    clients, keeps = 6, False

    def __init__(self, replies):
        self.replies, self.asked, self.committed = replies, [], []

    def exchange(self, task, cohort):
        self.asked += cohort
        yield from (reply for reply in self.replies if reply.client in cohort)

    def commit(self, task, clients):
        self.committed += clients


def test_colluders_answer_first_and_the_others_as_they_would():
    sight, own = scene()
    engine = Given([*sight.honest, own])
    hostile = Hostile(engine, ATTACKS["scaling"], {0}, algorithm=sight.algorithm, names=NAMES)
    first, *others = hostile.exchange(sight.task, range(6))
    assert first.client == 0
    assert first.vectors.delta.equal(own.vectors.delta * 10.0)
    assert others == list(sight.honest)
    hostile.commit(sight.task, [1, 2])
    assert engine.committed == [1, 2]
    assert (hostile.clients, hostile.keeps) == (6, False)


def test_absent_colluders_are_not_asked_and_failures_stay_failures():
    sight, own = scene()
    engine = Given([*sight.honest, own])
    absent = Hostile(engine, None, {0}, algorithm=sight.algorithm, names=NAMES)
    first, *others = absent.exchange(sight.task, range(6))
    assert isinstance(first, Failure)
    assert others == list(sight.honest)
    assert 0 not in engine.asked
    gone = Given([*sight.honest, Failure(client=0, reason="dropped out")])
    hostile = Hostile(gone, ATTACKS["scaling"], {0}, algorithm=sight.algorithm, names=NAMES)
    assert next(hostile.exchange(sight.task, range(6))).reason == "dropped out"


def test_a_cohort_of_colluders_alone_knows_its_own_replies():
    sight, own = scene()
    hostile = Hostile(
        Given([own]), ATTACKS["inner-product"], {0}, algorithm=sight.algorithm, names=NAMES
    )
    (false,) = hostile.exchange(sight.task, [0])
    assert false.vectors.delta.distance(own.vectors.delta * -1.0) < 1e-12


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


def cells_of(file, defences=("default",), attacks=tuple(ATTACKS), **options):
    config = read(file)
    every = {"shares": [0.2], "seeds": [0]} | options
    return wanted(config, target_of(config), attacks=attacks, defences=defences, **every)


@pytest.mark.parametrize("name", [*FAMILIES, "buffers"])
def test_every_attack_runs_wherever_it_applies(place, name):
    file = place / f"{name}.toml"
    found = cells_of(file)
    assert {cell.attack for cell in found.cells} | set(found.skipped) == {
        *ATTACKS,
        *(HONEST, ABSENT),
    }
    norms = set(read(file).plan().algorithm.start(Vector([]))) - {"x", "v"}
    for cell in found.cells:
        line = run_cell(file, cell)
        json.dumps(line, allow_nan=False)
        assert [round for round, _ in line["curve"]] == [1, 2]
        assert line["metric"] == "test_accuracy"
        assert set(line["norms"]) == norms


def test_the_attacks_reach_the_model_and_the_honest_row_is_the_plain_run(place):
    file = place / "fedlada.toml"
    config = read(file)
    problem, plan = build(config), config.plan()
    plain = simulate(problem.model, problem.clients, train=problem.train, **plan.settings())
    plain.run()
    ends = {}
    for name in (HONEST, ABSENT, "scaling"):
        cell = Cell(name, None, "default", 0.2, 0)
        with pytest.warns() if name == "scaling" else nullcontext():
            run = attacked(problem, plan, cell)
            run.run()
        ends[name] = run.state.vectors
    assert all(ends[HONEST][n].equal(plain.state.vectors[n]) for n in plain.state.vectors)
    assert not ends[ABSENT].x.equal(ends[HONEST].x)
    assert not ends["scaling"].x.equal(ends[ABSENT].x)


def test_a_defence_that_cannot_be_or_is_the_files_own_is_left_out(place):
    found = cells_of(place / "buffers.toml", tuple(DEFENCES), attacks=["scaling"])
    assert "weighting" in found.skipped["trimmed-mean"]
    assert {cell.defence for cell in found.cells} == set(DEFENCES) - set(found.skipped)
    with pytest.raises(ExperimentError, match="no defence is left: trimmed-mean"):
        cells_of(place / "buffers.toml", ("trimmed-mean",))


def test_cells_are_all_combinations_and_strengths_only_where_there_are_some(place):
    found = cells_of(
        place / "fedavg.toml",
        ("none", "default"),
        attacks=["scaling", "lr-sum"],
        shares=[0.2, 0.4],
        seeds=[0, 1],
        strengths=[2.0, 3.0],
    )
    count = {name: sum(c.attack == name for c in found.cells) for name in (HONEST, ABSENT)}
    assert count == {HONEST: 2 * 2, ABSENT: 2 * 2 * 2}
    assert sum(c.attack == "scaling" for c in found.cells) == 2 * 2 * 2 * 2
    assert {c.strength for c in found.cells if c.attack == "lr-sum"} == {None}


def made_up(attack, score, *, defence="default", seed=0, strength=None, share=0.1):
    cell = Cell(attack, strength, defence, 0.0 if attack == HONEST else share, seed)
    line = {"attack": attack, "curve": [[1, 0.9], [2, score], [3, score]], "backdoor": 0.5}
    return cell, line | {"limited": {"delta": 3}, "rejected": {}, "median_root": {}, "norms": {}}


def test_damage_is_against_absent_colluders_with_the_same_defence_and_seed():
    lines = dict(
        [
            made_up(HONEST, 0.8),
            made_up(HONEST, 0.7, seed=1),
            made_up(ABSENT, 0.75),
            made_up(ABSENT, 0.65, seed=1),
            made_up("scaling", 0.5, strength=2.0),
            made_up("scaling", 0.6, strength=2.0, seed=1),
            made_up("scaling", 0.7, strength=9.0),
            made_up("scaling", 0.6, strength=9.0, seed=1),
        ]
    )
    found = damages(lines, last=2)
    own = found[Cell("scaling", 2.0, "default", 0.1, 1)]
    assert own["score"] == pytest.approx(0.6)
    assert own["damage"] == pytest.approx(0.05)
    assert own["damage_honest"] == pytest.approx(0.1)
    assert damages(lines, last=3)[Cell(HONEST, None, "default", 0.0, 0)]["score"] == pytest.approx(
        (0.9 + 0.8 + 0.8) / 3
    )
    (scaling,) = (one for one in worst(found) if one.attack == "scaling")
    assert scaling.strength == 2.0
    assert scaling.damage.mean == pytest.approx(15)
    assert (scaling.damage.low, scaling.damage.high) == (pytest.approx(5), pytest.approx(25))
    defences, rows = rows_of(worst(found), 0.1)
    assert defences == ["default"]
    assert rows == {
        HONEST: ["75.0 [70.0, 80.0] %"],
        ABSENT: ["70.0 [65.0, 75.0] %"],
        "scaling": ["+15.0 [+5.0, +25.0]"],
    }
    table = list(csv.DictReader(io.StringIO(as_csv(worst(found)))))
    assert float(table[2]["damage_mean"]) == pytest.approx(15)
    assert table[2]["limited"] == "3.0"


def test_a_run_that_diverged_says_so_and_is_the_worst():
    lines = dict(
        [
            made_up(ABSENT, 0.75),
            made_up("scaling", 0.5, strength=2.0),
            made_up("scaling", None, strength=9.0),
        ]
    )
    _, rows = rows_of(worst(damages(lines, last=1)), 0.1)
    assert rows["scaling"] == ["diverged"]


WORDS = ("--attacks", "scaling,lr-sum", "--defences", "default", "--share", "0.2")


def attack(file, out, *words, jobs="1"):
    main(["attack", str(file), *WORDS, "--out", str(out), "--jobs", jobs, "--last", "1", *words])


def stripped(out):
    """The lines of the cells without what a clock had to say."""
    lines = AttackDirectory(out).lines().values()
    told = ("attack", "strength", "defence", "share", "seed", "curve", "norms", "damage")
    return sorted(json.dumps({key: line[key] for key in told}) for line in lines)


@pytest.fixture(scope="module")
def whole(place):
    with pytest.raises(SystemExit, match="0"):
        attack(place / "fedlada.toml", place / "whole")
    return place / "whole"


def test_the_command_leaves_cells_tables_and_a_page(whole):
    lines = AttackDirectory(whole).lines()
    assert {cell.attack for cell in lines} == {HONEST, ABSENT, "scaling", "lr-sum"}
    for line in lines.values():
        assert line["versions"]
        assert line["command"]
        assert line["cpu_seconds"] > 0
        assert line["median_root"]["v"] > 0
        assert 0 <= line["backdoor"] <= 1
    text = (whole / "attacks.md").read_text()
    for name in ("scaling", "lr-sum", HONEST, ABSENT):
        assert f"\n| {name} | " in text
        assert f"- `{name}`: " in text
    page = (whole / "report.html").read_text()
    assert page.count("<svg") == 2  # for wide and for narrow screens
    assert "Points lost" in page
    svg = (whole / "figures" / "attacks-20.svg").read_text()
    assert svg.count(">scaling<") == 1
    assert (whole / "attacks.csv").read_text().count("\n") == 5


def test_a_stopped_attack_goes_on_and_a_finished_one_does_nothing(whole, place, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("attacked.toml", "cells.jsonl"):
        (out / name).write_bytes((whole / name).read_bytes())
    kept = (out / "cells.jsonl").read_text().splitlines(keepends=True)
    (out / "cells.jsonl").write_text("".join(kept[:2]) + kept[2][:50])
    with pytest.raises(SystemExit, match="0"):
        attack(place / "fedlada.toml", out)
    assert "4 cells in" in (printed := capsys.readouterr().out.replace("\n", " "))
    assert "2 to do" in printed
    assert stripped(out) == stripped(whole)
    with pytest.raises(SystemExit, match="0"):
        attack(place / "fedlada.toml", out)
    assert "0 to do" in capsys.readouterr().out.replace("\n", " ")
    assert stripped(out) == stripped(whole)


def test_two_commands_in_one_directory_are_refused(place, tmp_path):
    with (
        AttackDirectory(tmp_path / "out").held(),
        pytest.raises(SystemExit, match="another process is running in"),
    ):
        attack(place / "fedlada.toml", tmp_path / "out")


def test_two_processes_give_the_same_cells(whole, place, tmp_path):
    with pytest.raises(SystemExit, match="0"):
        attack(place / "fedlada.toml", tmp_path / "out", jobs="2")
    assert stripped(tmp_path / "out") == stripped(whole)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--attacks", "scalling"], "did you mean 'scaling'"),
        (["--defences", "trimmed"], "did you mean 'trimmed-mean'"),
        (["--share", "0.01"], "at least one must collude"),
        (["--share", "1.5"], "it must be above 0 and below 1"),
        (["--seeds", "a"], "give whole numbers"),
        (["--seeds", "0.5"], "give whole numbers"),
        (["--strengths", "1,x"], "give numbers"),
        (["engine.name=ray"], "attacks run in one process"),
        (["train.stepz=3"], "'train.steps'"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(place, tmp_path, words, sentence):
    with pytest.raises(SystemExit) as stopped:
        main(["attack", str(place / "fedlada.toml"), "--out", str(tmp_path / "out"), *words])
    assert str(stopped.value).startswith("fedlada: ")
    assert sentence in str(stopped.value)
    assert not (tmp_path / "out").exists()


def test_a_sweep_and_a_directory_of_another_federation_are_refused(place, whole, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(FILE + "[sweep]\nfederation.seed = [0, 1]\n")
    with pytest.raises(SystemExit, match="holds a sweep, many federations"):
        attack(file, tmp_path / "out")
    with pytest.raises(SystemExit, match=r"settings\.lr is 0\.001, not 0\.2"):
        attack(place / "fedlada.toml", whole, "settings.lr=0.2")
    with pytest.raises(SystemExit, match=r"federation\.rounds is 2, not 1"):
        attack(place / "fedlada.toml", whole, "--rounds", "1")
