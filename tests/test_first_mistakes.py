"""First mistakes, through Python, TOML and the command: each ends in one sentence that helps.

The law of a sentence: it names the value that is wrong, says what is allowed or what to do, and is
no traceback. In Python it is a FedladaError, from the command an exit code that is not 0.
"""

import ast
import pkgutil
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from filelock import FileLock
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import fedlada
from fedlada import Evaluation, FedladaError, LocalTraining, algorithm, simulate
from fedlada.algorithms.local import SGD
from fedlada.cli import main
from fedlada.data import ClientData, by_owner, from_table, partition, split
from fedlada.experiment.config.reading import read
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


def alone(model, data, optimizer):
    own = torch.optim.Adam(model.parameters())
    nn.functional.cross_entropy(model(data[0]), data[1]).backward()
    own.step()


def twice(model, data, optimizer):
    nn.functional.cross_entropy(model(data[0]), data[1]).backward()
    optimizer.step()
    alone(model, data, optimizer)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(4, 3)


class Net(nn.Linear):
    pass


class Images(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        if row >= len(X):
            raise IndexError(row)
        return X[row], int(Y[row])


def with_weight(weight: torch.Tensor) -> nn.Module:
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(weight)
    return model


def overlapping() -> nn.Module:
    memory = torch.zeros(14)
    model = with_weight(memory[:12].view(3, 4))
    model.bias = nn.Parameter(memory[11:])
    return model


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


SPLIT = r"(fedlada\.data\.split\(inputs, labels, clients=10\))"
WORDS = np.array(["cat", "dog"] * 6)
TABLE = {"age": [1.0, 2.0], "ill": [0, 1], "town": ["a", "b"]}
FRAME = pl.DataFrame(TABLE)

PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "no clients": (lambda: run(data=[]), "0 clients"),
    "a dict of inputs and labels": (lambda: run(data={"x": X, "y": Y}), "client 0 (x), round 1"),
    "clients as a generator": (lambda: run(data=(pair for pair in DATA)), "generator"),
    "one set of all clients": (lambda: run(data=(X, Y)), "client 0, round 1"),
    "one dataset of all clients": (lambda: run(data=TensorDataset(X, Y)), "with the label"),
    "one dataset of images": (lambda: run(data=Images()), "Tensor of shape [4] with the label"),
    "a list of examples": (lambda: run(data=list(Images())), "Tensor of shape [4] with the label"),
    "two inputs for each label": (lambda: one(((X, X), Y)), "inputs are 2 tables"),
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
    "a parameter with gaps": (lambda: run(with_weight(torch.zeros(3, 8)[:, ::2])), "w[:, ::2]"),
    "an expanded parameter": (lambda: run(with_weight(torch.zeros(3, 1).expand(3, 4))), "'weight'"),
    "parameters that overlap": (lambda: run(overlapping()), "'weight' and 'bias' overlap"),
    "a batch size of 20 digits": (lambda: LocalTraining(batch_size=10**20), str(10**20)),
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
    "an Adam beside the optimizer": (lambda: run(train=twice), "Adam"),
    "an Adam instead of the optimizer": (lambda: run(train=alone), "Adam"),
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


# Advice ------------------------------------------------------------------------------------------


def caught(mistake: Callable[[], object]) -> str:
    """What a mistake raises, or warns of."""
    said = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            mistake()
        except FedladaError as error:
            said.append(str(error))
    return " ".join(said + [str(warning.message) for warning in warned])


def looping(call: str) -> Callable:
    """A training loop whose step is written so."""

    def train(model, data, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = model(X).square().mean()
            loss.backward()
            return loss

        closure()
        eval(call, {"optimizer": optimizer, "closure": closure})

    return train


def frozen() -> nn.Module:
    return net().requires_grad_(False)


class Waves(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.waves = nn.Parameter(torch.zeros(2, dtype=torch.complex64))


class Words(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.words = embedding

    def forward(self, inputs):
        return self.words(inputs)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def embedding(sparse: str) -> nn.Module:
    return Words(eval(sparse.replace("nn.Embedding(", "nn.Embedding(3, 3, "), {"nn": nn}))


ROWS = [{"x": float(i), "y": i % 3} for i in range(6)]
GAPS = {"age": [1.0, None, 3.0], "ill": [0, 1, 1]}
LARGE = (X * 1e6, X[:, 0])
OUTCOMES = (X, (Y > 0).long())
SQUARES = X.reshape(12, 2, 2)
COLUMN = Y[:, None]
FULL = DATA * 4
"""Twelve clients."""

ADVICE: dict[str, tuple[Callable[[], object], str, str]] = {
    "one set of all clients": (lambda: run(data=(X, Y)), SPLIT, "run(data={})"),
    "a data frame of all clients": (
        lambda: run(data=FRAME),
        r"(fedlada\.data\.by_owner\(fedlada\.data\.from_table\(table, inputs=)\.\.\."
        r"(, label=)\.\.\.(, owner=)\.\.\.",
        "run(nn.Linear(1, 2), data=(lambda table: {}['age']{}'ill'{}'town')))(FRAME))",
    ),
    "a dataset of all clients": (
        lambda: run(data=TensorDataset(X, Y)),
        r"(fedlada\.data\.split\(dataset, clients=10\))",
        "(lambda dataset: run(data={}))(TensorDataset(X, Y))",
    ),
    "a number for a client": (lambda: one(7), SPLIT, "run(data={})"),
    "no clients": (lambda: run(data=[]), SPLIT, "run(data={})"),
    "examples as tables": (
        lambda: one(ROWS),
        r"(fedlada\.data\.from_table\(dataset, inputs=)\.\.\.(, label=)\.\.\.\)",
        "one({}['x']{}'y'), model=nn.Linear(1, 3))",
    ),
    "a cell without a value": (
        lambda: one((X.log(), Y), **training()),
        r"(fedlada\.data\.from_table\(table, )\.\.\.(, missing='drop'\))",
        "one({}inputs=['age'], label='ill'{}, model=nn.Linear(1, 3))",
    ),
    "a cell that gets the mean": (
        lambda: one((X.log(), Y), **training()),
        r"(prepare=fedlada\.data\.standardise\(clients, missing='mean'\))",
        "(lambda clients: run(data=clients, train=LocalTraining(steps=2, {})))([(X.log(), Y)])",
    ),
    "a table with gaps": (
        lambda: from_table(GAPS, inputs=["age"], label="ill"),
        r"(missing='drop')",
        "from_table(GAPS, inputs=['age'], label='ill', {})",
    ),
    "a table with gaps that stay": (
        lambda: from_table(GAPS, inputs=["age"], label="ill"),
        r"(missing='keep') keeps them for (fedlada\.data\.standardise\(clients, missing='mean'\))",
        "(lambda clients: run(data=clients, model=nn.Linear(1, 3),"
        " train=LocalTraining(steps=2, prepare={1})))"
        "([from_table(GAPS, inputs=['age'], label='ill', {0})])",
    ),
    "a column of words": (
        lambda: from_table(TABLE, inputs=["age", "town"], label="ill"),
        r"(categories=\['town'\])",
        "from_table(TABLE, inputs=['age', 'town'], label='ill', {})",
    ),
    "no column": (
        lambda: from_table(TABLE, inputs=[], label="ill"),
        r"(inputs=\['age'\])",
        "from_table(TABLE, {}, label='ill')",
    ),
    "no owners": (
        lambda: by_owner(X, Y),
        r"(owners=table\['hospital'\])",
        "run(data=by_owner(X, Y, {}))",
    ),
    "words as labels": (
        lambda: one((X, WORDS)),
        r"classes = (.*?) and labels = (\[.*?\]),",
        "(lambda classes: one((X, {1})))({0})",
    ),
    "a column of labels": (
        lambda: one((X, COLUMN)),
        r"give (labels\.flatten\(\))",
        "(lambda labels: one((X, {})))(COLUMN)",
    ),
    "classes as floats": (
        lambda: one((X, Y.float()), **training(loss=CLASSIFICATION)),
        r"give (labels\.long\(\))",
        "(lambda labels: one((X, {}), **training(loss=CLASSIFICATION)))(Y.float())",
    ),
    "a label beyond the classes": (
        lambda: one((X, Y + 40)),
        r"(labels\.float\(\)) and the model (one output)",
        "(lambda labels: one((X, {}), model=nn.Linear(4, 1)))(Y + 40)",
    ),
    "an outcome with one output": (
        lambda: one(OUTCOMES, model=nn.Linear(4, 1)),
        r"(loss=fedlada\.training\.BINARY) to LocalTraining and (objective=[\w.]+)",
        "one(OUTCOMES, model=nn.Linear(4, 1), train=LocalTraining(steps=2, {}),"
        " evaluate=Evaluation(data=OUTCOMES, {}))",
    ),
    "numbers with one output": (
        lambda: one(OUTCOMES, model=nn.Linear(4, 1)),
        r"to predict give (labels\.float\(\))",
        "(lambda labels: one((X, {}), model=nn.Linear(4, 1), **training()))(Y)",
    ),
    "an outcome as a number": (
        lambda: one((X, OUTCOMES[1].float()), model=nn.Linear(4, 1), **training()),
        r"(loss=[\w.]+) to LocalTraining and (objective=\S+) to",
        "one((X, OUTCOMES[1].float()), model=nn.Linear(4, 1),"
        " train=LocalTraining(steps=2, {}), evaluate=Evaluation(data=OUTCOMES, {}))",
    ),
    "an outcome in an evaluation": (
        lambda: Evaluation(data=OUTCOMES)(nn.Linear(4, 1)),
        r"(objective=fedlada\.training\.BINARY)",
        "Evaluation(data=OUTCOMES, {})(nn.Linear(4, 1))",
    ),
    "bytes that nobody prepares": (
        lambda: one((X.byte(), Y)),
        r"(prepare=lambda x: .*?) in LocalTraining",
        "one((X.byte(), Y), train=LocalTraining(steps=2, {0}),"
        " evaluate=Evaluation(data=(X.byte(), Y), {0}))",
    ),
    "columns that are too large": (
        lambda: one(LARGE, model=nn.Linear(4, 1), algorithm=algorithm("fedavg", lr=9.0)),
        r"(prepare=fedlada\.data\.standardise\(clients\))",
        "(lambda clients: run(data=clients, model=nn.Linear(4, 1),"
        " train=LocalTraining(steps=2, {})))([LARGE])",
    ),
    "rows of another shape": (
        lambda: one((SQUARES, Y)),
        r"(nn\.Flatten\(\)) before it",
        "one((SQUARES, Y), model=nn.Sequential({}, net()))",
    ),
    "batch_size beside rounds": (lambda: run(batch_size=32), r"give (train=.*)", "run({})"),
    "epochs beside rounds": (lambda: run(epochs=1), r"give (train=.*)", "run({})"),
    "autocast beside rounds": (
        lambda: run(autocast="bfloat16"),
        r"give (train=.*)",
        "run({})",
    ),
    "a device beside rounds": (
        lambda: run(device="cpu"),
        r"give model(\.to\(.*\))",
        "run(net(){})",
    ),
    "a loss by name": (
        lambda: LocalTraining(loss="mse"),
        r"such as (torch\.[\w.]+),",
        "one((X, X[:, :3]), train=LocalTraining(steps=2, loss={}))",
    ),
    "an objective by name": (
        lambda: Evaluation(data=(X, X[:, 0]), objective="r2"),
        r"such as (fedlada[\w.]+),",
        "Evaluation(data=(X, X[:, 0]), objective={})(nn.Linear(4, 1))",
    ),
    "a metric of three numbers": (
        lambda: run(train=steps({"loss": torch.ones(3)})),
        r"such as (loss\.item\(\))",
        "(lambda loss: run(train=steps({{'loss': {}}})))(torch.ones(()))",
    ),
    "statistics that are averaged": (
        lambda: run(with_norm()),
        r"choose (buffers='average')",
        "run(with_norm(), {})",
    ),
    "statistics that stay": (
        lambda: run(with_norm()),
        r"or (buffers='local')",
        "run(with_norm(), {})",
    ),
    "a frozen model": (
        lambda: run(frozen()),
        r"call (requires_grad_\(True\))",
        "run(frozen().{})",
    ),
    "complex numbers": (
        lambda: run(Waves()),
        r"with (requires_grad_\(False\))",
        "(lambda model: (model.waves.{}, run(model)))(Waves())",
    ),
    "a model on meta": (
        lambda: run(on_meta()),
        r"(torch\.device\('cpu'\))",
        "run(nn.Linear(4, 3, device={}))",
    ),
    "sparse gradients": (
        lambda: one((Y, Y), model=embedding("nn.Embedding(sparse=True)")),
        r"use (nn\.Embedding\(sparse=False\))",
        "one((Y, Y), model=embedding('{}'))",
    ),
    "a step without a closure": (
        lambda: run(algorithm="fedsam", train=looping("optimizer.step()")),
        r"call (optimizer\.step\(closure\))",
        "run(algorithm='fedsam', train=looping('{}'))",
    ),
    "a step of personal parts that nobody named": (
        lambda: run(Parts(), train=looping("optimizer.step(only='personal')")),
        r"such as (personal=\('head\.\*',\))",
        "run(Parts(), {}, train=looping('optimizer.step(only=\"personal\") or optimizer.step()'))",
    ),
    "a cohort as a word": (
        lambda: run(cohort="most"),
        r"such as (\d+), a share between 0 and 1 such as ([\d.]+), ('all'), or .* as (\S+)",
        "[run(data=FULL, cohort=cohort) for cohort in ({}, 5 * {}, {}, {})]",
    ),
    "weights that SCAFFOLD cannot have": (
        lambda: run(algorithm="scaffold", weighting="examples"),
        r"choose (weighting='uniform')",
        "run(algorithm='scaffold', {})",
    ),
    "weights that a median cannot have": (
        lambda: run(aggregator="coordinate-median", weighting="examples"),
        r"choose (weighting='uniform') or (aggregator='mean')",
        "run(aggregator='coordinate-median', {}), run(weighting='examples', {})",
    ),
    "clients that take unlike numbers of steps": (
        lambda: uneven(),
        r"give (guard='off')",
        "[record.limited for record in uneven({})] == [{{}}] or int('limited')",
    ),
    "a codec of three ways": (
        lambda: run(codec="x=bf16 | delta=bf16 | x=bf16"),
        r"('x=bf16 \| delta=bf16')",
        "run(codec={})",
    ),
    "a deadline without devices": (
        lambda: run(deadline=1e9),
        r"(devices=fedlada\.engines\.Devices\(\))",
        "run(deadline=1e9, {}, **training())",
    ),
    "devices for a loop that does not say its steps": (
        lambda: run(devices=fedlada.engines.Devices(), train=steps(None)),
        r"such as (steps=50)",
        "run(devices=fedlada.engines.Devices({}), train=steps(None))",
    ),
    "memory that workers do not share": (
        lambda: run(workers=2, algorithm="scaffold", store=fedlada.engines.MemoryStore()),
        r"give (store=fedlada\.engines\.DiskStore\(directory\))",
        "simulate(net(), DATA, workers=2, algorithm='scaffold', {})",
    ),
    "labels that are no classes": (
        lambda: partition(X[:, 0], "client-prior", clients=2),
        r"use (kind='iid')",
        "partition(X[:, 0], clients=2, {})",
    ),
    "labels as a column, to split": (
        lambda: partition(COLUMN, "client-prior", clients=2),
        r"with (labels\.long\(\)\.flatten\(\))",
        "(lambda labels: partition({}, 'client-prior', clients=2))(COLUMN)",
    ),
    "equal clients": (
        lambda: split(X, Y, clients=2, concentration=0.0),
        r"use (kind='iid')",
        "split(X, Y, clients=2, {})",
    ),
    "a plot of no metric": (
        lambda: plotted(train=steps(None)),
        r"give simulate (evaluate=.*?\)\)),",
        "(lambda inputs, labels: plotted({}))(X, Y)",
    ),
    "a plot of no time": (
        lambda: plotted(against="time", evaluate=Evaluation(data=(X, Y))),
        r"give simulate (devices=\S+)",
        "plotted(against='time', evaluate=Evaluation(data=(X, Y)), {})",
    ),
    "an algorithm that is none": (
        lambda: algorithm("json:__name__"),
        r"NAME = (Algorithm\(.*\))",
        "run(algorithm={})",
    ),
    **{
        f"{name} beside rounds": (
            lambda name=name, value=value: run(**{name: value}),
            r"give (algorithm=.*)",
            "{}",
        )
        for known in fedlada.ALGORITHMS.values()
        for name, value in known.settings().items()
        if name != "lr"
    },
}
"""A mistake; code that its message names; and what a user makes of that code, which must work."""


def uneven(**settings) -> list:
    """The records of a run in which one of twelve clients takes fewer steps than the others."""

    def train(model, data, optimizer, *, client):
        LocalTraining(steps=20 if client else 2)(model, data, optimizer)

    settings |= {"rounds": 1, "cohort": "all", "train": train, "quiet": True}
    return simulate(net(), FULL, algorithm="fedavg", **settings).run()


def plotted(against: str = "round", **settings) -> None:
    done = simulate(net(), DATA, rounds=1, quiet=True, **settings)
    done.run()
    done.plot(against=against)


@pytest.mark.filterwarnings("ignore:the guard stepped in", "ignore:missing='drop' leaves out")
@pytest.mark.parametrize("mistake", ADVICE)
def test_an_advice_works_when_followed(mistake, tmp_path):
    make, advice, use = ADVICE[mistake]
    said = caught(make)
    named = re.search(advice, said)
    assert named is not None, said
    given = {"inputs": X, "labels": Y, "dataset": ROWS, "table": GAPS, "words": list(WORDS)}
    given |= {"Algorithm": fedlada.algorithms.Algorithm, "SGD": SGD, "directory": tmp_path}
    given |= {"Amend": fedlada.algorithms.corrections.Amend}
    if "hospital" in advice:
        given["table"] = {"hospital": ["a", "b"] * 6}
    code = use.format(*named.groups())
    eval(f"dict({code})" if use == "{}" else code, globals() | given)


def test_every_name_of_the_library_in_a_message_is_there():
    sentences = [
        node.value
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    names = {n for text in sentences for n in re.findall(r"\bfedlada(?:\.[A-Za-z]\w*)+", text)}
    assert len(names) > 20
    for name in names - {"fedlada.run"}:  # a logger's
        pkgutil.resolve_name(name)


IN_FILES: dict[str, tuple[str, str]] = {
    "an attack in several processes": (
        "federation.attack=sign-flip engine.workers=2",
        r"choose (engine\.name=process) and (engine\.workers=1)",
    ),
    "a device on Ray": ("device=auto engine.name=ray", r"choose (engine\.name=process)"),
    "devices on real nodes": (
        "devices.step=1.0 engine.name=deployment",
        r"choose (engine\.name=process)",
    ),
    "workers on Ray": ("engine.workers=2 engine.name=ray", r"take (engine\.name=process)"),
    "a word without a value": ("rounds", r"for example, (settings\.lr=0\.1)"),
    "a setting of another table": ("steps=3", r"or '(train\.steps)'"),
}
"""Words beside a file, and those that the message gives instead."""


@pytest.mark.parametrize("mistake", IN_FILES)
def test_an_advice_for_a_file_works_when_followed(here, mistake):
    words, advice = IN_FILES[mistake]
    with pytest.raises(FedladaError) as raised:
        read(Path("run.toml"), words.split())
    named = re.search(advice, str(raised.value))
    assert named is not None, raised.value
    wrong = [word for word in words.split() if "=" in word and word.partition("=")[0] != "steps"]
    right = [word if "=" in word else f"{word}=3" for word in named.groups()]
    read(Path("run.toml"), wrong + right)


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
