"""The client's optimizer is a torch optimizer: whatever works around one works around it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.testing import assert_close

from federations import Point, flat, quadratics
from fedlada import Algorithm, algorithm
from fedlada.algorithms import Round, Vector, Vectors
from fedlada.algorithms.corrections import Amend
from fedlada.algorithms.local import SGD, AMSGrad
from fedlada.engines import LocalRound, ServerState
from fedlada.protocol.federated import federated_parameters
from fedlada.protocol.messages import Task

K, LR = 6, 0.05


def net(*, double: bool = True) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))
    return model.double() if double else model


def batches(steps: int = K, *, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator, dtype=dtype)
        yield x, x[:, :2].sin()


def begin(model: nn.Module, chosen: Algorithm, **down: Vector) -> LocalRound:
    x = Vector(p.detach().clone() for p in federated_parameters(model).values())
    state = ServerState.new(chosen, x)
    vectors = Vectors(state.vectors.only(chosen.down), **down)
    return LocalRound(chosen, model, Task(round=0, seed=0, lr=LR, vectors=vectors), client=0)


def sgd(**settings) -> Algorithm:
    return algorithm("fedavg", lr=LR, **{"weight_decay": 0.0} | settings)


def loop(model, optimizer, *, after_backward=lambda: None, after_step=lambda: None) -> None:
    for x, y in batches():
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        after_backward()
        optimizer.step()
        after_step()


def both(**around) -> tuple[nn.Module, nn.Module]:
    """The same loop under a federated and under torch's SGD."""
    ours, theirs = net(), net()
    for model, optimizer in (
        (ours, begin(ours, sgd()).optimizer()),
        (theirs, torch.optim.SGD(theirs.parameters(), lr=LR)),
    ):
        loop(model, optimizer, **{k: make(model, optimizer) for k, make in around.items()})
    return ours, theirs


def assert_same(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-12) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, K),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, 0.1, total_steps=K + 1, cycle_momentum=False
        ),
    ],
)
def test_schedulers_act_as_on_torch_sgd(scheduler):
    assert_same(*both(after_step=lambda _, optimizer: scheduler(optimizer).step))


def test_gradient_clipping_acts_as_on_torch_sgd():
    assert_same(
        *both(
            after_backward=lambda model, _: (
                lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            )
        )
    )


def test_gradient_accumulation_is_one_step_on_the_summed_gradient():
    ours, theirs = net(), net()
    local = begin(ours, sgd())
    optimizer, reference = local.optimizer(), torch.optim.SGD(theirs.parameters(), lr=LR)
    for model, opt in ((ours, optimizer), (theirs, reference)):
        for i, (x, y) in enumerate(batches()):
            (mse_loss(model(x), y) / 3).backward()
            if i % 3 == 2:
                opt.step()
                opt.zero_grad()
    assert_same(ours, theirs)
    assert local.finish(examples=1).steps == K / 3


def test_autocast_and_grad_scaler_act_as_on_torch_sgd():
    ours, theirs = net(double=False), net(double=False)
    local = begin(ours, sgd())
    for model, optimizer in (
        (ours, local.optimizer()),
        (theirs, torch.optim.SGD(theirs.parameters(), lr=LR)),
    ):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for i, (x, y) in enumerate(batches(dtype=torch.float32)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mse_loss(model(x).float(), y)
            scaler.scale(loss * (float("inf") if i == 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_same(ours, theirs, 1e-6)
    assert local.finish(examples=1).steps == K - 1, "the step with an infinite loss is skipped"


def test_a_closure_is_evaluated_and_its_loss_returned():
    model = net()
    optimizer = begin(model, sgd()).optimizer()
    x, y = next(batches())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


def test_groups_without_decay_and_with_their_own_rate_act_as_on_torch_sgd():
    ours, theirs = net(), net()

    def groups(model):
        return [
            {"params": [p for p in model.parameters() if p.ndim > 1]},
            {
                "params": [p for p in model.parameters() if p.ndim == 1],
                "weight_decay": 0.0,
                "lr": LR / 4,
            },
        ]

    loop(ours, begin(ours, sgd(weight_decay=0.1)).optimizer(groups(ours)))
    loop(theirs, torch.optim.SGD(groups(theirs), lr=LR, weight_decay=0.1))
    assert_same(ours, theirs)


def test_a_groups_rate_stays_inside_the_amended_mix():
    """g_a is in units of the round's rate: g_a' = α s d + (1-α) g_a for a group at rate s·lr."""
    alpha, scale, data = 0.25, 0.5, quadratics(1)[0]
    chosen = Algorithm(Amend(SGD(lr=LR, weight_decay=0.0), alpha=alpha))
    model = Point()
    g_a = Vector(torch.full_like(p, 0.7) for p in model.parameters())
    local = begin(model, chosen, g_a=g_a)
    optimizer = local.optimizer([{"params": [model.w]}, {"params": [model.b], "lr": scale * LR}])
    directions = []
    for _ in range(3):
        optimizer.zero_grad()
        data(model).backward()
        directions.append(torch.cat([model.w.grad, scale * model.b.grad.flatten()]))
        optimizer.step()
    reply = local.finish(examples=1)
    s = chosen.start(Vector(p.detach() for p in model.parameters()))
    chosen.serve(s, reply.vectors, Round(steps=reply.steps, lr_sum=reply.lr_sum))
    expected = alpha * torch.stack(directions).mean(0) + (1 - alpha) * 0.7
    assert_close(flat(s.g_a), expected)


def test_weight_decay_changed_in_a_group_takes_effect():
    ours, theirs = net(), net()
    for model, optimizer in (
        (ours, begin(ours, sgd()).optimizer()),
        (theirs, torch.optim.SGD(theirs.parameters(), lr=LR)),
    ):
        optimizer.param_groups[0]["weight_decay"] = 0.3
        loop(model, optimizer)
    assert_same(ours, theirs)


def test_a_scheduler_that_treats_groups_differently_is_refused():
    model = net()
    optimizer = begin(model, sgd()).optimizer(
        [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters())}]
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: 1.0, lambda t: 0.5**t])
    with pytest.raises(ValueError, match="scale all groups by the same factor"):
        loop(model, optimizer, after_step=scheduler.step)


def test_a_scheduled_rate_is_summed_for_the_server():
    model = net()
    local = begin(model, sgd())
    optimizer = local.optimizer()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    loop(model, optimizer, after_step=scheduler.step)
    assert local.finish(examples=1).lr_sum == pytest.approx(LR * (2 + 1 + 0.5))


def test_only_trainable_parameters_are_federated():
    """An adapter: the frozen base neither moves nor travels."""
    model = net()
    model[0].requires_grad_(False)
    frozen = copy.deepcopy(model[0].state_dict())
    local = begin(model, algorithm("fedlada", lr=LR))
    loop(model, local.optimizer())
    reply = local.finish(examples=1)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert all(vector.numel() == trainable for vector in reply.vectors.values())
    assert all(torch.equal(frozen[name], t) for name, t in model[0].state_dict().items())


def test_tied_weights_travel_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    model = Tied()
    local = begin(model, sgd())
    optimizer = local.optimizer(model.parameters())
    model(torch.arange(5)).square().sum().backward()
    optimizer.step()
    assert local.finish(examples=1).vectors.delta.numel() == 15
    assert model.head.weight is model.embed.weight


@pytest.mark.parametrize(
    "dtypes", [(torch.float64,), (torch.float32, torch.float64, torch.bfloat16)]
)
def test_parameters_of_several_types_are_stepped_each_in_its_own(dtypes):
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ParameterList(nn.Parameter(torch.ones(3, dtype=d)) for d in dtypes)

    model = Mixed()
    local = begin(model, algorithm("fedlada", lr=LR))
    optimizer = local.optimizer()
    sum(w.square().sum().float() for w in model.w).backward()
    optimizer.step()
    reply = local.finish(examples=1)
    assert [t.dtype for t in reply.vectors.v_hat] == list(dtypes)
    assert all((w < 1).all() for w in model.w)


def test_memory_layout_makes_no_difference():
    """A channels_last model, and gradients laid out unlike their parameters, step alike."""
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3).double().to(memory_format=layout)
        contiguous = nn.Conv2d(3, 4, 3).double()
        chosen = algorithm("fedlada", lr=LR)
        x = Vector(p.detach().clone() for p in contiguous.parameters())
        task = Task(round=0, seed=0, lr=LR, vectors=ServerState.new(chosen, x).vectors)
        local = LocalRound(chosen, model, task, client=0)
        optimizer = local.optimizer()
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(i))
            p.grad = p.grad.contiguous()
        optimizer.step()
        results.append(flat(local.finish(examples=1).vectors.delta))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_parameter_without_gradient_counts_as_gradient_zero():
    outcomes = []
    for missing in (None, 0.0):
        model = Point(at=1.0)
        local = begin(model, algorithm("fedlada", lr=LR))
        optimizer = local.optimizer()
        model.w.grad = torch.ones_like(model.w)
        model.b.grad = None if missing is None else torch.zeros_like(model.b)
        optimizer.step()
        outcomes.append(local.finish(examples=1).vectors)
    assert all(outcomes[0][name].equal(outcomes[1][name]) for name in outcomes[0])


def test_gradients_are_left_as_they_are():
    for name in ("fedprox", "scaffold", "feddyn", "fedlada"):
        model = Point(at=1.0)
        optimizer = begin(model, algorithm(name)).optimizer()
        quadratics(1)[0](model).backward()
        before = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))


def test_a_reloaded_state_dict_keeps_the_optimizer_working():
    """Wrappers such as Accelerate's reload an optimizer's state_dict when they prepare it."""
    ours, theirs = net(), net()
    optimizer = begin(ours, sgd()).optimizer()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.param_groups[0]["lr"] = LR / 2
    loop(ours, optimizer)
    loop(theirs, torch.optim.SGD(theirs.parameters(), lr=LR / 2))
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda m, o: o(list(m[0].parameters())), "in no group"),
        (lambda m, o: o().add_param_group({"params": []}), "a group cannot be added"),
    ],
)
def test_wrong_groups_are_explained(wrong, sentence):
    model = net()
    with pytest.raises(ValueError, match=sentence):
        wrong(model, begin(model, sgd()).optimizer)


def test_a_sparse_gradient_is_refused():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = begin(model, sgd()).optimizer()
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        optimizer.step()


def test_training_without_a_step_is_an_error():
    local = begin(net(), sgd())
    local.optimizer()
    with pytest.raises(ValueError, match="took no optimizer step"):
        local.finish(examples=1)


def test_half_precision_that_loses_eps_is_refused():
    with pytest.raises(ValueError, match="use autocast"):
        begin(nn.Linear(2, 2).half(), Algorithm(AMSGrad()))


def test_a_second_optimizer_is_refused():
    local = begin(net(), algorithm("fedlada"))
    local.optimizer()
    with pytest.raises(ValueError, match="asked for a second optimizer in round 1"):
        local.optimizer()
