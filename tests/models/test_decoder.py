"""The decoder sees no later byte, is judged by bits per byte, and runs with every algorithm."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import fedlada
from federations import KINDS
from fedlada.errors import FedladaError
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.run.problem import build
from fedlada.models import MODELS, Decoder
from plays import archive

ROWS = torch.randint(0, 128, (3, 16), generator=torch.Generator().manual_seed(0))


def decoder(**settings):
    torch.manual_seed(0)
    return Decoder(**{"context": 16, "width": 12, "layers": 2, "heads": 3} | settings)


def test_parameter_count_is_that_of_its_layers():
    width, layers, context, symbols = 48, 2, 32, 128
    block = 12 * width**2 + 9 * width + 4 * width  # weights, biases, two norms
    count = 2 * symbols * width + context * width + layers * block + 2 * width
    assert sum(p.numel() for p in Decoder().parameters()) == count == 70_464


def test_a_later_byte_changes_no_earlier_output():
    model = decoder().eval()
    changed = ROWS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 128
    before, after = model(ROWS), model(changed)
    assert torch.equal(before[:, :, :9], after[:, :, :9])
    assert not torch.allclose(before[:, :, 9:], after[:, :, 9:])


def test_outputs_are_as_cross_entropy_takes_them_and_all_parameters_learn():
    model = decoder()
    logits = model(ROWS)
    assert logits.shape == (3, 128, 16)
    cross_entropy(logits, ROWS).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert not list(model.buffers())


def test_a_shorter_row_is_the_beginning_of_a_longer_one():
    model = decoder()
    torch.testing.assert_close(model(ROWS[:, :7]), model(ROWS)[:, :, :7])


def test_training_and_evaluation_compute_the_same():
    model = decoder()
    assert torch.equal(model.train()(ROWS), model.eval()(ROWS))


def test_bits_per_byte_are_the_binary_logarithm_where_nothing_is_known():
    evaluation = fedlada.Evaluation(data=(ROWS, ROWS), objective=fedlada.training.TEXT)
    model = decoder()
    torch.nn.init.zeros_(model.head.weight)
    assert evaluation(model) == {"test_bits": pytest.approx(math.log2(128))}
    assert evaluation.score == "test_bits"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"heads": 5}, "model.width is 12 and model.heads is 5; the width must be a multiple"),
        ({"layers": 0}, "model.layers is 0; it must be positive"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(settings, sentence):
    with pytest.raises(FedladaError, match=sentence):
        decoder(**settings)


def test_pictures_are_no_text():
    pictures = fedlada.data.Examples(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]))
    with pytest.raises(FedladaError, match="decoder takes rows of whole numbers"):
        MODELS["decoder"](pictures)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    flat = {
        "data.dataset": "shakespeare",
        "data.options.directory": str(archive(tmp_path_factory.mktemp("plays"))),
        "model.width": 12,
        "train.steps": 2,
        "train.batch_size": 4,
        "train.clip_norm": 1.0,
        "federation.cohort": 2,
    }
    return build(experiment(flat, source="test"))


@pytest.mark.parametrize("name", KINDS)
def test_it_runs_with_every_algorithm_and_twice_the_same(problem, name):
    lr = 0.1 if name in ("fedavg", "fedcm", "scaffold") else 0.01
    scores = [
        [
            record.metrics["test_bits"]
            for record in fedlada.simulate(
                problem.model,
                problem.clients,
                train=problem.train,
                evaluate=problem.evaluate,
                algorithm=fedlada.algorithm(name, lr=lr),
                rounds=2,
                cohort=fedlada.server.FixedSize(2),
            )
        ]
        for _ in range(2)
    ]
    assert scores[0] == scores[1]
    assert all(map(math.isfinite, scores[0]))
    assert scores[0][0] != problem.evaluate(problem.model)["test_bits"]
