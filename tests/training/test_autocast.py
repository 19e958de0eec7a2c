"""Training in bfloat16 by torch's autocast, on a CPU, which computes it more slowly."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import fedlada
from fedlada import Checkpoints, FedladaError, LocalTraining
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.run.problem import build
from fedlada.privacy import PrivateTraining

FULL = LocalTraining(steps=10, batch_size=20)
HALF = dataclasses.replace(FULL, autocast="bfloat16")

X = torch.randn(4, 60, 6, generator=torch.Generator().manual_seed(0))
CLIENTS = [(x, (x[:, 0] > 0).long()) for x in X]


def network(outputs: int = 2) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def trained(train: LocalTraining, data=CLIENTS, model=None, *, lr=0.5, **settings):
    model = network() if model is None else model
    run = fedlada.simulate(
        model, data, algorithm="fedavg", lr=lr, rounds=3, train=train, quiet=True, **settings
    )
    return run, run.run()


def test_layers_compute_in_bfloat16_and_parameters_stay_in_float32():
    seen = set()
    model = network()
    model[0].register_forward_hook(lambda layer, inputs, output: seen.add(output.dtype))
    run, _ = trained(HALF, model=model)
    assert seen == {torch.bfloat16}
    assert {t.dtype for t in run.state.vectors.x} == {torch.float32}


def test_it_learns_as_in_float32_up_to_the_rounding_of_bfloat16():
    (half, records), (full, exact) = trained(HALF), trained(FULL)
    assert not half.state.vectors.x.equal(full.state.vectors.x)
    for one, other in zip(records, exact, strict=True):
        assert one.client_metrics["loss"] == pytest.approx(other.client_metrics["loss"], abs=0.02)
    assert records[-1].client_metrics["loss"] < 0.7 * records[0].client_metrics["loss"]


def test_a_loss_gets_outputs_and_labels_in_float32():
    seen = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append((outputs.dtype, labels.dtype, labels.tolist()))
        return nn.functional.mse_loss(outputs, labels)

    rows = [(x, x[:, 0]) for x in X]
    trained(dataclasses.replace(HALF, loss=loss), rows, network(outputs=1), lr=0.02)
    known = {float(v) for v in X[:, :, 0].flatten()}
    for outputs, labels, values in seen:
        assert (outputs, labels) == (torch.float32, torch.float32)
        assert known.issuperset(values), "a column of outputs is compared with labels as they are"


def test_a_model_in_float64_is_not_rounded():
    data = [(x.double(), y) for x, y in CLIENTS]
    (half, _), (full, _) = (trained(t, data, network().double()) for t in (HALF, FULL))
    assert half.state.vectors.x.equal(full.state.vectors.x)


def test_a_resumed_run_must_train_in_the_same_type(tmp_path):
    trained(FULL, checkpoints=Checkpoints(tmp_path))
    with pytest.raises(FedladaError, match=r'train\.autocast is "bfloat16" and was not there'):
        trained(HALF, checkpoints=Checkpoints(tmp_path))


@pytest.mark.parametrize("wrong", ["float16", "bf16", torch.bfloat16, True])
def test_other_types_are_refused(wrong):
    with pytest.raises(FedladaError, match=r"must be 'bfloat16'.*GradScaler"):
        LocalTraining(autocast=wrong)


def test_examples_that_are_protected_are_trained_on_in_the_type_of_the_model():
    with pytest.raises(FedladaError, match="leave autocast out"):
        PrivateTraining(noise=1.0, autocast="bfloat16")


def test_an_experiment_names_it_and_is_another_run_with_it():
    keys = {"data.dataset": "digits", "data.clients": 5, "federation.cohort": 5}
    plain, cast = (
        experiment(keys | more, source="keys") for more in ({}, {"train.autocast": "bfloat16"})
    )
    assert build(cast).train.autocast == "bfloat16"
    assert build(plain).train.autocast is None
    assert [key for key, *_ in plain.differences(cast)] == ["train.autocast"]
