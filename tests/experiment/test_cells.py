"""A sweep's file lists alternatives; every combination is a run with a name of its own."""

import pytest

from fedlada.errors import ExperimentError
from fedlada.experiment.config.cells import cells, first
from fedlada.experiment.config.reading import read


def of(tmp_path, text, *words):
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    return cells(file, words)


COMPARISON = """
[sweep]
federation.seed = [0, 1]

[[sweep.cell]]
algorithm = ["fedavg", "fedcm"]
settings.lr = [0.03, 0.1]

[[sweep.cell]]
algorithm = "fedlada"
settings = { lr = 0.01, betas = [[0.9, 0.99]] }
"""


def test_cells_are_combined_with_the_whole_sweep_seed_by_seed(tmp_path):
    found = of(tmp_path, COMPARISON)
    one = ["fedavg-lr0.03", "fedavg-lr0.1", "fedcm-lr0.03", "fedcm-lr0.1"]
    one.append("fedlada-lr0.01-betas0.9_0.99")
    assert list(found) == [f"{name}-seed{seed}" for seed in (0, 1) for name in one]
    chosen = found["fedlada-lr0.01-betas0.9_0.99-seed1"]
    assert chosen.algorithm == "fedlada"
    assert chosen.settings == {"lr": 0.01, "betas": [0.9, 0.99]}
    assert chosen.federation.seed == 1


def test_without_cells_the_sweep_is_one_grid(tmp_path):
    text = "[sweep]\nsettings.alpha = [0.1, 0.2]\ntrain.steps = [5, 10]\n"
    assert [(c.settings["alpha"], c.train.steps) for c in of(tmp_path, text).values()] == [
        (alpha, steps) for alpha in (0.1, 0.2) for steps in (5, 10)
    ]


def test_words_hold_for_every_run_but_not_against_the_sweep(tmp_path):
    found = of(tmp_path, COMPARISON, "federation.rounds=7")
    assert {config.federation.rounds for config in found.values()} == {7}
    with pytest.raises(ExperimentError, match=r"federation\.seed is set by the sweep"):
        of(tmp_path, COMPARISON, "federation.seed=3")


LONG = f"[sweep]\nevaluate.targets = [{[n / 100 for n in range(1, 90)]}]"
HUGE = "[sweep]\n" + "\n".join(
    f"{key} = {list(range(1, 1001))}" for key in ("train.steps", "data.seed", "train.batch_size")
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = 'x'", "fedlada run"),
        ("[sweep]\ntrain.stepz = [1]", "'train.steps'"),
        ("[sweep]\ntrain.steps = []", "no alternatives"),
        ("[sweep.cell]\ntrain.steps = 3", r"\[\[sweep\.cell\]\]"),
        ("[sweep]\ntrain.steps = [1, 1]", "give one of them a label"),
        ("[[sweep.cell]]\nsettings.mu = 1", "no setting of this algorithm"),
        ("[sweep]\nlabel = ['..']", "not dots alone"),
        (f"[sweep]\nlabel = ['{'x' * 300}']", "at most 100 characters"),
        (LONG, "give it a label, or sweep fewer keys"),
        (HUGE, "the sweep has 1,000,000,000 runs, and at most 10,000"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_a_sentence(tmp_path, text, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        of(tmp_path, text)


def test_one_run_of_a_sweep_is_chosen_by_its_name(tmp_path):
    every = of(tmp_path, COMPARISON)
    file = tmp_path / "sweep.toml"
    assert first(file, []) == next(iter(every.values()))
    last = list(every)[-1]
    assert first(file, [], only=last) == every[last]
    with pytest.raises(ExperimentError, match=r"Nothing in .* matches 'nobody\*'"):
        first(file, [], only="nobody*")
    swept = "federation.seed=0"
    with pytest.raises(ExperimentError, match=r"is set by the sweep; .* with --only"):
        first(file, [swept])
    file.write_text("")
    with pytest.raises(ExperimentError, match=r"no table \[sweep\], so leave --only a out"):
        first(file, [], only="a")


def test_run_sends_a_sweep_to_sweep(tmp_path):
    of(tmp_path, COMPARISON)
    with pytest.raises(ExperimentError, match="fedlada sweep"):
        read(tmp_path / "sweep.toml")


def test_the_same_last_word_of_two_keys_is_told_apart(tmp_path):
    (name,) = of(tmp_path, "[sweep]\ndata.seed = [1]\nfederation.seed = [2]\n")
    assert name == "fedlada-data.seed1-federation.seed2"


def test_a_label_takes_the_algorithms_place(tmp_path):
    text = "[[sweep.cell]]\nlabel = 'a b'\nsettings.warm_start = true\n[[sweep.cell]]\n"
    assert list(of(tmp_path, text)) == ["a_b-warm_startTrue", "fedlada"]
