"""Clients with names: a dict of sites, owners, or data with the attribute ``names``."""

import pytest
import torch

import fedlada
from digits import perceptron
from fedlada import FedladaError, LocalTraining, simulate
from fedlada.engines.sites import names_of

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(30, 64, generator=generator), torch.arange(30) % 3
SITES = {"Ulm": (X[:10], Y[:10]), "Graz": (X[10:22], Y[10:22]), "Bern": (X[22:], Y[22:])}
TRAIN = LocalTraining(steps=2, batch_size=5)


def federation(data, **settings) -> fedlada.Simulation:
    usual = {"algorithm": "fedavg", "rounds": 2, "train": TRAIN, "quiet": True}
    return simulate(perceptron(), data, **usual | settings)


def test_a_dict_of_sites_is_the_run_of_a_list_of_their_data():
    named, numbered = federation(SITES), federation(list(SITES.values()))
    named.run()
    numbered.run()
    assert named.state.vectors.x.equal(numbered.state.vectors.x)
    assert (named.names, numbered.names) == (("Ulm", "Graz", "Bern"), ())


def test_a_client_may_be_asked_for_by_its_name():
    run = federation(SITES, personal=("3.*",))
    run.run()
    one, other = run.model_of("Graz").state_dict(), run.model_of(1).state_dict()
    assert all(t.equal(other[name]) for name, t in one.items())
    with pytest.raises(FedladaError, match=r"'Wien'; .* from 0 to 2; their names are Ulm, Graz"):
        run.model_of("Wien")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_the_site(workers):
    def loop(model, data, optimizer):
        return TRAIN(model, data, optimizer) | {"sum": 1 / (len(data[1]) - 12)}

    said = r"^client 1 \(Graz\), round 1: ZeroDivisionError"
    with pytest.raises(fedlada.TrainingError, match=said):
        federation(SITES, train=loop, workers=workers).run()


def test_owners_are_names_and_other_attributes_of_that_name_are_not():
    owners = fedlada.data.by_owner(X, Y, owners=["b", "a", "a"] * 10)
    assert names_of(owners) == federation(owners).names == ("a", "b")

    class Table(list):
        names = ("age", "weight")

    assert names_of(Table([1, 2, 3])) == ()
    assert names_of(Table([1, 2])) == ("age", "weight")
    twice = Table([1, 2])
    twice.names = ("a", "a")
    assert names_of(twice) == ()


def test_no_site_is_no_federation():
    with pytest.raises(FedladaError, match="of 0 clients"):
        simulate(perceptron(), {})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_site_whose_replies_are_turned_away_is_named_in_records_and_at_the_end(workers):
    """The loop of one site returns parameters that are not finite; that of another is slow."""

    def loop(model, data, optimizer):
        if len(data[1]) == 8:
            for _ in range(40):
                TRAIN(model, data, optimizer)
        metrics = TRAIN(model, data, optimizer)
        if len(data[1]) == 12:
            with torch.no_grad():
                model[1].bias.fill_(float("nan"))
        return metrics

    run = federation(SITES, train=loop, workers=workers)
    with pytest.warns(UserWarning, match=r"delta not finite 2x.*, of Graz 2x"):
        run.run()
    for record in run.records:
        assert record.rejected == {"delta not finite": 1}
        assert record.incidents["Graz"] == "delta not finite"
        limited = {why for name, why in record.incidents.items() if name != "Graz"}
        assert bool(limited) == bool(record.limited)
        assert all(why.startswith("limited ") for why in limited)
    alone, said = federation({"Graz": SITES["Graz"]}, train=loop), "delta not finite 2x, of Graz 2x"
    with pytest.warns(UserWarning, match=said), pytest.raises(FedladaError, match=said):
        alone.run()
