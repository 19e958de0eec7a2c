"""First mistakes, through Python, TOML and the command: each ends in one sentence that helps.

The law of a sentence: it names the value that is wrong, says what is allowed or what to do, and is
no traceback. In Python it is a FedladaError, from the command an exit code that is not 0.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fedlada
from fedlada import Evaluation, FedladaError, LocalTraining, algorithm, simulate
from fedlada.algorithms.local import SGD
from fedlada.cli import main
from fedlada.data import ClientData, by_owner, from_table, partition, split
from fedlada.server.saving.lock import DirectoryLock
from fedlada.training import CLASSIFICATION
from places import ROOT

HELP = re.compile(
    r"\b(must|give|write|choose|use|name|put|convert|leave|call|return|build|number|set|say|wait"
    r"|change|fix|iterate|did you mean|there are|it is|it has|run pip|try)\b",
    re.IGNORECASE,
)


def helps(sentence: str, value: str) -> None:
    assert value in sentence, f"it does not name {value}: {sentence}"
    assert HELP.search(sentence), f"it does not say what to do: {sentence}"
    assert "Traceback" not in sentence
    assert "\n" not in sentence.strip()
    assert 20 < len(sentence) < 700


# Python ------------------------------------------------------------------------------------------

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
DATA = [(X, Y)] * 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def run(model=None, data=DATA, **settings) -> None:
    simulate(net() if model is None else model, data, **{"rounds": 1} | settings).run()


def one(data, **settings) -> None:
    run(data=[data], **settings)


def training(**settings) -> dict:
    return {"train": LocalTraining(steps=3, batch_size=5, **settings)}


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def fails(model, data, optimizer):
    raise ZeroDivisionError("a mistake of mine")


def steps(returned) -> Callable:
    def train(model, data, optimizer):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()
        return returned

    return train


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(4, 3)


class Net(nn.Linear):
    pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


WORDS = np.array(["cat", "dog"] * 6)
TABLE = {"age": [1.0, 2.0], "ill": [0, 1], "town": ["a", "b"]}

PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "no clients": (lambda: run(data=[]), "0 clients"),
    "a dict of inputs and labels": (lambda: run(data={"x": X, "y": Y}), "client 0 (x), round 1"),
    "clients as a generator": (lambda: run(data=(pair for pair in DATA)), "generator"),
    "one set of all clients": (lambda: run(data=(X, Y)), "client 0, round 1"),
    "one dataset of all clients": (lambda: run(data=TensorDataset(X, Y)), "round 1"),
    "a loader that keeps its own order": (
        lambda: one(DataLoader(TensorDataset(X, Y), generator=torch.Generator())),
        "generator",
    ),
    "a loader of single tensors": (lambda: one(DataLoader(X)), "a Tensor of shape [1, 4]"),
    "a stream for a client": (lambda: one(Stream()), "Stream"),
    "a dict without clients": (lambda: run(data={}), "0 clients"),
    "three tensors for a client": (lambda: one(TensorDataset(X, Y, Y)), "3 tensors"),
    "a number for a client": (lambda: one(7), "int"),
    "examples as tables": (lambda: one([{"x": 1.0, "y": 2}] * 4), "x, y"),
    "more inputs than labels": (lambda: one((X, Y[:5])), "12 inputs and 5 labels"),
    "a client without examples": (lambda: one((X[:0], Y[:0])), "no examples"),
    "labels that are words": (lambda: one((X, WORDS)), "labels are a ndarray"),
    "a label beyond the classes": (lambda: one((X, Y + 40)), "a label is 4"),
    "labels as a column": (lambda: one((X, Y[:, None])), "[12, 1]"),
    "classes as floats": (
        lambda: one((X, Y.float()), **training(loss=CLASSIFICATION)),
        "torch.float32 of shape [5]",
    ),
    "bytes that nobody prepares": (lambda: one((X.byte(), Y)), "torch.uint8"),
    "rows that are too long": (lambda: one((torch.ones(12, 9), Y)), "[12, 9]"),
    "a last batch of one": (
        lambda: run(with_norm(), [(X[:11], Y[:11])], buffers="local", **training()),
        "1 example",
    ),
    "numpy of objects": (lambda: ClientData(np.array([{}, {}]), Y[:2]), "inputs are a ndarray"),
    "a class as the model": (lambda: run(Net), "Net"),
    "a name as the model": (lambda: run("lenet"), "str"),
    "a lazy model": (lambda: run(nn.LazyLinear(3)), "'weight'"),
    "a model without numbers": (lambda: run(on_meta()), "'meta'"),
    "a model without parameters": (lambda: run(nn.ReLU()), "no trainable parameter"),
    "statistics nobody spoke of": (lambda: run(with_norm()), "1.running_mean"),
    "evaluate returns nothing": (lambda: run(evaluate=lambda model: None), "None"),
    "evaluate returns a number": (lambda: run(evaluate=lambda model: 0.25), "0.25"),
    "evaluate is a number": (lambda: run(evaluate=3), "evaluate is 3"),
    "train returns a number": (lambda: run(train=steps(0.25)), "0.25"),
    "a metric is a word": (lambda: run(train=steps({"loss": "me"})), "'me'"),
    "a metric is a tensor": (lambda: run(train=steps({"loss": torch.ones(3)})), "'loss'"),
    "an error in the loop": (lambda: run(train=fails), "a mistake of mine"),
    "a loop without a step": (lambda: run(train=lambda *_: None), "no optimizer step"),
    "lr in quotes": (lambda: run(algorithm=algorithm("fedavg", lr="0.1")), "'0.1'"),
    "lr in quotes, in a rule": (lambda: SGD(lr="0.1"), "'0.1'"),
    "lr below 0": (lambda: algorithm("fedavg", lr=-1), "-1"),
    "device beside rounds": (lambda: run(device="cuda"), "device='cuda'"),
    "alpha beside rounds": (lambda: run(alpha=0.5), "alpha=0.5"),
    "batch_size beside rounds": (lambda: run(batch_size=32), "batch_size=32"),
    "a setting of another algorithm": (lambda: algorithm("fedavg", alpha=0.1), "'alpha'"),
    "an algorithm with a typing error": (lambda: run(algorithm="fedlda"), "'fedlda'"),
    "an unknown argument": (lambda: run(sampels=3), "'sampels'"),
    "half a round": (lambda: run(rounds=2.5), "2.5"),
    "rounds below 0": (lambda: run(rounds=-3), "-3"),
    "more clients than there are": (lambda: run(cohort=8), "8"),
    "a share above 1": (lambda: run(cohort=1.5), "1.5"),
    "a cohort as a word": (lambda: run(cohort="most"), "'most'"),
    "a guard with a typing error": (lambda: run(guard="of"), "'of'"),
    "an aggregator with a typing error": (lambda: run(aggregator="median"), "'median'"),
    "steps and epochs": (
        lambda: LocalTraining(steps=50, epochs=2),
        "steps is 50 and epochs is 2",
    ),
    "a batch size in quotes": (lambda: LocalTraining(batch_size="32"), "'32'"),
    "a loss by name": (lambda: LocalTraining(loss="mse"), "'mse'"),
    "an objective by name": (lambda: Evaluation(data=(X, Y), objective="r2"), "'r2'"),
    "classes with one output": (
        lambda: Evaluation(data=(X, Y))(nn.Linear(4, 1)),
        "(12, 1)",
    ),
    "numbers with three outputs": (
        lambda: Evaluation(data=(X, X[:, 0]))(net()),
        "(12, 3)",
    ),
    "nothing to evaluate on": (lambda: Evaluation(data=(X[:0], Y[:0]))(net()), "no examples"),
    "numbers that leave the model unchanged": (
        lambda: run(algorithm=algorithm("fedavg", lr=1e30), rounds=2, **training()),
        "none of 2 rounds",
    ),
    "a kind of split": (lambda: split(X, Y, clients=2, kind="dirichlet"), "'dirichlet'"),
    "clients in quotes": (lambda: split(X, Y, clients="2"), "'2'"),
    "more clients than examples": (lambda: partition(Y.tolist(), "iid", clients=40), "40"),
    "owners nobody gave": (lambda: by_owner(X, Y), "owners are None"),
    "too few owners": (lambda: by_owner(X, Y, owners=["a", "b"]), "12 labels and 2 owners"),
    "a column that is not there": (lambda: from_table(TABLE, inputs="agee", label="ill"), "'agee'"),
    "a plot before the first round": (lambda: simulate(net(), DATA).plot(), "no record"),
    "a frame of nothing": (lambda: fedlada.frame([]), "[]"),
    "a frame of a number": (lambda: fedlada.frame(3), "3"),
}


@pytest.mark.filterwarnings("ignore:the guard stepped in", "ignore:Lazy modules")
@pytest.mark.parametrize("mistake", PYTHON)
def test_a_mistake_in_python_is_one_sentence(mistake):
    make, value = PYTHON[mistake]
    with pytest.raises(FedladaError) as raised:
        make()
    helps(str(raised.value), value)


def test_an_error_in_a_loop_names_client_and_round_and_keeps_its_cause():
    def late(model, data, optimizer):
        if late.calls == 4:
            raise KeyError("left")
        late.calls += 1
        return steps(None)(model, data, optimizer)

    late.calls = 0
    said = r"client 1, round 2: KeyError at \S*test_first_mistakes\.py, line \d+"
    with pytest.raises(fedlada.TrainingError, match=said) as raised:
        run(train=late, rounds=3)
    assert isinstance(raised.value.__cause__, KeyError)
    assert (raised.value.client, raised.value.round) == (1, 2)


def test_a_plot_of_an_unknown_metric_names_the_nearest():
    done = simulate(net(), DATA, rounds=1, evaluate=Evaluation(data=(X, Y)))
    done.run()
    with pytest.raises(FedladaError, match=r"'test_acuracy'.*did you mean 'test_accuracy'"):
        done.plot("test_acuracy")


# TOML and the command ----------------------------------------------------------------------------

FILE = """
name = "mistakes"
algorithm = "fedavg"
[data]
dataset = "digits"
clients = 10
[train]
steps = 2
[federation]
cohort = 5
rounds = 1
"""
SWEEP = FILE + '[[sweep.cell]]\nalgorithm = ["fedavg", "fedcm"]\n'

TOML: dict[str, tuple[str, str]] = {
    "not TOML": ("rounds = = 3", "not TOML"),
    "an unknown key": ("[train]\nstep = 3", "'train.step'"),
    "an unknown table": ("[trian]\nsteps = 3", "trian"),
    "a key in the wrong table": ("rounds = 3", "'rounds'"),
    "a number in quotes": ('[federation]\nrounds = "ten"', "'ten'"),
    "half a round": ("[federation]\nrounds = 2.5", "2.5"),
    "an unknown algorithm": ('algorithm = "fedlda"', "'fedlda'"),
    "an unknown data set": ('[data]\ndataset = "mnist"', "'mnist'"),
    "an unknown model": ('[model]\nname = "resnet"', "'resnet'"),
    "an unknown task": ('[data]\ntask = "regresion"', "'regresion'"),
    "an unknown partition": ('[data]\npartition = "dirichlet"', "'dirichlet'"),
    "a device of another library": ('device = "gpu"', "'gpu'"),
    "a device in a table": ('[train]\ndevice = "cpu"', "'train.device'"),
    "a device on Ray": ('device = "auto"\n[engine]\nname = "ray"', "'auto'"),
    "a kind of number": ('[train]\nautocast = "float16"', "'float16'"),
    "a setting in quotes": ('[settings]\nlr = "0.1"', "'0.1'"),
    "a setting of another algorithm": ('algorithm = "fedavg"\n[settings]\nalpha = 0.1', "'alpha'"),
    "a cohort that is too large": ("[federation]\ncohort = 200", "200"),
    "a target in percent": ("[evaluate]\ntargets = [95]", "95"),
    "steps and epochs": ("[train]\nsteps = 3\nepochs = 2", "train.epochs is 2"),
    "a module that is not there": ('[model]\nname = "nowhere:make"', "'nowhere:make'"),
    "a name that is not in the module": ('[model]\nname = "json:make"', "'json:make'"),
    "a function that makes no model": ('[model]\nname = "json:__name__"', "'json:__name__'"),
    "small images for a large model": (
        '[data]\ndataset = "digits"\n[model]\nname = "lenet"',
        "'lenet'",
    ),
}


def command(*words: object) -> str:
    """What a command that must fail says."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code not in (0, None)
    return str(ended.value.code)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(FILE)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


@pytest.mark.parametrize("mistake", TOML)
def test_a_mistake_in_a_file_is_one_sentence(here, mistake):
    text, value = TOML[mistake]
    Path("wrong.toml").write_text(text)
    said = command("run", "wrong.toml", "--out", "out")
    assert said.startswith("fedlada: wrong.toml")
    helps(said, value)
    assert not Path("out").exists()


RUNS = ROOT / "experiments" / "desk" / "results" / "reference.jsonl"

COMMANDS: dict[str, tuple[str, str]] = {
    "no such file": ("run nowhere.toml", "nowhere.toml"),
    "a directory as the file": ("run .", "no file ."),
    "a value without a key": ("run run.toml rounds", "'rounds'"),
    "a value in no quotes": ("run run.toml label=日本語", "日本語"),
    "a sweep as a run": ("run sweep.toml", "sweep.toml"),
    "a run as a sweep": ("sweep run.toml", "run.toml"),
    "a sweep's key": ("sweep sweep.toml algorithm=fedlada", "algorithm"),
    "no run of that name": ("sweep sweep.toml --only nobody*", "nobody*"),
    "a directory without runs": ("compare .", "."),
    "a report without runs": ("report .", "."),
    "a target in percent": (f"compare {RUNS} --target 95", "0.95 for 95 %"),
    "a target below 0": (f"report {RUNS} --target -1", "-1"),
    "a device that is not there": ("run run.toml device=mps:9", "'mps:9'"),
    "more clients than examples": ("run run.toml data.clients=5000", "5000"),
    "a guard that is no table": ("run run.toml federation.guard=slack", "slack"),
    "an unknown aggregator": ("run run.toml federation.aggregator=meam", "'meam'"),
    "a model that is not there": ("export . model.safetensors", "."),
    "nothing to resume": ("resume nowhere", "nowhere"),
    "an output that is a file": ("run run.toml --out run.toml", "run.toml"),
    "a sweep into a file": ("sweep sweep.toml --out run.toml", "run.toml"),
}


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_mistake_in_a_command_is_one_sentence(here, mistake):
    words, value = COMMANDS[mistake]
    said = command(*words.split())
    assert said.startswith("fedlada: ")
    helps(said, value)


@pytest.mark.parametrize(
    ("words", "value"),
    [("rum run.toml", "rum"), ("sweep sweep.toml --job 2", "--job"), ("compare . --rounds 0", "0")],
)
def test_an_unknown_word_of_the_command_is_no_traceback(here, capsys, words, value):
    assert command(*words.split()) == "2"
    said = capsys.readouterr().err
    assert value in said
    assert "usage: fedlada" in said
    assert "Traceback" not in said


def test_another_run_in_the_directory_is_one_sentence(here):
    with pytest.raises(SystemExit):
        main(["run", "run.toml", "--out", "out"])
    helps(command("run", "run.toml", "settings.lr=0.2", "--out", "out"), "0.2")


def test_a_busy_directory_is_one_sentence(here):
    Path("out/checkpoints").mkdir(parents=True)
    with FileLock("out/checkpoints/lock"):
        helps(command("run", "run.toml", "--out", "out"), "out/checkpoints")


def test_a_second_sweep_in_a_directory_is_one_sentence(here):
    busy = DirectoryLock(Path("out"), name="sweep.lock")
    busy.take()
    try:
        helps(command("sweep", "sweep.toml", "--out", "out"), "out")
    finally:
        busy.release()


def test_a_directory_that_cannot_be_written_is_one_sentence(here):
    with pytest.raises(FedladaError) as raised:
        run(checkpoints="run.toml")
    helps(str(raised.value), "run.toml")
    with pytest.raises(FedladaError) as raised:
        fedlada.engines.DiskStore("run.toml")
    helps(str(raised.value), "run.toml")


@pytest.mark.filterwarnings("ignore:the guard stepped in")
def test_a_run_that_changed_nothing_is_one_sentence(here):
    helps(command("run", "run.toml", "settings.lr=1e30", "--out", "out"), "none of 1 rounds")


def test_there_are_at_least_forty():
    assert len(PYTHON) + len(TOML) + len(COMMANDS) >= 40
