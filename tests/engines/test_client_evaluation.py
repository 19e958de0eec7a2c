"""Every client of a simulation evaluates the model on data of its own."""

import copy
import json
import warnings
from dataclasses import asdict

import pytest
import torch
from torch import nn

import fedlada
from digits import perceptron
from federations import Point, local_steps, quadratics
from fedlada import ClientEvaluation, Evaluation, FedladaError, LocalTraining, simulate
from fedlada.data import Augment, standardise
from fedlada.training import BINARY, LocalEvaluation, Metric, Objective, Scale
from fedlada.training.evaluation import as_trained

generator = torch.Generator().manual_seed(0)
X = torch.randn(120, 64, generator=generator)
Y = (X[:, :3] + 0.3 * torch.randn(120, 3, generator=generator)).argmax(1)
NAMES = ("Ulm", "Graz", "Bern")
ROWS = (slice(0, 20), slice(20, 45), slice(45, 80))
HELD = (slice(80, 90), slice(90, 95), slice(95, 120))
SITES = {name: (X[rows], Y[rows]) for name, rows in zip(NAMES, ROWS, strict=True)}
HELD_OUT = {name: (X[rows], Y[rows]) for name, rows in zip(NAMES, HELD, strict=True)}
TRAIN = LocalTraining(steps=3, batch_size=5)


def federation(data=SITES, model=None, **settings) -> fedlada.Simulation:
    usual = {"algorithm": "fedavg", "rounds": 2, "train": TRAIN, "quiet": True, "guard": None}
    usual |= {"evaluate_clients": HELD_OUT}
    return simulate(model or perceptron(), data, **usual | settings)


def accuracy(model: nn.Module, data) -> float:
    return Evaluation(data=data)(model)["test_accuracy"]


def test_the_record_has_the_distribution_and_each_site_by_name():
    run = federation()
    last = run.run()[-1]
    alone = {name: accuracy(run.model, data) for name, data in HELD_OUT.items()}
    assert {name: one["accuracy"] for name, one in last.evaluation_clients.items()} == alone
    whole = Evaluation(data=(X[80:], Y[80:]))(run.model)
    assert last.evaluation["accuracy"] == pytest.approx(whole["test_accuracy"], rel=1e-12)
    assert last.evaluation["loss"] == pytest.approx(whole["test_loss"], rel=1e-6)
    assert last.evaluation_median["accuracy"] == sorted(alone.values())[1]
    assert last.evaluation_worst["accuracy"] == min(alone.values())
    assert last.evaluation_worst["loss"] == max(
        one["loss"] for one in last.evaluation_clients.values()
    )
    assert (last.evaluated_by, last.evaluation_failures) == (3, {})


def test_without_names_clients_are_known_by_their_numbers():
    record = federation(list(SITES.values()), evaluate_clients=list(HELD_OUT.values())).run()[-1]
    assert list(record.evaluation_clients) == ["0", "1", "2"]
    named = federation().run()[-1]
    assert list(record.evaluation_clients.values()) == list(named.evaluation_clients.values())


@pytest.mark.parametrize("settings", [{}, {"personal": ("3.*",)}, {"algorithm": "scaffold"}])
def test_evaluation_and_tuning_change_no_bit_of_the_run(settings):
    tuned = ClientEvaluation(data=HELD_OUT, tune=LocalTraining(steps=2))
    runs = [federation(evaluate_clients=how, **settings) for how in (None, HELD_OUT, tuned)]
    before = torch.get_rng_state()
    for run in runs:
        run.run()
    assert torch.equal(before, torch.get_rng_state())
    for run in runs[1:]:
        assert run.state.vectors.x.equal(runs[0].state.vectors.x)
        for client in range(3):
            one, other = (r.model_of(client).state_dict() for r in (run, runs[0]))
            assert all(t.equal(other[name]) for name, t in one.items())


def test_tuning_leaves_no_gradient_no_mode_and_no_buffer_behind():
    """A loop that never zeroes gradients would notice."""

    def careless(model, data, optimizer):
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()

    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
    usual = {"model": model, "train": careless, "buffers": "average", "rounds": 3}
    plain = federation(**usual, evaluate_clients=None)
    tuned = federation(**usual, evaluate_clients=ClientEvaluation(data=HELD_OUT, tune=careless))
    plain.run()
    tuned.run()
    for name, vector in plain.state.vectors.items():
        assert vector.equal(tuned.state.vectors[name])


def test_each_client_has_its_own_head():
    run = federation(personal=("3.*",), rounds=3)
    last = run.run()[-1]
    for name, data in HELD_OUT.items():
        assert last.evaluation_clients[name]["accuracy"] == accuracy(run.model_of(name), data)
    assert len({one["loss"] for one in last.evaluation_clients.values()}) == 3


def test_each_client_has_its_own_buffers():
    model = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 3))
    run = federation(model=model, buffers="local")
    last = run.run()[-1]
    for name, data in HELD_OUT.items():
        assert last.evaluation_clients[name]["accuracy"] == accuracy(run.model_of(name), data)
    assert not run.model_of("Ulm")[0].running_mean.equal(run.model_of("Graz")[0].running_mean)


@pytest.mark.parametrize("settings", [{}, {"personal": ("3.*",)}])
def test_with_workers_the_evaluation_has_the_same_bits(settings):
    how = ClientEvaluation(data=HELD_OUT, tune=LocalTraining(steps=2))
    one, several = (federation(evaluate_clients=how, workers=n, **settings) for n in (1, 2))
    fields = [name for name in asdict(one.run()[-1]) if name.startswith("evaluat")]
    several.run()
    for a, b in zip(one.records, several.records, strict=True):
        assert [getattr(a, name) for name in fields] == [getattr(b, name) for name in fields]
    assert a.evaluation["accuracy_tuned"]


def test_tuning_is_the_local_rule_alone_from_the_servers_model_at_the_rate_of_the_round():
    clients, rounds = quadratics(4), 3
    algorithm = fedlada.algorithm("fedcm", lr=0.1)

    def loss(model, data):
        return {"loss": float(data(model).detach())}

    how = ClientEvaluation(data=clients, evaluate=loss, tune=local_steps(5))
    run = federation(
        clients,
        Point(at=1.0),
        algorithm=algorithm,
        rounds=rounds,
        lr_decay=0.5,
        train=local_steps(3),
        evaluate_clients=how,
    )
    last = run.run()[-1]
    for number, data in enumerate(clients):
        model = copy.deepcopy(run.model)
        metrics = last.evaluation_clients[str(number)]
        assert metrics["loss"] == pytest.approx(loss(model, data)["loss"])
        sgd = torch.optim.SGD(
            model.parameters(),
            lr=0.1 * 0.5 ** (rounds - 1),
            weight_decay=algorithm.local.weight_decay,
        )
        for _ in range(5):
            sgd.zero_grad()
            data(model).backward()
            sgd.step()
        assert metrics["loss_tuned"] == pytest.approx(loss(model, data)["loss"], rel=1e-12)
        assert metrics["loss_tuned"] < metrics["loss"]


def test_it_is_asked_as_often_and_of_as_many_as_it_says():
    every = ClientEvaluation(data=HELD_OUT, every=2, cohort=2)
    assert [r.evaluated_by for r in federation(rounds=5, evaluate_clients=every).run()] == [
        *(0, 2, 0, 2, 2)
    ]
    usual = federation(rounds=3, evaluate_every=2)
    assert [record.evaluated_by for record in usual.run()] == [0, 3, 3]


def test_a_site_without_held_out_examples_is_left_out():
    part = {"Bern": HELD_OUT["Bern"], "Ulm": (X[:0], Y[:0])}
    record = federation(evaluate_clients=part).run()[-1]
    assert list(record.evaluation_clients) == ["Bern"]
    assert (record.evaluated_by, record.evaluation_failures) == (1, {})


def test_held_out_examples_by_owner_find_their_sites_whatever_their_order():
    owners = [name for name, rows in zip(NAMES, ROWS, strict=True) for _ in range(20)[:20]]
    train = fedlada.data.by_owner(X[:60], Y[:60], owners=owners)
    test = fedlada.data.by_owner(X[80:], Y[80:], owners=["Ulm"] * 10 + ["Bern"] * 30)
    run = federation(train, evaluate_clients=test)
    found = run.run()[-1].evaluation_clients
    assert set(found) == {"Ulm", "Bern"}
    assert found["Ulm"]["accuracy"] == accuracy(run.model, (X[80:90], Y[80:90]))


def test_the_objective_says_which_values_are_worst_where_the_name_does_not():
    def far(outputs, labels):
        return (outputs.argmax(1) - labels).abs().double().sum(), torch.tensor(len(labels))

    distance = Objective(
        name="far",
        loss=nn.functional.cross_entropy,
        metrics={"distance": Metric(far, scale=Scale(higher=False, most=None))},
        score="distance",
    )
    evaluate = fedlada.training.LocalEvaluation(objective=distance)
    how = ClientEvaluation(data=HELD_OUT, evaluate=evaluate, tune=TRAIN)
    record = federation(evaluate_clients=how).run()[-1]
    for name in ("distance", "distance_tuned"):
        values = [one[name] for one in record.evaluation_clients.values()]
        assert record.evaluation_worst[name] == max(values) > min(values)


def test_a_run_resumed_has_the_evaluation_of_a_whole_one(tmp_path):
    whole = federation(rounds=3, personal=("3.*",)).run()
    for rounds in (1, 3):
        run = federation(rounds=rounds, personal=("3.*",), checkpoints=tmp_path)
        run.run()
    assert run.records[-1].evaluation_clients == whole[-1].evaluation_clients
    assert json.loads(json.dumps(asdict(run.records[-1])))["evaluation_worst"]


def test_by_default_inputs_are_prepared_and_outputs_judged_as_in_training():
    """Against the same evaluation, spelled out; and of images the plain part of augmenting."""
    sites = {name: (1e3 * x[:, :2], x[:, 0] > 0) for name, (x, _) in SITES.items()}
    prepare = standardise(sites)
    train = LocalTraining(steps=3, batch_size=5, prepare=prepare, loss=BINARY)
    explicit = ClientEvaluation(
        data=sites, evaluate=LocalEvaluation(prepare=prepare, objective=BINARY)
    )
    one, other = (
        federation(sites, lambda: nn.Linear(2, 1), train=train, evaluate_clients=how).run()[-1]
        for how in (sites, explicit)
    )
    assert "auc" in one.evaluation
    assert one.evaluation_clients == other.evaluation_clients
    augment = Augment((0.5,), (0.5,), crop=2, flip=True)
    assert as_trained(LocalTraining(prepare=augment)).prepare == augment.plain


def test_an_evaluation_without_the_scaling_of_the_training_is_warned_of():
    prepare = standardise(SITES)
    train = LocalTraining(steps=1, prepare=prepare)
    with pytest.warns(UserWarning, match="scales its inputs and the evaluation does not"):
        federation(train=train, evaluate=Evaluation(data=HELD_OUT["Ulm"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation(train=train, evaluate=Evaluation(data=HELD_OUT["Ulm"], prepare=prepare))


def test_the_wrong_clients_are_refused_before_the_first_round():
    with pytest.raises(FedladaError, match=r"client is 'Wien'; .* Ulm, Graz, Bern"):
        federation(evaluate_clients={"Wien": HELD_OUT["Ulm"]})
    with pytest.raises(FedladaError, match=r"of 2 clients, and the federation has 3; .* dict"):
        federation(evaluate_clients=list(HELD_OUT.values())[:2])
    with pytest.raises(FedladaError, match="tune is given and data is not"):
        ClientEvaluation(tune=TRAIN)
    with pytest.raises(FedladaError, match="every is 0"):
        ClientEvaluation(data=HELD_OUT, every=0)
    with pytest.raises(FedladaError, match="evaluate is 3"):
        ClientEvaluation(data=HELD_OUT, evaluate=3)


def test_an_error_names_the_site():
    def broken(model, data):
        raise ZeroDivisionError("no rows")

    how = ClientEvaluation(data=HELD_OUT, evaluate=broken)
    with pytest.raises(fedlada.TrainingError, match=r"^client 0 \(Ulm\), round 1: ZeroDivision"):
        federation(evaluate_clients=how).run()
