"""What weights mean: the point of rest that each algorithm has, by clients or by examples.

``weighting="uniform"`` stands for the mean of the clients' losses, ``"examples"`` for the mean of
the examples' losses.
"""

import pytest
import torch

from federations import Federation, Point, local_steps, optimum, quadratics
from fedlada import ALGORITHMS, Plan, algorithm
from fedlada.algorithms.local import SGD

CLIENTS = quadratics(7)
OPTIMA = {
    "uniform": optimum(CLIENTS),
    "examples": optimum([q for q in CLIENTS for _ in range(q.examples)]),
}
SUMS = [name for name, chosen in ALGORITHMS.items() if chosen.sums]
LINEAR = [
    name
    for name, chosen in ALGORITHMS.items()
    if isinstance(chosen.local, SGD) and "rho" not in chosen.settings()
]
"""Their displacements are linear in the gradients, so where these cancel, nothing moves."""
CLAIM = [name for name in SUMS if name in LINEAR]
"""They know each client's gradient at the optimum, so that it is a point of rest however many steps
clients take.  Others claim no optimum; where they keep sums, weights are refused."""


def distance(fed: Federation, weighting: str) -> float:
    return float((fed.x - OPTIMA[weighting]).norm())


def test_the_two_optima_differ():
    assert (OPTIMA["uniform"] - OPTIMA["examples"]).norm() > 0.1


@pytest.mark.parametrize(("cohort", "rounds"), [(7, 40), (3, 100)])
@pytest.mark.parametrize("name", CLAIM)
def test_what_corrects_each_clients_gradients_finds_the_optimum_whoever_takes_part(
    name, cohort, rounds
):
    """Without a guard: so few clients that converge at once are too few to know a limit by."""
    settings = {"a": 0.5} if "a" in ALGORITHMS[name].settings() else {}
    rule = algorithm(name, lr=0.5, weight_decay=0.0, **settings)
    fed = Federation(rule, Point(), CLIENTS, local_steps(4), cohort=cohort)
    fed.run(rounds, guard=None)
    assert distance(fed, "uniform") < 1e-6


@pytest.mark.parametrize("weighting", OPTIMA)
def test_fedavg_stalls_beside_the_optimum(weighting):
    rule = algorithm("fedavg", lr=0.5, weight_decay=0.0)
    fed = Federation(rule, Point(), CLIENTS, local_steps(4), weighting=weighting)
    fed.run(30, guard=None)
    assert distance(fed, weighting) > 1e-2


@pytest.mark.parametrize("name", SUMS)
def test_what_keeps_sums_refuses_weights(name):
    with pytest.raises(ValueError, match="weighting='uniform'"):
        Plan(algorithm=name, weighting="examples")


@pytest.mark.parametrize(
    ("name", "weighting"),
    [(name, w) for w in OPTIMA for name in LINEAR if w == "uniform" or name not in SUMS],
)
def test_all_clients_with_one_step_each_rest_at_the_optimum_of_the_weighting(name, weighting):
    model = Point()
    torch.nn.utils.vector_to_parameters(OPTIMA[weighting].clone(), model.parameters())
    rule = algorithm(name, lr=0.1, weight_decay=0.0)
    fed = Federation(rule, model, CLIENTS, local_steps(1), weighting=weighting)
    fed.run(3)
    assert distance(fed, weighting) < 1e-12
