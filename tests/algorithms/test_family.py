"""What FedLADA's relatives and rivals must satisfy, in float64 on problems with known answers."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from algorithms.test_identities import server_run, torch_run, torch_steps
from federations import Federation, Point, Quadratic, flat, local_steps, quadratics
from fedlada import Algorithm, LocalTraining, algorithm
from fedlada.algorithms import ALGORITHMS, Round, Vector, Vectors
from fedlada.algorithms.corrections import LESAM, SAM, Amend, AmendAdded, Nova, Prox
from fedlada.algorithms.local import SGD, AdamW, AdamWRows, AMSGrad, Lion, SharedMuon
from fedlada.algorithms.server_rules import Averaging, ExP, Momentum, Nesterov, ServerAMSGrad
from fedlada.data import ClientData
from fedlada.server.collect.collect import new_tally
from fedlada.server.loop import next_task

ROUNDS, K = 4, 5
ONE = {"cohort": 1, "lr_decay": 1.0}


def federation(chosen: Algorithm, **changes) -> Federation:
    settings = {"data": quadratics(8), "train": local_steps(K, noise=0.3), "cohort": 3}
    settings |= {"model": Point(), "lr_decay": 0.9}
    return Federation(chosen, **settings | changes)


def random_deltas(rounds: int = 7) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(rounds)]


def unequal(model, data, optimizer):
    """As many steps as a client has examples."""
    return local_steps(len(data))(model, data, optimizer)


def test_nesterov_on_the_server_is_torch_sgd_on_the_mean_displacement():
    deltas = random_deltas()
    oracle = torch_run(lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True), deltas)
    assert_close(server_run(Nesterov(server_lr=0.7), deltas), oracle, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [Momentum, Nesterov])
def test_momentum_that_forgets_at_once_is_averaging(rule):
    plain, forgetful = (
        federation(Algorithm(SGD(), server=server)) for server in (Averaging(), rule(momentum=0.0))
    )
    plain.run(ROUNDS)
    forgetful.run(ROUNDS)
    assert plain.vectors.x.equal(forgetful.vectors.x)


def test_prox_under_nesterov_broadcasts_the_model_of_fedacg():
    """FedACG as it is written: the server keeps z and m and sends z ahead by lam m."""
    lam, mu, data = 0.85, 0.3, quadratics(3)
    sgd = SGD(lr=0.1, weight_decay=0.0)
    chosen = Algorithm(Prox(sgd, mu=mu), server=Nesterov(momentum=lam))
    fed = federation(chosen, data=data, train=local_steps(K), cohort=3, lr_decay=1.0)
    z, m = fed.x, torch.zeros(6, dtype=torch.float64)
    for _ in range(ROUNDS):
        ahead = z - lam * m
        assert_close(fed.x, ahead, rtol=1e-12, atol=1e-12)
        clients = [ahead.clone() for _ in data]
        for y, q in zip(clients, data, strict=True):
            for _ in range(K):
                y -= 0.1 * (q.h * (y - q.b) + mu * (y - ahead))
        m = lam * m + ahead - torch.stack(clients).mean(0)
        z = z - m
        fed.run(1)


def test_fedams_is_torch_amsgrad_where_no_floor_is_reached():
    """With the floor at 1e-30 and the bias corrected out of both."""
    deltas = random_deltas()
    ours = server_run(ServerAMSGrad(server_eps=1e-30), deltas)

    def oracle(p):
        adam = torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99), eps=0, amsgrad=True)
        for t in p:
            zeros = {k: torch.zeros_like(t) for k in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")}
            adam.state[t] = {"step": torch.tensor(1e9)} | zeros
        return adam

    assert_close(ours, torch_run(oracle, deltas), rtol=1e-12, atol=1e-12)


def test_fedams_never_divides_by_less_than_before_nor_by_less_than_its_floor():
    fed = federation(algorithm("fedams", server_eps=1e-2))
    before = torch.full((6,), 1e-2, dtype=torch.float64)
    for _ in range(6):
        fed.run(1)
        now = flat(fed.vectors.v_hat_g)
        assert (now >= before).all()
        before = now


def test_fednova_with_equal_steps_is_fedavg():
    plain, normalised = federation(algorithm("fedavg")), federation(algorithm("fednova"))
    plain.run(ROUNDS)
    normalised.run(ROUNDS)
    assert_close(normalised.x, plain.x, rtol=1e-12, atol=1e-14)


def test_fednova_moves_by_the_mean_direction_times_the_mean_steps():
    """x - x' = mean(K) mean(delta_i / K_i), where FedAvg's is the mean of delta_i."""
    data = quadratics(3)  # 1, 2 and 3 steps
    moved = {}
    for name in ("fedavg", "fednova"):
        fed = federation(algorithm(name), data=data, train=unequal, cohort=3)
        before = fed.x
        fed.run(1)
        moved[name] = before - fed.x
    single = []
    for q in data:
        fed = federation(algorithm("fedavg"), data=[q], train=unequal, **ONE)
        before = fed.x
        fed.run(1)
        single.append(before - fed.x)
    assert_close(moved["fedavg"], torch.stack(single).mean(0))
    per_step = [delta / k for delta, k in zip(single, (1, 2, 3), strict=True)]
    assert_close(moved["fednova"], 2 * torch.stack(per_step).mean(0))


def test_amending_around_normalised_averaging_measures_the_same_direction():
    plain, normalised = (federation(Algorithm(part)) for part in (Amend(SGD()), Amend(Nova(SGD()))))
    outside = federation(Algorithm(Nova(Amend(SGD()))))
    for fed in (plain, normalised, outside):
        fed.run(ROUNDS)
    for fed in (normalised, outside):
        assert_close(flat(fed.vectors.g_a), flat(plain.vectors.g_a), rtol=1e-10, atol=1e-13)


def test_the_guard_measures_a_normalised_delta_from_zero_gradients_whatever_its_steps():
    """A client with zero gradients has the distance 0, after one step or six."""
    idle = [Quadratic(q.h * 0, q.b, examples=k) for k, q in enumerate(quadratics(6), start=1)]
    chosen = Algorithm(Nova(Amend(SGD(weight_decay=0.0))))
    fed = federation(chosen, data=idle, train=unequal, cohort=6)
    fed.state.vectors.g_a = fed.vectors.x.full_like(0.7)
    plan = fed.plan(rounds=1)
    task, cohort = next_task(plan, fed.state, 6)
    tally = new_tally(plan, task, cohort, fed.state)
    for reply in fed.engine.exchange(task, cohort):
        tally.add(reply)
    assert max(tally.seen["delta"]) < 1e-12
    assert max(tally.seen["lr_sum"]) == pytest.approx(6 * min(tally.seen["lr_sum"]))


@pytest.mark.parametrize(("name", "further"), [("fedavg", True), ("fednova", False)])
def test_who_claims_more_steps_may_go_further_unless_deltas_are_normalised(name, further):
    settings = {"data": quadratics(1) * 6, "train": local_steps(K), "cohort": 6, "lr_decay": 1.0}
    fed = federation(algorithm(name), **settings)
    fed.run(1)
    plan = fed.plan(rounds=9)
    task, cohort = next_task(plan, fed.state, 6)
    honest = next(iter(fed.engine.exchange(task, cohort)))
    far = Vectors(delta=honest.vectors.delta * 9.0)
    lengths = []
    for claimed in (1.0, 1.9):
        tally = new_tally(plan, task, cohort, fed.state)
        tally.add(dataclasses.replace(honest, vectors=far, lr_sum=honest.lr_sum * claimed))
        assert tally.limited["delta"] == 1
        lengths.append(tally.total.vectors().delta.norm())
    assert lengths[1] == pytest.approx(lengths[0] * (1.9 if further else 1.0), rel=1e-6)


@pytest.mark.parametrize("wrap", [lambda part: part, Nova], ids=["plain", "normalised"])
def test_fedexp_steps_by_the_ratio_of_the_mean_square_to_the_square_of_the_mean(wrap):
    data, eps = quadratics(8), 1e-4
    deltas = []
    for q in data:
        fed = federation(algorithm("fedavg"), data=[q], train=local_steps(K), **ONE)
        before = fed.x
        fed.run(1)
        deltas.append(before - fed.x)
    d = torch.stack(deltas).mean(0)
    ratio = sum(float(delta @ delta) for delta in deltas) / 8 / (2 * (float(d @ d) + eps))
    chosen = Algorithm(wrap(SGD()), server=ExP(server_eps=eps))
    fed = federation(chosen, data=data, train=local_steps(K), cohort=8, lr_decay=1.0)
    before = fed.x
    fed.run(1)
    assert_close(before - fed.x, max(1.0, ratio) * d, rtol=1e-10, atol=1e-13)
    assert ratio > 1, "this problem tells the rule from averaging"


def test_fedexp_of_clients_that_agree_is_averaging():
    alike = quadratics(1) * 4
    plain, stretched = (
        federation(algorithm(name), data=alike, train=local_steps(K))
        for name in ("fedavg", "fedexp")
    )
    plain.run(ROUNDS)
    stretched.run(ROUNDS)
    assert plain.vectors.x.equal(stretched.vectors.x)


@pytest.mark.parametrize("rule", [SGD(lr=0.1), AMSGrad(lr=0.1)])
def test_adding_is_mixing_at_a_smaller_rate(rule):
    """d + (1-α) g_a' at lr α, with g_a' = g_a / α, is α d + (1-α) g_a at lr."""
    alpha = 0.25
    slower = type(rule)(lr=0.1 * alpha)
    mixed = federation(Algorithm(Amend(rule, alpha=alpha)))
    added = federation(Algorithm(AmendAdded(slower, alpha=alpha)))
    mixed.run(ROUNDS)
    added.run(ROUNDS)
    assert_close(added.x, mixed.x, rtol=1e-10, atol=1e-12)
    assert_close(flat(added.vectors.g_a), flat(mixed.vectors.g_a) / alpha, rtol=1e-9, atol=1e-11)


def test_adding_nothing_is_the_rule_inside():
    plain, added = federation(Algorithm(SGD())), federation(Algorithm(AmendAdded(SGD(), alpha=1.0)))
    plain.run(ROUNDS)
    added.run(ROUNDS)
    assert plain.vectors.x.equal(added.vectors.x)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_diloco_with_one_client_and_plain_averaging_is_torch_adamw(decay):
    """Moments and count stay with the client, so rounds leave no trace."""
    data = quadratics(1)
    chosen = Algorithm(AdamW(lr=0.01, weight_decay=decay))
    fed = federation(chosen, data=data, train=local_steps(K), **ONE)
    fed.run(ROUNDS)
    model = Point()
    oracle = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
    expected = torch_steps(model, data[0], oracle, ROUNDS * K)
    assert_close(fed.x, expected, rtol=1e-9, atol=1e-11)
    kept = fed.kept(0)
    assert {float(t) for t in kept.t_each} == {ROUNDS * K}
    for name, theirs in (("m", "exp_avg"), ("v_i", "exp_avg_sq")):
        want = Vector(oracle.state[p][theirs] for p in model.parameters())
        assert_close(flat(kept[name]), flat(want), rtol=1e-9, atol=1e-12)


def test_a_client_of_diloco_that_is_not_sampled_keeps_its_moments():
    fed = federation(algorithm("diloco"))
    counts: dict[int, int] = {}
    for _ in range(6):
        (record,) = fed.run(1)
        for client in record.cohort:
            counts[client] = counts.get(client, 0) + K
    for client, count in counts.items():
        assert {float(t) for t in fed.kept(client).t_each} == {count}


def test_the_first_round_of_fedadamw_is_torch_adamw():
    data = quadratics(1)
    chosen = Algorithm(AmendAdded(AdamWRows(lr=0.01, weight_decay=0.1), alpha=1.0))
    fed = federation(chosen, data=data, train=local_steps(K), **ONE)
    fed.run(1)
    model = Point()
    oracle = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    assert_close(fed.x, torch_steps(model, data[0], oracle, K), rtol=1e-7, atol=1e-9)


def test_fedadamw_shares_the_mean_of_each_row_and_counts_the_steps_behind_it():
    class Matrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2, 3, dtype=torch.float64))

        def flat(self):
            return self.w.flatten()

    fed = federation(Algorithm(AdamWRows(lr=0.01)), model=Matrix(), cohort=8)
    fed.run(ROUNDS)
    (rows,), (weight,) = fed.vectors.v_rows, fed.vectors.weight_each
    assert (rows.shape, weight.shape) == ((2, 1), (1, 1))
    assert float(weight) == pytest.approx(1 - 0.999 ** (ROUNDS * K))
    # Gradients of this problem are of order 1, and v is their mean square but for its weight.
    assert 1e-3 < float(rows.min()) / float(weight) < float(rows.max()) / float(weight) < 1e2


def test_in_fedlion_delta_over_lr_is_an_integer_of_at_most_k():
    lr = 2.0**-10
    fed = federation(Algorithm(Lion(lr=lr)), cohort=1, lr_decay=1.0)
    for _ in range(ROUNDS):
        before = fed.x
        fed.run(1)
        steps = (before - fed.x) / lr
        assert torch.equal(steps, steps.round())
        assert steps.abs().max() <= K


def test_fedlion_shares_the_mean_momentum():
    """With β2 = 0 a client's m is its last gradient, and the server's their mean."""
    seen, data = [], quadratics(3)
    fed = federation(
        Algorithm(Lion(betas=(0.5, 0.0))), data=data, cohort=3,
        train=local_steps(1, see=lambda g: seen.append(g.clone())),
    )  # fmt: skip
    fed.run(1)
    assert_close(flat(fed.vectors.m_mean), torch.stack(seen).mean(0))


def test_fedlalr_with_one_client_is_amsgrad_whose_first_moment_goes_on():
    """AMSGrad forgets m each round; with β1 = 0 there is nothing to forget."""
    for betas, same in (((0.0, 0.99), True), ((0.9, 0.99), False)):
        runs = []
        for name in ("fedlalr", {"local": "amsgrad"}):
            fed = federation(algorithm(name, betas=betas, lr=0.01), train=local_steps(K), **ONE)
            fed.run(ROUNDS)
            runs.append(fed)
        assert runs[0].vectors.x.equal(runs[1].vectors.x) is same


def test_fedada2_has_fedavgs_traffic_and_forgets_between_rounds():
    """A round of its local Adam depends on x alone: begun anew at the same x, it is the same."""
    assert algorithm("fedada2").traffic == algorithm("fedavg").traffic
    data = quadratics(1)
    chosen = algorithm({"local": "adam-unshared", "eps": 1e-3, "lr": 0.01, "weight_decay": 0.0})
    fed = federation(chosen, data=data, train=local_steps(K), **ONE)
    fed.run(2)
    halfway = federation(chosen, data=data, train=local_steps(K), **ONE)
    halfway.run(1)
    anew = federation(chosen, data=data, train=local_steps(K), model=placed(halfway.x), **ONE)
    anew.run(1)
    assert anew.vectors.x.equal(fed.vectors.x)


def placed(x: torch.Tensor) -> Point:
    model = Point()
    with torch.no_grad():
        model.w.copy_(x[:4])
        model.b.copy_(x[4:].reshape(2, 1))
    return model


def test_muon_on_matrices_is_torch_muon(monkeypatch):
    """torch takes its Newton-Schulz steps in bfloat16, which is left out of the comparison."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda t: t.clone())
    torch.manual_seed(0)
    matrices = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 5), (6, 2), (4, 4))]
    rule, lr = SharedMuon(lr=0.01, weight_decay=0.1, beta=0.9), 0.01
    client = Vectors(y=Vector(t.clone() for t in matrices))
    client.m_mean = client.y.zeros_like()
    rule.begin(client)
    theirs = [nn.Parameter(t.clone()) for t in matrices]
    oracle = torch.optim.Muon(
        theirs, lr=lr, weight_decay=0.1, momentum=0.9, nesterov=False,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    for _ in range(K):
        g = [torch.randn_like(t) for t in matrices]
        for p, own in zip(theirs, g, strict=True):
            p.grad = own.clone()
        rule.step(client, Vector(g), lr)
        oracle.step()
    for ours, p in zip(client.y, theirs, strict=True):
        assert_close(ours, p.detach(), rtol=1e-9, atol=1e-12)


def test_the_three_muons_differ_in_the_momentum_with_which_a_round_begins():
    """With one client, sharing a momentum is keeping it; a new one makes each round the first."""
    one = {"data": quadratics(1), "train": local_steps(K), **ONE}
    runs = {
        name: federation(algorithm(name, lr=0.01, beta=0.8), **one)
        for name in ("sharedmuon", "keptmuon", "freshmuon")
    }
    for run in runs.values():
        run.run(1)
    assert runs["sharedmuon"].x.equal(runs["freshmuon"].x)
    halfway = placed(runs["freshmuon"].x)
    anew = federation(algorithm("sharedmuon", lr=0.01, beta=0.8), model=halfway, **one)
    for run in (*runs.values(), anew):
        run.run(1)
    assert runs["sharedmuon"].x.equal(runs["keptmuon"].x)
    assert runs["freshmuon"].x.equal(anew.x)
    assert not runs["freshmuon"].x.equal(runs["sharedmuon"].x)


def test_muon_steps_as_far_along_each_direction_and_a_flat_tensor_by_its_length():
    torch.manual_seed(0)
    names = ["matrix", "conv", "bias", "embed.weight"]
    shapes = [(6, 9), (4, 2, 3, 3), (7,), (5, 8)]
    y = Vector((torch.zeros(s, dtype=torch.float64) for s in shapes), names)
    client = Vectors(y=y, m_mean=y.zeros_like())
    rule = SharedMuon(weight_decay=0.0, flat=("embed",))
    rule.begin(client)
    rule.step(client, Vector(torch.randn(s, dtype=torch.float64) for s in shapes), 1.0)
    matrix, conv, bias, embed = client.y
    for t in (matrix, conv.reshape(4, -1)):
        sizes = torch.linalg.svdvals(t) / (0.2 * max(t.shape) ** 0.5)
        assert sizes.min() > 0.6
        assert sizes.max() < 1.3
    for t in (bias, embed):
        assert float(t.norm()) == pytest.approx(0.2 * math.sqrt(t.numel()))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "muon" in name])
def test_muon_leaves_a_parameter_without_elements_alone(name):
    class Sparse(Point):
        def __init__(self) -> None:
            super().__init__()
            self.none = nn.Parameter(torch.zeros(0, 5, dtype=torch.float64))
            self.nor_here = nn.Parameter(torch.zeros(5, 0, dtype=torch.float64))

    fed = federation(algorithm(name), model=Sparse(), data=quadratics(3), train=local_steps(2))
    fed.run(2)
    assert [t.numel() for t in fed.state.vectors.x] == [4, 2, 0, 0]
    assert fed.x.norm() > 0


def test_sam_takes_its_gradient_at_the_worst_point_nearby():
    """On a quadratic: h (y + ρ g/‖g‖ - b) with g = h (y - b), the norm over all tensors."""
    (q,), rho = quadratics(1), 0.5
    fed = federation(
        Algorithm(SAM(SGD(lr=0.1, weight_decay=0.0), rho=rho)),
        data=[q], train=local_steps(K), **ONE,
    )  # fmt: skip
    y = fed.x
    fed.run(1)
    for _ in range(K):
        g = q.h * (y - q.b)
        y = y - 0.1 * q.h * (y + rho * g / g.norm() - q.b)
    assert_close(fed.x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["fedsam", "mofedsam", "fedlesam"])
def test_without_a_perturbation_it_is_what_it_is_around(name):
    plain = {"mofedsam": "fedcm"}.get(name, "fedavg")
    ours, theirs = federation(algorithm(name, rho=1e-300)), federation(algorithm(plain))
    ours.run(ROUNDS)
    theirs.run(ROUNDS)
    assert ours.vectors.x.equal(theirs.vectors.x)


def test_a_prox_outside_of_sam_pulls_from_where_y_is_and_not_from_the_probe():
    (q,), rho, mu = quadratics(1), 0.5, 0.7
    runs = []
    for part in (Prox(SAM(SGD(), rho=rho), mu=mu), SAM(Prox(SGD(), mu=mu), rho=rho)):
        fed = federation(Algorithm(part), data=[q], train=local_steps(K), **ONE)
        fed.run(2)
        runs.append(fed.vectors)
    assert runs[0].x.equal(runs[1].x)


def test_clipping_acts_on_the_second_gradient_of_sam():
    """One step moves by lr times the clipped norm, whatever the first gradient was."""
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data, clip = [ClientData(x, 100 * x[:, 0])], 0.01
    model = nn.Linear(3, 1).double()
    train = LocalTraining(steps=1, clip_norm=clip)
    fed = Federation(algorithm("fedsam", lr=0.1, weight_decay=0.0), model, data, train)
    before = fed.x
    fed.run(1)
    assert float((before - fed.x).norm()) == pytest.approx(0.1 * clip, rel=1e-4)


def test_a_loop_without_a_closure_is_told_that_sam_needs_one():
    def train(model, data, optimizer):
        data(model).backward()
        optimizer.step()

    fed = federation(algorithm("fedsam"), train=train)
    with pytest.raises(ValueError, match=r"client \d+, round 1: .*optimizer\.step\(closure\)"):
        fed.run(1)


def test_fedlesam_looks_back_along_the_way_that_the_model_went():
    """In a client's first round e is 0; then e = ρ (x_old - x)/‖x_old - x‖."""
    (q,), rho = quadratics(1), 0.5
    sgd = SGD(lr=0.1, weight_decay=0.0)
    fed = federation(Algorithm(LESAM(sgd, rho=rho)), data=[q], train=local_steps(K), **ONE)
    old = fed.x
    for _ in range(ROUNDS):
        x = y = fed.x
        away = old - x
        e = rho * away / away.norm() if away.norm() else away
        for _ in range(K):
            y = y - 0.1 * q.h * (y + e - q.b)
        fed.run(1)
        assert_close(fed.x, y, rtol=1e-12, atol=1e-12)
        assert_close(flat(fed.kept(0).x_old), x)
        old = x


def test_a_server_rule_that_reads_no_mean_square_needs_none():
    r = Round(steps=1, lr_sum=1)
    server = Vectors(x=Vector([torch.ones(2)]))
    Averaging().apply(server, Vector([torch.ones(2)]), r)
    assert torch.equal(flat(server.x), torch.zeros(2))
