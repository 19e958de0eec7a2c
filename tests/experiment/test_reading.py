"""What an experiment file may say, and the sentence that follows when it says something else."""

import sys

import pytest

from fedlada.algorithms.corrections import Amend
from fedlada.algorithms.local import SharedAdam
from fedlada.algorithms.server_rules import ServerAdam
from fedlada.errors import ExperimentError, FedladaError
from fedlada.experiment.config.experiment import Experiment
from fedlada.experiment.config.reading import dump, experiment, parse, read
from fedlada.experiment.run.directory import RunDirectory


def configured(*words: str) -> Experiment:
    return experiment(dict(map(parse, words)), source="words")


def test_an_empty_file_is_the_papers_experiment(tmp_path):
    (tmp_path / "empty.toml").touch()
    config = read(tmp_path / "empty.toml")
    assert config == Experiment()
    assert (config.data.clients, config.federation.cohort, config.train.steps) == (100, 10, 50)


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("train.step=3", "'train.steps'"),
        ("trian.steps=3", "'train'"),
        ("rounds=3", "'federation.rounds'"),
        ("lr=0.1", "'settings.lr'"),
        ("settings.weight_decy=0.1", "'weight_decay'"),
        ("model.activatoin=gelu", "'model.activation'"),
        ("algorithm=fedlad", "'fedlada'"),
        ("model.name=lenett", "'lenet'"),
    ],
)
def test_an_unknown_key_or_name_names_the_nearest(word, nearest):
    with pytest.raises(ExperimentError, match=nearest):
        configured(word)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("train.steps=many", "train.steps"),
        ("train.steps=1.5", "train.steps"),
        ("train.steps=true", "train.steps"),
        ("train=3", "train"),
        ("settings.lr=big", "settings.lr"),
        ("settings.lr={ a = 1 }", "settings.lr"),
        ("settings.lr=[0.1, 0.2]", "settings.lr"),
        ("data.clients=0", "data.clients"),
        ("train.batch_size=12345678901234567890", "train.batch_size"),
        ("data.dataset=mnist", "data.dataset"),
        ("evaluate.targets=[60]", "evaluate.targets"),
        ("algorithm=3", "algorithm"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_key(word, key):
    with pytest.raises(ExperimentError, match=rf"^words: {key} is .*\.$") as raised:
        configured(word)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train.steps=5", "train.epochs=1"], "give only one"),
        (["data.dataset=digits", "model.name=lenet"], "larger images"),
        (["data.clients=5"], "federation.cohort is 10"),
        (["data.only=2"], "with data.only there is 1"),
        (["data.only=100", "federation.cohort=1"], "numbered from 0 to 99"),
        (["train.steps=1", "train.steps.more=1"], "not a table"),
        (["settings.lr"], "not key=value"),
        (["settings.lr=[0.1"], "not a TOML value"),
    ],
)
def test_what_does_not_fit_together_is_a_sentence(words, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        configured(*words)


def test_a_file_that_is_missing_or_not_toml_is_a_sentence(tmp_path):
    with pytest.raises(ExperimentError, match="There is no file"):
        read(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(ExperimentError, match="is not TOML"):
        read(tmp_path / "bad.toml")


def test_words_change_what_the_file_says(tmp_path):
    file = tmp_path / "file.toml"
    file.write_text("[settings]\nlr = 0.1\nalpha = 0.2\n[train]\nsteps = 7\n")
    config = read(file, ["settings.lr=0.3", "algorithm=fedcm", "federation.rounds = 20"])
    assert config.settings == {"lr": 0.3, "alpha": 0.2}
    assert (config.algorithm, config.federation.rounds, config.train.steps) == ("fedcm", 20, 7)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["train.epochs=2", "train.clip_norm=10.0", "settings.betas=[0.5, 0.5]"],
        ["data.dataset=digits", "model.hidden=8", "track=['tensorboard']"],
        ["model.name=resnet18", "model.stem=cifar", "evaluate.targets=[0.5]"],
        ["algorithm={ local = 'adam', corrections = ['amend'], server = 'adam' }"],
    ],
)
def test_what_is_written_is_read_back(tmp_path, words):
    config = configured(*words).resolved()
    (tmp_path / "config.toml").write_text(dump(config))
    assert read(tmp_path / "config.toml") == config


def test_a_resolved_configuration_holds_every_setting():
    config = configured("algorithm=fedcm", "settings.lr=0.3").resolved()
    assert (
        config.settings == configured("algorithm=fedcm", "settings.lr=0.3").optimizer().settings()
    )


def test_epochs_replace_the_default_steps():
    assert configured("train.epochs=2").train.steps is None


def test_an_algorithm_may_be_a_table_and_have_a_label():
    config = configured(
        "algorithm={ local = 'adam', corrections = ['amend'], server = 'adam' }",
        "settings.alpha=0.3",
    )
    optimizer = config.optimizer()
    assert isinstance(optimizer.part, Amend)
    assert isinstance(optimizer.local, SharedAdam)
    assert isinstance(optimizer.server, ServerAdam)
    assert config.title == "amend-adam-adam"
    assert config.model_copy(update={"label": "joint"}).title == "joint"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = '\xff\xfe'", "is not UTF-8"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "within one another"),
        (b"a = " + b"{ a = " * 5000 + b"1" + b" }" * 5000, "within one another"),
        (b".".join([b"a"] * 5000) + b" = 1", "within one another"),
    ],
)
def test_a_file_that_nobody_could_mean_is_a_sentence(tmp_path, content, said):
    (tmp_path / "file.toml").write_bytes(content)
    with pytest.raises(ExperimentError, match=rf"file\.toml .*{said}"):
        read(tmp_path / "file.toml")


@pytest.mark.parametrize("word", ["settings.lr=inf", "settings.lr=1e400", "settings.alpha=inf"])
def test_a_setting_is_finite(word):
    with pytest.raises(ExperimentError, match="it must be"):
        experiment(dict([parse(word)]), source="words")


@pytest.mark.parametrize("path", [".", "..", "./a/b-1", "/data/x", "runs/a"])
def test_a_path_needs_no_quotes_and_a_mistyped_number_is_none(path):
    assert parse(f"data.options.directory={path}") == ("data.options.directory", path)
    with pytest.raises(FedladaError, match="not a TOML value"):
        parse("settings.lr=.5")


@pytest.mark.parametrize("key", ["label", "name"])
@pytest.mark.parametrize("value", ["..", ".", "....", "x" * 101])
def test_what_names_a_directory_can_name_one(key, value):
    with pytest.raises(ExperimentError, match=f"{key} is .*it names a directory"):
        experiment({key: value}, source="words")


def outside(tmp_path, monkeypatch):
    """A run's file that names a module beside it, which leaves a trace when it is imported."""
    text = f"import pathlib\npathlib.Path({str(tmp_path / 'trace')!r}).touch()\nA = B = 1\n"
    (tmp_path / "theirs.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "trace"


@pytest.mark.parametrize(
    "line",
    [
        'algorithm = "theirs:A"',
        'algorithm = { local = "theirs:A", corrections = ["theirs:B"] }',
        'data = { dataset = "theirs:A", task = "theirs:B" }',
        'model = { name = "theirs:A", wide = 3 }',
        'data.task = "theirs:B"',
        'data = { dataset = "theirs:A", unknown = 1 }',
    ],
)
def test_somebodys_file_can_be_looked_at_without_executing_anything(tmp_path, monkeypatch, line):
    trace = outside(tmp_path, monkeypatch)
    (tmp_path / "config.toml").write_text(line)
    before = list(sys.path)
    if "unknown" in line:
        with pytest.raises(ExperimentError, match=r"no key 'data\.unknown'"):
            read(tmp_path / "config.toml", looking=True)
    else:
        config = read(tmp_path / "config.toml", looking=True)
        assert RunDirectory(tmp_path).config == config
        assert not RunDirectory(tmp_path).finished()
        RunDirectory(tmp_path).objective(config, ())
    assert (sys.path, trace.exists()) == (before, False)
    with pytest.raises(FedladaError):  # to run it is another matter
        read(tmp_path / "config.toml")
    sys.path[:] = before
    sys.modules.pop("theirs", None)
    assert trace.exists()
