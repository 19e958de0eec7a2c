"""The configuration alone decides data, model and training."""

import pytest
import torch

from fedlada.experiment.config.reading import experiment, parse
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
