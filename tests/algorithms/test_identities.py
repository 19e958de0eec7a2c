"""The identities that every algorithm must satisfy, in float64 on problems with known answers."""

import runpy

import pytest
import torch
from torch.testing import assert_close

from federations import (
    Federation,
    Point,
    Quadratic,
    flat,
    local_steps,
    quadratics,
    same_bits,
)
from fedlada import Algorithm, algorithm
from fedlada.algorithms import Round, Vector, Vectors
from fedlada.algorithms.corrections import Amend, Scaffold
from fedlada.algorithms.local import SGD, AMSGrad
from fedlada.algorithms.server_rules import Adagrad, Momentum, ServerAdam, Yogi
from places import ROOT

ROUNDS, K = 4, 5
AMSGRAD = {"local": "amsgrad"}


def federation(chosen: Algorithm, **changes) -> Federation:
    settings = {
        "model": Point(),
        "data": quadratics(8),
        "train": local_steps(K, noise=0.3),
        "cohort": 3,
        "lr_decay": 0.9,
    }
    return Federation(chosen, **settings | changes)


def torch_steps(model: Point, data: Quadratic, optimizer, steps: int) -> torch.Tensor:
    for _ in range(steps):
        optimizer.zero_grad()
        data(model).backward()
        optimizer.step()
    return model.flat().detach()


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_fedavg_with_one_client_is_torch_sgd(weight_decay):
    data = quadratics(1)
    fed = federation(
        algorithm("fedavg", weight_decay=weight_decay),
        data=data,
        train=local_steps(K),
        cohort=1,
        lr_decay=1.0,
    )
    fed.run(ROUNDS)
    model = Point()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=weight_decay)
    assert_close(fed.x, torch_steps(model, data[0], sgd, ROUNDS * K), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "neutral"),
    [("fedprox", {"mu": 0.0}), ("fedcm", {"alpha": 1.0}), ("scaffold", {"scale": 0.0})],
)
def test_a_correction_that_corrects_nothing_is_fedavg(name, neutral):
    plain, corrected = federation(algorithm("fedavg")), federation(algorithm(name, **neutral))
    plain.run(ROUNDS)
    corrected.run(ROUNDS)
    assert plain.vectors.x.equal(corrected.vectors.x)


CANDIDATES = ROOT / "experiments/successor/candidates.py"


def candidate(name: str) -> type[Amend]:
    found: type[Amend] = runpy.run_path(str(CANDIDATES))[name]
    return found


def test_amending_the_gradient_or_the_direction_is_the_same_over_sgd():
    sgd = SGD(lr=0.1, weight_decay=0.0)
    gradient, direction = (
        federation(Algorithm(correction(sgd, alpha=0.2)))
        for correction in (candidate("AmendGradient"), Amend)
    )
    gradient.run(ROUNDS)
    direction.run(ROUNDS)
    assert_close(gradient.x, direction.x, rtol=1e-12, atol=1e-12)


def test_amending_by_what_equal_clients_have_in_common_is_amending():
    equal = {"data": quadratics(1) * 8, "train": local_steps(K)}
    common, amended = (
        federation(Algorithm(correction(AMSGrad(), alpha=0.2)), **equal)
        for correction in (candidate("AmendCommon"), Amend)
    )
    common.run(ROUNDS)
    amended.run(ROUNDS)
    assert_close(common.x, amended.x, rtol=1e-12, atol=1e-12)


def test_before_it_amends_a_client_takes_its_own_steps_at_its_own_rate():
    later = federation(Algorithm(candidate("AmendLater")(AMSGrad(lr=0.02), first=2, alone=0.5)))
    plain = federation(algorithm(AMSGRAD, lr=0.01))
    later.run(2)
    plain.run(2)
    assert_close(later.x, plain.x, rtol=1e-12, atol=1e-12)
    assert all(t.count_nonzero() for t in later.vectors.g_a)
    later.run(1)
    plain.run(1)
    assert not torch.allclose(later.x, plain.x, rtol=1e-6)


def test_fedlada_that_amends_nothing_is_amsgrad():
    amended, plain = (
        federation(algorithm("fedlada-paper", alpha=1.0)),
        federation(algorithm(AMSGRAD)),
    )
    amended.run(ROUNDS)
    plain.run(ROUNDS)
    assert same_bits(amended.vectors.only(["x", "v"]), plain.vectors)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("name", [AMSGRAD, "localadam"], ids=str)
def test_one_round_of_one_client_is_torch_adam_without_bias_correction(name, decoupled):
    data = quadratics(1)
    chosen = algorithm(name, lr=0.01, weight_decay=0.1, decoupled_weight_decay=decoupled)
    fed = federation(chosen, data=data, train=local_steps(K), cohort=1, lr_decay=1.0)
    fed.run(1)
    model = Point()
    amsgrad = name == AMSGRAD
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    adam = kind(
        model.parameters(), lr=0.01, betas=(0.9, 0.99), eps=0, weight_decay=0.1, amsgrad=amsgrad
    )
    for p in model.parameters():
        adam.state[p] = {
            "step": torch.tensor(1e9),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.full_like(p, 1e-16),
            "max_exp_avg_sq": torch.full_like(p, 1e-16),
        }
    expected = torch_steps(model, data[0], adam, K)
    assert_close(fed.x, expected, rtol=1e-12, atol=1e-12)
    second_moment = [
        adam.state[p]["max_exp_avg_sq" if amsgrad else "exp_avg_sq"] for p in model.parameters()
    ]
    assert_close(flat(fed.vectors.v), flat(Vector(second_moment)), rtol=1e-12, atol=0)


def test_scaffold_after_one_full_batch_step_keeps_the_gradient():
    data = quadratics(8)
    fed = federation(
        algorithm("scaffold", weight_decay=0.3), data=data, train=local_steps(1), cohort=8
    )
    before = fed.x
    fed.run(1)
    for client, q in enumerate(data):
        assert_close(flat(fed.kept(client).c_i), q.h * (before - q.b))


@pytest.mark.parametrize(
    "chosen", [Scaffold(SGD()), Scaffold(Amend(AMSGrad())), Amend(Scaffold(SGD()))]
)
def test_scaffold_c_is_the_mean_of_all_c_i_under_partial_participation(chosen):
    fed = federation(Algorithm(chosen))
    for _ in range(6):
        fed.run(1)
        kept = [fed.kept(client) for client in range(8)]
        c_i = [flat(k.c_i) if k else torch.zeros(6, dtype=torch.float64) for k in kept]
        assert_close(flat(fed.vectors.c), torch.stack(c_i).mean(0), rtol=1e-12, atol=1e-14)


def test_scaffold_over_sgd_keeps_what_the_displacement_form_says():
    fed = federation(algorithm("scaffold", weight_decay=0.0), data=quadratics(3), cohort=1)
    for _ in range(6):
        c, old = flat(fed.vectors.c), [flat_or_zero(fed.kept(i)) for i in range(3)]
        before = fed.x
        record = fed.run(1)[0]
        (client,) = record.cohort
        delta = before - fed.x  # one client, server_lr 1
        expected = old[client] - c + delta / (K * record.lr)
        assert_close(flat(fed.kept(client).c_i), expected, rtol=1e-10, atol=1e-12)


def flat_or_zero(kept: Vectors) -> torch.Tensor:
    return flat(kept.c_i) if kept else torch.zeros(6, dtype=torch.float64)


@pytest.mark.parametrize("decoupled", [False, True])
def test_g_a_is_the_exponential_average_of_the_clients_directions(decoupled):
    """g_a' = α · mean of the local directions + (1-α) g_a, also while the rate decays."""
    alpha, weight_decay = 0.3, 0.1
    chosen = Amend(
        AMSGrad(weight_decay=weight_decay, decoupled_weight_decay=decoupled), alpha=alpha
    )
    directions = []

    def train(model: Point, data: Quadratic, optimizer) -> None:
        y, m = model.flat().detach().clone(), torch.zeros(6, dtype=torch.float64)
        v = v_hat = flat(fed.vectors.v)
        for _ in range(K):
            optimizer.zero_grad()
            data(model).backward()
            y = model.flat().detach().clone()
            g = data.h * (y - data.b) + (0 if decoupled else weight_decay * y)
            m = 0.9 * m + 0.1 * g
            v = 0.99 * v + 0.01 * g * g
            v_hat = torch.maximum(v, v_hat)
            directions.append(m / v_hat.sqrt() + (weight_decay * y if decoupled else 0))
            optimizer.step()

    fed = federation(Algorithm(chosen), train=train, lr_decay=0.8)
    for _ in range(5):
        directions.clear()
        old = flat(fed.vectors.g_a)
        fed.run(1)
        expected = alpha * torch.stack(directions).mean(0) + (1 - alpha) * old
        assert_close(flat(fed.vectors.g_a), expected, rtol=1e-9, atol=1e-12)


def test_g_a_is_the_papers_difference_of_server_models():
    fed = federation(algorithm("fedlada", server_lr=0.7))
    for _ in range(4):
        before = fed.x
        record = fed.run(1)[0]
        expected = (before - fed.x) / (0.7 * record.lr * K)
        assert_close(flat(fed.vectors.g_a), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        SGD(lr=0.4, weight_decay=0.01),
        AMSGrad(lr=0.4, weight_decay=0.01, eps=1.0),
        AMSGrad(lr=0.4, weight_decay=0.01, eps=1.0, betas=(0.0, 0.99), decoupled_weight_decay=True),
    ],
)
def test_amended_weight_decay_settles_where_the_penalised_loss_is_least(rule):
    """h/(h+λ), not h/(h+λ/α): fed back through g_a, decay outside the mix would be λ/α.

    eps 1 makes √v̂ = 1.  Decoupled decay is not averaged by β1 as the gradient is (m starts at 0
    in every round), so its fixed point is the same only without momentum.
    """
    h, weight_decay = 0.5, 0.01
    one = torch.ones(6, dtype=torch.float64)
    fed = federation(
        Algorithm(Amend(rule, alpha=0.3)),
        data=[Quadratic(h * one, one)],
        train=local_steps(K),
        cohort=1,
        lr_decay=1.0,
    )
    fed.run(100)
    assert_close(fed.x, h / (h + weight_decay) * one, rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", ["fedlada", AMSGRAD, "localadam"], ids=str)
def test_v_never_falls_below_its_floor(name):
    eps = 0.5
    fed = federation(algorithm(name, eps=eps))
    for _ in range(10):
        fed.run(1)
        assert flat(fed.vectors.v).min() >= eps**2


@pytest.mark.parametrize("name", ["fedlada", AMSGRAD], ids=str)
def test_v_hat_is_at_least_the_broadcast_v(name):
    fed = federation(algorithm(name))
    for _ in range(6):
        before = flat(fed.vectors.v)
        fed.run(1)  # v is the mean of the v̂_i, each at least the broadcast
        assert (flat(fed.vectors.v) >= before).all()


def test_warm_start_only_divides_the_rate():
    cold, warm = algorithm("fedlada", alpha=0.1), algorithm("fedlada", alpha=0.1, warm_start=True)
    for t in range(5):
        assert warm.lr(t, decay=0.9) == pytest.approx(cold.lr(t, decay=0.9) / (1 - 0.9 ** (t + 1)))


def test_unequal_steps_divide_g_a_by_their_mean():
    data = quadratics(2)

    def train(model, q, optimizer):
        return local_steps(2 if q is data[0] else 6)(model, q, optimizer)

    fed = federation(algorithm("fedcm"), data=data, train=train, cohort=2)
    before = fed.x
    record = fed.run(1)[0]
    assert record.steps == 4
    assert_close(flat(fed.vectors.g_a), (before - fed.x) / (record.lr * 4))


def server_run(server, deltas: list[torch.Tensor]) -> torch.Tensor:
    chosen = Algorithm(SGD(), server=server)
    s = chosen.start(Vector([torch.ones(4, dtype=torch.float64)]))
    for t, d in enumerate(deltas):
        chosen.serve(s, Vectors(delta=Vector([d])), Round(steps=1, lr_sum=1, updates=t))
    return flat(s.x)


def torch_run(make, deltas: list[torch.Tensor]) -> torch.Tensor:
    p = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = make([p])
    for d in deltas:
        p.grad = d.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize(
    ("server", "oracle"),
    [
        (Momentum(server_lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)),
        (
            ServerAdam(server_v0=0.0, server_betas=(0.0, 0.99)),
            lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.99, eps=1e-3),
        ),
        (
            Adagrad(server_v0=0.25),
            lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3, initial_accumulator_value=0.25),
        ),
    ],
)
def test_a_server_rule_is_its_torch_optimizer_on_the_mean_displacement(server, oracle):
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(7)]
    assert_close(server_run(server, deltas), torch_run(oracle, deltas), rtol=1e-12, atol=1e-12)


def test_yogi_moves_v_by_at_most_the_new_square():
    """Reddi et al.: v - (1-β2) d² sign(v - d²), so v meets d² without overshooting its size."""
    yogi = Yogi()
    v, d = Vector([torch.tensor([4.0, 0.01, 1.0])]), Vector([torch.tensor([1.0, 1.0, 1.0])])
    expected = torch.tensor([4.0 - 0.01, 0.01 + 0.01, 1.0])
    assert_close(flat(yogi.second_moment(v, d)), expected)
