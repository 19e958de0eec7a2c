"""One plan behind three doors: whatever it has can be set through each, and means the same."""

import dataclasses
import json

import pytest
import torch

import fedlada
from fedlada import Plan
from fedlada.data import ClientData
from fedlada.experiment.config.experiment import PLANNED
from fedlada.experiment.config.reading import read
from fedlada.flower.server import KEYS, ServerConfig
from fedlada.privacy import Masks, Privacy
from fedlada.protocol.codecs import Codecs
from fedlada.server import Bernoulli, FixedSize, Guard, TrimmedMean
from fedlada.server.plan import OtherSettings, PlanSettings

FIELDS = [field.name for field in dataclasses.fields(Plan)]
FREE = [field.name for field in dataclasses.fields(Plan) if "free" in field.metadata]

# For each field some values other than the default: what the plan then has, how a program gives
# it, and how a file or a message does.
OTHER = {
    "algorithm": [
        (fedlada.algorithm("fedcm"), "fedcm", "fedcm"),
        (
            fedlada.algorithms.compose(
                local="amsgrad", corrections=["prox", "amend"], server="adam"
            ),
            {"local": "amsgrad", "corrections": ["prox", "amend"], "server": "adam"},
            '{ local = "amsgrad", corrections = ["prox", "amend"], server = "adam" }',
        ),
    ],
    "rounds": [(7, 7, 7)],
    "cohort": [
        (FixedSize(3), 3, 3),
        (Bernoulli(0.25), 0.25, 0.25),
        (Bernoulli(1.0), "all", "all"),
    ],
    "seed": [(5, 5, 5)],
    "lr_decay": [(0.5, 0.5, 0.5)],
    "weighting": [("examples", "examples", "examples")],
    "close_after": [(2, 2, 2)],
    "deadline": [(2.5, 2.5, 2.5)],
    "staleness": [(6, 6, 6)],
    "aging": [("none", "none", "none")],
    "minimum": [(2, 2, 2)],
    "guard": [(Guard(slack=5.0), Guard(slack=5.0), "slack = 5.0"), (None, None, "off")],
    "aggregator": [
        (TrimmedMean(), TrimmedMean(), "trimmed-mean"),
        (TrimmedMean(trim=0.2), TrimmedMean(trim=0.2), '{ name = "trimmed-mean", trim = 0.2 }'),
    ],
    "buffers": [("average", "average", "average")],
    "personal": [(("weight",), ["weight"], ["weight"]), (("b*", "bias"), "b*, bias", "b* bias")],
    "codec": [(..., "delta=toy", "delta=toy")],
    "privacy": [
        (
            Privacy(noise=1.0, delta=1e-3, epsilon=3.0),
            Privacy(noise=1.0, delta=1e-3, epsilon=3.0),
            "noise = 1.0, delta = 1e-3, epsilon = 3.0",
        ),
        (
            Privacy(noise=1.0, delta=1e-3, clip={"delta": 2.0, "v_hat": 0.5}, quantile=None),
            {"noise": 1.0, "delta": 1e-3, "clip": {"delta": 2.0, "v_hat": 0.5}, "quantile": 0},
            "{ noise = 1.0, delta = 1e-3, clip = {delta = 2.0, v_hat = 0.5}, quantile = 0 }",
        ),
    ],
    "masks": [
        (Masks(), True, True),
        (Masks(least=5), {"least": 5}, "least = 5"),
        (Masks(least=5, group=10), "least = 5, group = 10", "{ least = 5, group = 10 }"),
    ],
    "evaluate_every": [(3, 3, 3)],
}
LATE = {"deadline", "staleness"}
"""Fields that need clients who may be late."""
PRIVATE = {"cohort": 0.5, "privacy": "noise = 1.0, delta = 1e-3"}
NEEDED = {
    "staleness": {"close_after": 4, "deadline": 60.0},
    "privacy": {"cohort": 0.5},
    "masks": PRIVATE,
}
"""Fields without which another has no meaning."""
STALE = {"staleness": 3, "close_after": 4}
CASES = [(name, *values) for name in FIELDS for values in OTHER[name]]


class Toy(fedlada.protocol.codecs.exact.Exact):
    """A codec by another name."""


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(fedlada.protocol.codecs.CODECS, "toy", Toy())


def clients() -> list[ClientData]:
    return [ClientData(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)) for _ in range(10)]


def from_simulate(**given) -> Plan:
    devices = {} if given.keys() & LATE else None
    return fedlada.simulate(torch.nn.Linear(2, 2), clients(), devices=devices, **given).plan


def from_toml(tmp_path, name: str | None = None, value: object = None) -> Plan:
    needed = NEEDED.get(name, {}).items()
    lines = [f"{PLANNED[key]} = {json.dumps(other)}\n" for key, other in needed]
    lines += ['[data]\ndataset = "digits"\n']
    if name is not None:
        key = "algorithm" if name == "algorithm" else PLANNED[name]
        table = isinstance(value, str) and value.startswith("{")
        text = value if table else json.dumps(value)
        lines.insert(0, f"{key} = {text}\n")
        lines += ["[devices]\n"] if name in LATE else []
    path = tmp_path / "experiment.toml"
    path.write_text("".join(lines))
    return read(path).plan()


def from_flower(name: str | None = None, value: object = None) -> Plan:
    given = {} if name is None else {name: value, **NEEDED.get(name, {})}
    return ServerConfig.read({KEYS[key]: other for key, other in given.items()}).plan


@pytest.mark.parametrize(("name", "meant", "given", "plain"), CASES)
def test_every_field_can_be_set_through_every_door_and_means_the_same(
    tmp_path, name, meant, given, plain
):
    plans = [
        from_simulate(**{name: given}, **NEEDED.get(name, {})),
        from_toml(tmp_path, name, plain),
        from_flower(name, plain),
    ]
    for plan in plans:
        assert plan == plans[0]
        assert plan.identity() == plans[0].identity()
    without = Plan(**NEEDED.get(name, {}))
    assert plans[0] != without
    assert (plans[0].identity() == without.identity()) == (name in FREE)
    assert getattr(plans[0], name) == (Codecs.read(plain) if name == "codec" else meant)


def test_every_field_has_a_case_here_and_a_name_at_every_door():
    assert list(OTHER) == FIELDS
    assert {*PlanSettings.__annotations__, *OtherSettings.__annotations__} == set(FIELDS)
    assert set(KEYS) == set(FIELDS)
    assert {*PLANNED, "algorithm"} == set(FIELDS)


def test_without_settings_all_doors_lead_to_the_same_plan(tmp_path):
    assert from_simulate() == from_toml(tmp_path) == from_flower() == Plan()


def test_a_plan_is_made_of_its_own_settings():
    plan = Plan(algorithm="scaffold", cohort=0.5, guard=None, aggregator="coordinate-median")
    assert Plan(**plan.settings()) == plan


def test_the_identity_is_plain_and_survives_a_file():
    identity = Plan(aggregator=TrimmedMean(trim=0.2), codec="x=toy | delta=toy").identity()
    assert json.loads(json.dumps(identity)) == identity
    assert "fedlada." not in json.dumps(identity), "a module's path may change"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rounds": 2.5}, "rounds is 2.5; it must be a whole number"),
        ({"cohort": "ten"}, "cohort is 'ten'; it must be a number of clients such as 10"),
        ({"guard": "slak = 3.0"}, "'slak' is no setting of guard; did you mean 'slack'"),
        ({"guard": "not at all"}, "no table of settings"),
        ({"aggregator": "meam"}, "no aggregator 'meam'; did you mean 'mean'"),
        ({"aggregator": {"name": "mean", "trim": 1}}, "aggregator 'mean' has no settings"),
        ({"codec": "bf17"}, "no codec 'bf17'"),
        ({"codec": "x=toy/2"}, "uses version 2 of codec toy, and this side has version 1"),
        ({"codec": "a | b | c"}, "write the vectors that go down, then"),
        ({"weighting": "size"}, "weighting is 'size'; it must be one of uniform, examples"),
        ({"close_after": 1, "minimum": 2}, "a round cannot close below its minimum"),
        ({"staleness": -1}, "staleness is -1; it must be a whole number, 0 or more"),
        ({"staleness": 3}, "close_after is None, so every round waits for its whole cohort"),
        (STALE | {"cohort": 0.5}, "cohort is a share of the clients; with staleness it is the"),
        (STALE | {"cohort": 4}, "cohort is 4 and close_after is 4, so every round waits for all"),
        (STALE | {"aggregator": "coordinate-median"}, "takes no weights: choose aging='none'"),
        ({"aging": "square"}, "aging is 'square'; it must be one of root, none"),
        ({"lr_decay": 2.0}, "lr_decay is 2.0; it must be above 0 and at most 1"),
        ({"seed": -1}, "seed is -1; it must be a whole number, 0 or more"),
        ({"roundz": 3}, "a plan has no 'roundz'; did you mean 'rounds'"),
    ],
)
def test_what_a_plan_cannot_be_is_told_with_what_it_can(given, said):
    with pytest.raises(fedlada.FedladaError, match=said):
        from_simulate(**given)


@pytest.mark.parametrize("order", [("scaffold", "dyn"), ("dyn", "scaffold")])
def test_two_sums_are_refused_unless_the_guard_is_off(order):
    """A client has one account, and what the second sum absorbs would not be in it."""
    chosen = {"local": "sgd", "corrections": list(order)}
    with pytest.raises(fedlada.FedladaError, match=r"several sums over all clients.*guard='off'"):
        Plan(algorithm=chosen)
    assert len(Plan(algorithm=chosen, guard="off").algorithm.sums) == 2
    assert Plan(algorithm="scaffold").guard == Guard()


def test_an_algorithm_is_what_its_spec_says():
    for chosen in fedlada.ALGORITHMS.values():
        spec = json.loads(json.dumps(chosen.spec()))
        assert fedlada.algorithm(spec) == chosen
    built = fedlada.algorithm("fedlada", betas=(0.5, 0.6), alpha=0.3)
    assert fedlada.algorithm(json.loads(json.dumps(built.spec()))) == built


def test_two_settings_of_one_name_and_unlike_values_cannot_be_written_down():
    from fedlada.algorithms.corrections import Prox
    from fedlada.algorithms.local import SGD

    twice = fedlada.Algorithm(Prox(Prox(SGD(), mu=0.1), mu=0.2))
    with pytest.raises(ValueError, match="share the setting 'mu' and differ in it"):
        twice.spec()
