"""Finding, changing and inventing algorithms by name."""

import ast
import re
import sys
import types

import pytest

import fedlada
from fedlada import Algorithm, algorithm
from fedlada.algorithms import LocalRule, compose
from fedlada.algorithms.corrections import LESAM, SAM, Amend, AmendAdded, Prox, Scaffold
from fedlada.algorithms.local import SGD, AMSGrad, Lion, SharedMuon
from fedlada.algorithms.registry import FORMER, title
from fedlada.algorithms.server_rules import ExP, ServerAdam
from fedlada.experiment.config.cells import cells
from places import ROOT


def test_settings_reach_the_part_that_owns_them():
    chosen = algorithm("fedlada", lr=0.01, alpha=0.05, server_lr=0.5)
    assert chosen == Algorithm(
        Amend(AMSGrad(lr=0.01, weight_decay=1e-3), alpha=0.05),
        server=fedlada.algorithms.server_rules.Averaging(server_lr=0.5),
    )
    assert algorithm("fedlada").settings()["alpha"] == 0.1, "the registry itself is not changed"


@pytest.mark.parametrize(
    ("wrong", "right"), [("fedlda", "fedlada"), ("FedAvg", "fedavg"), ("fedprx", "fedprox")]
)
def test_a_wrong_name_is_answered_with_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=f"did you mean '{right}'"):
        algorithm(wrong)


@pytest.mark.parametrize("former", FORMER)
def test_a_former_name_works_and_warns_with_the_one_of_today(former):
    with pytest.warns(DeprecationWarning, match=re.escape(f"{former!r} is now")) as warned:
        chosen = algorithm(former, lr=0.25)
    now = ast.literal_eval(str(warned[0].message).partition("is now ")[2].partition("; write")[0])
    assert chosen == algorithm(now, lr=0.25)
    assert title(chosen) not in FORMER


def test_a_wrong_setting_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'alpha'"):
        algorithm("fedcm", alfa=0.2)
    with pytest.raises(ValueError, match="no setting of this algorithm"):
        algorithm("fedavg", alpha=0.2)


def test_any_composition_by_name_is_the_one_by_code():
    by_config = algorithm(
        {"local": "amsgrad", "corrections": ["scaffold", "amend"], "server": "adam", "alpha": 0.2}
    )
    assert by_config == Algorithm(Scaffold(Amend(AMSGrad(), alpha=0.2)), server=ServerAdam())
    with pytest.raises(ValueError, match="did you mean 'amsgrad'"):
        compose(local="amsgad")
    with pytest.raises(ValueError, match="no correction 'adam'"):
        compose(corrections=["adam"])
    with pytest.raises(ValueError, match="no server rule"):
        compose(server="sgd")


def test_an_outside_algorithm_needs_no_edit_here(monkeypatch):
    module = types.ModuleType("somebody_elses")
    module.NAME, module.WRONG = Algorithm(Prox(SGD(), mu=0.5)), SGD()
    monkeypatch.setitem(sys.modules, "somebody_elses", module)
    assert algorithm("somebody_elses:NAME", mu=0.25).settings()["mu"] == 0.25
    for path in ("somebody_elses:MISSING", "nobody:NAME"):
        with pytest.raises(ValueError, match=r"package\.module:NAME"):
            algorithm(path)
    with pytest.raises(ValueError, match="is a SGD; it must be an Algorithm"):
        algorithm("somebody_elses:WRONG")


def test_a_chain_must_end_in_a_local_rule_and_share_no_vector():
    with pytest.raises(ValueError, match="declared twice"):
        Algorithm(Amend(Amend(SGD())))
    with pytest.raises(ValueError, match="must end in a local rule"):
        Algorithm(fedlada.algorithms.Part())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SGD(lr=0.0),
        lambda: SGD(weight_decay=-1.0),
        lambda: AMSGrad(betas=(0.9, 1.0)),
        lambda: AMSGrad(eps=0.0),
        lambda: Amend(SGD(), alpha=0.0),
        lambda: Prox(SGD(), mu=-1.0),
        lambda: Scaffold(SGD(), scale=-1.0),
        lambda: fedlada.algorithms.corrections.Dyn(SGD(), a=0.0),
        lambda: ServerAdam(server_lr=0.0),
        lambda: ServerAdam(server_betas=(0.9, 1.0)),
        lambda: fedlada.algorithms.server_rules.Momentum(momentum=1.0),
        lambda: AmendAdded(SGD(), alpha=0.0),
        lambda: SAM(SGD(), rho=0.0),
        lambda: LESAM(SGD(), rho=-1.0),
        lambda: Lion(betas=(0.9, 1.0)),
        lambda: SharedMuon(beta=1.0),
        lambda: ExP(server_eps=0.0),
    ],
)
def test_hyper_parameters_are_validated_where_they_are_written(wrong):
    with pytest.raises(ValueError, match=r"is .*; it must be"):
        wrong()


def test_the_papers_defaults():
    fedlada_, fedavg = algorithm("fedlada-paper").settings(), algorithm("fedavg").settings()
    assert {
        k: fedlada_[k] for k in ("alpha", "betas", "eps", "lr", "server_lr", "weight_decay")
    } == {
        "alpha": 0.1,
        "betas": (0.9, 0.99),
        "eps": 1e-8,
        "lr": 0.001,
        "server_lr": 1.0,
        "weight_decay": 0.01,
    }
    assert (fedavg["lr"], fedavg["weight_decay"]) == (0.1, 0.001)
    fedadam = algorithm({"local": "sgd", "server": "adam"}).settings()  # experiments/paper
    assert (fedadam["server_lr"], fedadam["server_v0"]) == (0.1, 0.01)


def test_fedlada_has_the_settings_of_its_figure():
    """The file of the figure in choosing.md; only the name of fedlada-paper differs otherwise."""
    (run, *_) = [c for c in cells(ROOT / "experiments/desk/main.toml").values() if not c.label]
    assert run.algorithm == "fedlada"
    assert run.optimizer() == algorithm("fedlada") != algorithm("fedlada-paper")
    assert title(algorithm("fedlada-paper")) == "fedlada-paper"
    assert title(algorithm("fedlada-paper", lr=0.5)) == "fedlada"


def test_vectors_per_client_are_those_of_the_literature():
    expected = {
        "fedavg": (1, 1, 0),
        "fedprox": (1, 1, 0),
        "fedadam": (1, 1, 0),
        "feddyn": (1, 1, 1),
        "fedcm": (2, 1, 0),
        "localadam": (2, 2, 0),
        "scaffold": (2, 2, 1),
        "fedlada": (3, 2, 0),
        "fednova": (1, 1, 0),
        "fedacg": (1, 1, 0),
        "fedexp": (1, 1, 0),
        "fedams": (1, 1, 0),
        "fedada2": (1, 1, 0),
        "fedsam": (1, 1, 0),
        "mofedsam": (2, 1, 0),
        "fedlesam": (1, 1, 1),
        "diloco": (1, 1, 2),
        "fedlion": (2, 2, 0),
        "sharedmuon": (2, 2, 0),
        "fedlalr": (3, 3, 0),
        "freshmuon": (1, 1, 0),
        "keptmuon": (1, 1, 1),
        "fedmuon-corrected": (2, 2, 1),
        "muloco": (1, 1, 1),
        "localadamw": (1, 1, 0),
        "scaffold-exp": (2, 2, 1),
        "fedgamma": (2, 2, 1),
        "fedlesam-s": (2, 2, 2),
        "fedlesam-d": (1, 1, 2),
        "fedadamw": (2, 1, 0),
        "fedmuon": (3, 2, 0),
    }
    for name, vectors in expected.items():
        traffic = algorithm(name).traffic
        assert (traffic.down, traffic.up, traffic.client_state) == vectors


def test_every_local_rule_can_be_subclassed_outside():
    class SignSGD(LocalRule):
        def step(self, c, g, lr):
            c.y.add_(g.sign(), alpha=-lr * self.lr_scale)

    chosen = Algorithm(Amend(SignSGD(lr=0.1, weight_decay=0.0)))
    assert chosen.traffic.down == 2
