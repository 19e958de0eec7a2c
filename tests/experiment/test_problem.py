"""The configuration alone decides data, model and training."""

import pytest
import torch

import fedlada
from fedlada.errors import ExperimentError
from fedlada.experiment.config.reading import experiment, parse
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.execute import run
from fedlada.experiment.run.problem import build, split

DIGITS = ("data.dataset=digits", "data.clients=10")


def configured(*words):
    return experiment(dict(map(parse, (*DIGITS, *words))), source="words")


def parameters(*words):
    return torch.cat([p.flatten() for p in build(configured(*words)).model.parameters()])


def test_the_model_follows_from_the_seed_and_disturbs_no_generator():
    before = torch.get_rng_state()
    assert torch.equal(parameters(), parameters())
    assert not torch.equal(parameters(), parameters("federation.seed=1"))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_validation_split_is_taken_from_the_training_set_alone():
    everything, test = split(configured())
    kept, held_out = split(configured("evaluate.split=validation", "data.validation=0.2"))
    assert len(held_out) == round(0.2 * len(everything))
    assert len(kept) + len(held_out) == len(everything)
    pictures = {bytes(image.flatten().tolist()) for image in everything.inputs}
    again = [bytes(i.flatten().tolist()) for i in (*kept.inputs, *held_out.inputs)]
    assert set(again) == pictures
    assert len(test) == 360


def test_the_validation_split_follows_from_the_seed_of_the_data():
    def held_out(*words):
        return split(configured("evaluate.split=validation", *words))[1].inputs

    assert torch.equal(held_out(), held_out("federation.seed=5"))
    assert not torch.equal(held_out(), held_out("data.seed=5"))


def test_a_client_alone_is_a_federation_of_it():
    everybody = build(configured()).clients
    alone = build(configured("data.only=3", "federation.cohort=1")).clients
    assert len(alone) == 1
    assert torch.equal(alone[0].inputs, everybody[3].inputs)


@pytest.mark.parametrize("name", ["test", "validation"])
def test_metrics_carry_the_name_of_their_split(name):
    problem = build(configured(f"evaluate.split={name}", "evaluate.train_sample=100"))
    assert set(problem.evaluate(problem.model)) == {
        *(f"{name}_loss", f"{name}_accuracy", "train_loss", "train_accuracy")
    }


@pytest.mark.parametrize("model", ["name=lenet", "activation=smu", "name=resnet18"])
def test_models_take_cifar_sized_images(model):
    from fedlada.data import Images
    from fedlada.experiment.run.problem import _model

    images = Images(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    config = experiment(dict([parse(f"model.{model}")]), source="words")
    assert _model(config, images)(torch.zeros(2, 3, 32, 32)).shape == (2, 2)


def test_clients_evaluate_on_held_out_examples_with_the_classes_that_they_train_on():
    words = ("data.concentration=0.05", "evaluate.cohort=all")
    problem = build(configured(*words))
    assert sum(problem.held_out.sizes) == 360
    for client in range(10):
        own = set(problem.clients[client].labels.tolist())
        assert set(problem.held_out[client].labels.tolist()) <= own
    alone = build(configured(*words, "data.only=3", "federation.cohort=1")).held_out
    assert len(alone) == 1
    assert torch.equal(alone[0].inputs, problem.held_out[3].inputs)
    assert build(configured()).held_out is None


def test_the_clients_of_an_experiment_evaluate_and_their_mean_is_the_score(tmp_path):
    """Every test example belongs to one client, so the mean over examples is the server's."""
    words = ("federation.cohort=2", "federation.rounds=2", "train.steps=2", "federation.guard=off")
    words += ("evaluate.cohort=all", "evaluate.tune=3", "engine.workers=2")
    RunDirectory(tmp_path).prepare(configured(*words))
    records = list(run(tmp_path))
    for record in records:
        assert record.evaluated_by == 10
        wanted = record.metrics["test_accuracy"]
        assert record.evaluation["accuracy"] == pytest.approx(wanted, rel=1e-12)
        assert record.evaluation["accuracy_tuned"] > 0
    table = fedlada.frame(tmp_path, by="client")
    assert table.shape[0] == 20
    assert "accuracy_evaluation_worst" in fedlada.frame(tmp_path).columns
    RunDirectory(tmp_path).prepare(configured(*words[:4], "federation.rounds=3"))
    assert [record.evaluated_by for record in run(tmp_path)] == [0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate.tune=3"], "evaluate.cohort is 0"),
        (["evaluate.cohort=all", "engine.name=ray"], "engine.name=process"),
        (["evaluate.cohort=all", "federation.attack=sign-flip"], "without federation.attack"),
    ],
)
def test_what_no_client_can_evaluate_is_refused(words, said):
    with pytest.raises(ExperimentError, match=said):
        configured(*words)
