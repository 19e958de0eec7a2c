"""Models, data sets and tasks are open: one file and one line, or one file beside the TOML."""

import sys
import tomllib
from typing import Literal

import pytest
import torch
from torch import nn

from fedlada.cli import main
from fedlada.data import KINDS, SOURCES, Examples, Images, Source, Statistics
from fedlada.errors import ExperimentError
from fedlada.experiment.config.experiment import FREE
from fedlada.experiment.config.reading import dump, experiment, parse, read
from fedlada.experiment.results.frames import frame
from fedlada.experiment.run import execute
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.problem import build, participants, split
from fedlada.models import MODELS
from fedlada.training.objective import OBJECTIVES


def configured(*words):
    return experiment(dict(map(parse, words)), source="words")


@pytest.fixture
def outside(tmp_path):
    """Writes modules beside files, and forgets them afterwards."""
    path, modules = list(sys.path), set(sys.modules)

    def write(text, *, toml="", name="own_things", where="."):
        directory = tmp_path / where
        directory.mkdir(exist_ok=True)
        (directory / f"{name}.py").write_text(text)
        (directory / "file.toml").write_text(toml)
        return directory / "file.toml"

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def command(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, ended.value.code


# A model, as a file in models/ would hold it.


def linear(
    data: Examples,
    *,
    bias: bool = True,
    depth: int = 1,
    scale: float = 1.0,
    start: Literal["zero", "one"] = "zero",
    widths: tuple[int, ...] = (2, 3),
) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(data.shape[-1] ** 2, data.outputs, bias=bias))


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(MODELS, "linear", linear)  # the one line


def test_a_model_is_one_function_and_one_line(toy):
    config = configured(
        "data.dataset=digits", "model.name=linear", "model.scale=2", "model.depth=3"
    )
    assert config.model.options == {
        **{"bias": True, "depth": 3, "scale": 2.0, "start": "zero", "widths": (2, 3)}
    }
    assert len(list(build(config).model.parameters())) == 2
    bare = configured("data.dataset=digits", "model.name=linear", "model.bias=false")
    assert len(list(build(bare).model.parameters())) == 1


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("model.depth=1.5", "model.depth is 1.5; it must be a valid integer"),
        ("model.depth=true", "model.depth is True; it must be a valid integer"),
        ("model.bias=1", "model.bias is 1; it must be a valid boolean"),
        ("model.scale=big", "model.scale is 'big'; it must be a valid number"),
        ("model.start=two", "model.start is 'two'; it must be 'zero' or 'one'"),
        ("model.widths=[1, 2.5]", r"model.widths is \[1, 2.5\]; it must be a valid integer"),
        ("model.dept=1", "no key 'model.dept'; did you mean 'model.depth'"),
        ("model.steps=1", "no key 'model.steps'; it is .*'train.steps'"),
    ],
)
def test_the_options_of_a_model_are_checked_against_its_signature(toy, word, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        configured("data.dataset=digits", "model.name=linear", word)


def test_options_are_written_and_read_back(toy, tmp_path):
    config = configured("data.dataset=digits", "model.name=linear", "model.widths=[5]").resolved()
    (tmp_path / "config.toml").write_text(dump(config))
    assert read(tmp_path / "config.toml") == config
    assert config.model.options["widths"] == (5,)


# A data set, as a file in data/ would hold it.


def lines(split: str, *, owners: int = 4, noise: float = 0.1) -> Examples:
    """Points on a line; each owner has another range of it, and one more point than the last."""
    generator = torch.Generator().manual_seed(int(split == "test"))
    who = torch.arange(owners).repeat_interleave(torch.arange(owners) + 20)
    x = who[:, None] + torch.rand(len(who), 1, generator=generator)
    y = 2 * x[:, 0] + noise * torch.randn(len(who), generator=generator)
    return Examples(x, y, owners=[f"owner {n}" for n in who.tolist()], prepare=centred)


def centred(inputs):
    return inputs - 2


NATURAL = ("data.dataset=lines", "data.partition=natural", "federation.cohort=2", "train.steps=5")


@pytest.fixture
def own_data(monkeypatch):
    monkeypatch.setitem(SOURCES, "lines", Source(load=lines))  # the one line


def test_naturally_split_data_have_a_client_for_each_owner_with_exactly_its_rows(own_data):
    config = configured(*NATURAL, "data.options.owners=5")
    assert config.data.clients is None
    assert participants(config) == 5
    problem, data = build(config), lines("train", owners=5)
    assert len(problem.clients) == 5
    for client in range(5):
        rows = [row for row, owner in enumerate(data.owners) if owner == f"owner {client}"]
        assert torch.equal(problem.clients[client].inputs, data.inputs[rows])
        assert torch.equal(problem.clients[client].labels, data.labels[rows])


def test_a_validation_split_takes_a_share_of_every_owner(own_data):
    config = configured(*NATURAL, "evaluate.split=validation", "data.validation=0.2")
    train, held_out = split(config)
    assert len(train) + len(held_out) == len(lines("train"))
    for owner in set(lines("train").owners):
        counts = [part.owners.count(owner) for part in (train, held_out)]
        assert counts[1] == round(0.2 * sum(counts))
    everything = torch.cat([train.inputs, held_out.inputs]).sort(0).values
    assert torch.equal(everything, lines("train").inputs.sort(0).values)


def test_no_owner_loses_all_to_the_validation_split(monkeypatch):
    single = Examples(torch.rand(6, 1), torch.rand(6), owners=[0, 0, 0, 1, 2, 3])
    monkeypatch.setitem(SOURCES, "lines", Source(load=lambda split: single))
    config = configured(*NATURAL, "evaluate.split=validation", "data.validation=0.9")
    assert set(split(config)[0].owners) == {0, 1, 2, 3}


def test_the_data_set_says_how_its_inputs_are_prepared(own_data):
    problem = build(configured(*NATURAL))
    inputs = problem.clients[0].inputs
    assert torch.equal(problem.train.prepare(inputs), inputs - 2)


def test_one_owner_may_train_alone(own_data):
    words = ("data.only=2", "federation.cohort=1")
    config = configured(*(word for word in NATURAL if "cohort" not in word), *words)
    assert len(build(config).clients[0]) == 22
    assert participants(config) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["federation.cohort=9"], "federation.cohort is 9, but the data have 4"),
        (["data.only=4", "federation.cohort=1"], "numbered from 0 to 3"),
        (["engine.name=deployment", "engine.nodes=5"], "more than the 4 clients"),
        (["train.crop=2"], "train.crop is 2, but lines holds no images"),
        (["train.crop_share=0.5"], "train.crop_share is 0.5, but lines holds no images"),
        (["data.dataset=digits"], "does not say whom its examples belong to"),
        (["model.hidden=0"], "hidden is 0"),
        (["model.name=lenet"], "lenet takes square images"),
    ],
)
def test_what_does_not_fit_the_data_is_a_sentence(own_data, words, sentence):
    changed = dict(map(parse, NATURAL)) | dict(map(parse, words))
    config = experiment(changed, source="words")
    with pytest.raises(ValueError, match=sentence):
        build(config)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("data.clients=4", "leave data.clients out"),
        ("data.options.owners=many", "data.options.owners is 'many'; it must be a valid integer"),
        ("data.options.owner=3", "did you mean 'data.options.owners'"),
        ("data.dataset=line", "data.dataset is 'line'; did you mean 'lines'"),
        ("data.task=regresion", "data.task is 'regresion'; did you mean 'regression'"),
    ],
)
def test_what_the_file_says_wrong_of_the_data_is_a_sentence(own_data, word, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        configured(*NATURAL, word)


def test_digits_have_no_options():
    with pytest.raises(ExperimentError, match="'digits' has no options"):
        configured("data.dataset=digits", "data.options.owners=3")


@pytest.mark.parametrize("kind", KINDS)
def test_experiment_files_know_every_partition(kind):
    assert configured(f"data.partition={kind}").data.partition == kind


def test_an_unknown_partition_is_a_sentence():
    with pytest.raises(ExperimentError, match=r"data\.partition is 'idd'; did you mean 'iid'\?"):
        configured("data.partition=idd")


def test_images_from_outside_need_statistics(monkeypatch):
    def load(split):
        images = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
        statistics = Statistics((0.5,), (0.5,)) if told else None
        return Images(images, torch.arange(40) % 4, statistics=statistics)

    monkeypatch.setitem(SOURCES, "own", Source(load=load))
    config = configured("data.dataset=own", "data.clients=10")
    told = True
    assert build(config).train.prepare.mean == (0.5,)
    told = False
    with pytest.raises(ExperimentError, match=r"Statistics\.of"):
        build(config)


def test_what_is_no_examples_is_refused(monkeypatch):
    monkeypatch.setitem(SOURCES, "own", Source(load=lambda split: (1, 2)))
    with pytest.raises(ExperimentError, match=r"returned a tuple; it must return"):
        build(configured("data.dataset=own"))


# Tasks.


def test_a_regression_is_judged_by_r2_everywhere(own_data, tmp_path, capsys):
    run = tmp_path / "run"
    config = configured(*NATURAL, "federation.rounds=40", "settings.lr=0.02", "algorithm=fedavg")
    RunDirectory(run).prepare(config)
    records = list(execute.run(run))
    assert {name for record in records for name in record.metrics} == {"test_mse", "test_r2"}
    assert records[-1].metrics["test_r2"] > 0.9
    data = frame([run])
    assert data["score"].to_list() == data["r2"].to_list() == data["test_r2"].to_list()
    assert "accuracy" not in data.columns
    command("compare", str(run), "--target", "0.5")
    assert "R² on the test split, %" in capsys.readouterr().out
    command("report", str(run))
    text = (run / "report" / "report.md").read_text()
    assert "R² on the test split, %" in text
    assert "Mean squared error on the test split" in text
    assert "ccuracy" not in text
    command("resume", str(run))


def test_an_outcome_of_0_or_1_has_one_output_and_is_judged_by_its_auc(monkeypatch, tmp_path):
    def load(split):
        inputs = torch.randn(80, 3, generator=torch.Generator().manual_seed(len(split)))
        return Examples(inputs, (inputs[:, 0] > 0.5).long())

    monkeypatch.setitem(SOURCES, "own", Source(load=load))
    words = (
        "data.dataset=own",
        "data.clients=10",
        "data.partition=class-prior",
        "data.task=binary",
    )
    more = ("model.name=mlp", "algorithm=fedavg", "federation.rounds=8", "train.steps=10")
    config = configured(*words, *more)
    RunDirectory(tmp_path / "run").prepare(config)
    *_, last = execute.run(tmp_path / "run")
    assert last.metrics["test_auc"] > 0.95
    assert frame([tmp_path / "run"])["score"].to_list()[-1] == last.metrics["test_auc"]


def test_the_best_settings_are_chosen_by_r2(own_data, tmp_path, capsys):
    for lr in (0.0001, 0.02):
        words = ("evaluate.split=validation", "federation.rounds=5", f"settings.lr={lr}")
        RunDirectory(tmp_path / str(lr)).prepare(configured(*NATURAL, *words, "algorithm=fedavg"))
        list(execute.run(tmp_path / str(lr)))
    command("best", str(tmp_path))
    assert "validation R² %" in capsys.readouterr().out
    assert "settings.lr = 0.02" in (tmp_path / "best.toml").read_text()


def test_runs_that_are_judged_differently_are_in_tables_of_their_own(own_data, tmp_path, capsys):
    digits = ("data.dataset=digits", "federation.rounds=1", "train.steps=1")
    for name, words in {"digits": digits, "lines": (*NATURAL, "federation.rounds=1")}.items():
        RunDirectory(tmp_path / name).prepare(configured(*words))
        list(execute.run(tmp_path / name))
    capsys.readouterr()
    command("compare", str(tmp_path), "--latex")
    tables = capsys.readouterr().out.split("\\begin{table}")[1:]
    judged = [{word for word in ("R$^2$", "Accuracy") if word in table} for table in tables]
    assert sorted(judged, key=str) == [{"Accuracy"}, {"R$^2$"}]


def test_a_task_may_be_named(own_data):
    for name in OBJECTIVES:
        assert configured(*NATURAL, f"data.task={name}").objective() is OBJECTIVES[name]
    assert configured("data.dataset=digits").objective().score == "accuracy"


# Modules beside the file.

MODULE = """
import torch
from fedlada.training import REGRESSION
from fedlada.data import Examples

def load(split, *, count: int = 40):
    x = torch.linspace(0, 1, count)[:, None]
    return Examples(x, 3 * x[:, 0], owners=[n % 4 for n in range(count)])

def make(data, *, bias: bool = True):
    return torch.nn.Linear(1, 1, bias=bias)

TASK = REGRESSION
NUMBER = 3
"""
TOML = """
algorithm = "fedavg"
data = { dataset = "NAME:load", partition = "natural", task = "NAME:TASK" }
model = { name = "NAME:make", bias = true }
train = { steps = 2 }
federation = { cohort = 2, rounds = 2 }
"""


def test_modules_are_found_beside_the_file_and_the_path_grows_once(outside):
    file = outside(MODULE, toml=TOML.replace("NAME", "own_things"))
    for _ in range(3):
        config = read(file)
    assert config.modules == str(file.parent.resolve())
    assert sys.path.count(config.modules) == 1
    assert config.data.options == {"count": 40}
    assert config.model.options == {"bias": True}
    assert build(config).evaluate(build(config).model).keys() == {"test_mse", "test_r2"}


def test_a_run_finds_its_modules_again_from_anywhere(outside, tmp_path, monkeypatch):
    file = outside(MODULE, toml=TOML.replace("NAME", "own_things"), where="there")
    run = tmp_path / "elsewhere" / "run"
    RunDirectory(run).prepare(read(file))
    written = tomllib.loads((run / "config.toml").read_text())
    assert written["modules"] == str(file.parent)
    sys.path.remove(str(file.parent))
    del sys.modules["own_things"]
    monkeypatch.chdir("/")
    assert len(list(execute.run(run))) == 2


def test_where_modules_are_is_no_part_of_a_runs_identity(outside, tmp_path):
    first = read(outside(MODULE, toml=TOML.replace("NAME", "own_things"), where="one"))
    assert "modules" in FREE
    assert "modules" not in first.identity()
    RunDirectory(tmp_path / "run").prepare(first)
    list(execute.run(tmp_path / "run"))
    del sys.modules["own_things"]
    (tmp_path / "one").rename(tmp_path / "two")
    second = read(tmp_path / "two" / "file.toml", ["federation.rounds=3"])
    RunDirectory(tmp_path / "run").prepare(second)
    assert [record.round for record in execute.run(tmp_path / "run")] == [3]


def test_modules_of_one_name_in_two_directories_are_not_mixed_up(outside):
    toml = TOML.replace("NAME", "own_things")
    read(outside(MODULE, toml=toml, where="one"))
    with pytest.raises(ExperimentError, match=r"'own_things' was already loaded from .*one"):
        read(outside(MODULE, toml=toml, where="two"))


def test_a_file_without_outside_names_leaves_the_path_alone(tmp_path):
    before = list(sys.path)
    (tmp_path / "file.toml").write_text("data.dataset = 'digits'")
    assert read(tmp_path / "file.toml").modules is None
    assert "modules" not in dump(read(tmp_path / "file.toml"))
    assert sys.path == before


@pytest.mark.programs(seconds=20)
def test_a_sweep_finds_the_modules_in_its_processes(outside, tmp_path):
    sweep = '\n[[sweep.cell]]\nalgorithm = ["fedavg", "fedprox"]\n'
    toml = TOML.replace("NAME", "own_things").replace('algorithm = "fedavg"\n', "") + sweep
    file = outside(MODULE, toml=toml)
    command("sweep", str(file), "--out", str(tmp_path / "out"), "--jobs", "2")
    for name in ("fedavg", "fedprox"):
        assert RunDirectory(tmp_path / "out" / name).finished()


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("data.dataset=nowhere_at_all:load", "leads to no data set .*nowhere_at_all"),
        ("data.dataset=own_things:lod", "leads to no data set .*lod"),
        ("data.dataset=own_things:NUMBER", "which is a int; it must be a function load"),
        ("model.name=own_things:NUMBER", "which is a int; it must be a function make"),
        ("data.task=own_things:NUMBER", "which is a int; it must be a fedlada.training.Objective"),
        ("model.bais=true", "no key 'model.bais'; did you mean 'model.bias'"),
        ("data.options.count=many", "data.options.count is 'many'"),
    ],
)
def test_what_a_file_says_wrong_of_modules_is_a_sentence(outside, word, sentence):
    file = outside(MODULE, toml=TOML.replace("NAME", "own_things"))
    with pytest.raises(ExperimentError, match=sentence):
        read(file, [word])


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("def make(data, *, width=3): ...", "model.width has no type"),
        ("def make(data, *, width: int): ...", "model.width is missing; make needs it"),
        ("def make(data, *, width: 'Whatever' = 3): ...", "types of make cannot be read"),
    ],
)
def test_options_that_cannot_be_checked_are_a_sentence(outside, function, sentence):
    file = outside(function, toml="model.name = 'own_things:make'")
    with pytest.raises(ExperimentError, match=sentence):
        read(file)
