"""The server side on Flower: a ready ServerApp around the common server loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from ..algorithms import algorithm as named_algorithm
from ..devices import chosen
from ..errors import require
from ..protocol.seeds import seed_of
from ..server.evaluation import Survey
from ..server.loop import NothingApplied, check_applied
from ..server.plan import Plan, sampler, settings_table
from ..server.record import RoundRecord
from ..server.sampling import FixedSize, Sampler
from ..server.saving.checkpoint import Checkpoints
from ..server.server import Evaluate, Server
from ..server.state import ServerState
from ..server.watch import watchers
from ..server.watch.progress import Pace, progress
from .grid import GridEngine
from .late import Late, grounded
from .tree.leaves import Leaves

__all__ = ["KEYS", "Finished", "OnRound", "ServerConfig", "run_server", "server_app"]

OnRound = Callable[[RoundRecord, Callable[[], nn.Module]], None]
"""Called as ``on_round(record, model)`` after each round; ``model()`` returns a copy of the
model."""

MOST_CAUSES = 3
"""Largest number of sites that the error of a failed run cites."""

KEYS = {f.name: f.name.replace("_", "-") for f in dataclasses.fields(Plan)}
"""The key in a run's config for each field of a plan."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The config of a run: its plan, and settings that only matter on Flower.

    Each field, and each field of the plan, is a key of the app's config, with dashes for
    underscores.  The key ``settings`` has hyper-parameters of the algorithm as in TOML:
    ``lr = 0.01, alpha = 0.05``.
    """

    plan: Plan = field(default_factory=Plan)
    """The settings that a run has under every engine."""
    nodes: int = 1
    """Number of nodes that must be connected before the first round."""
    wait: float = 120.0
    """Seconds to wait for these nodes."""
    num_partitions: int = 0
    """Number of nodes, each one client, connected or not; 0 lets the majority of nodes decide."""
    clients: int = 0
    """Number of clients of all nodes, if each node is a leaf with several (:func:`leaf_app`); 0 if
    each is one client."""
    checkpoints: str = ""
    """A directory on the ServerApp's machine for checkpoints; a run started with the same config
    continues from there."""
    checkpoint_every: int = 1
    """Save each time this many rounds are done, and after the last round."""
    device: str = ""
    """Where the server has its model: ``auto``, ``cpu``, ``cuda`` and so on; empty leaves it where
    ``model()`` makes it."""
    evaluate_cohort: int | float | str = 0
    """Number of clients that evaluate the model on their own data whenever the plan evaluates, or
    the probability of each if it is a fraction; ``all``, or 0 for none."""
    log_format: str = ""
    """``json`` adds one JSON object per event to the ServerApp's standard error."""
    metrics: str | int = ""
    """A port of 127.0.0.1, or ``address:port``, that serves metrics for Prometheus."""

    def __post_init__(self) -> None:
        asked = self.evaluate_cohort
        require(
            (type(asked) is int and asked >= 0)
            or (isinstance(asked, float) and 0 <= asked < 1)
            or asked == "all",
            f"evaluate-cohort is {asked!r}; it must be a number of clients such as 10, the"
            " probability of each such as 0.5, 'all', or 0 for none",
        )
        require(
            type(self.clients) is int and self.clients >= 0,
            f"clients is {self.clients!r}; it must be the number of clients of all leaves, or 0 if"
            " each node is one client",
        )
        require(
            not (self.plan.privacy and asked),
            f"evaluate-cohort is {asked} and there is privacy: clients' metrics have no noise;"
            " leave evaluate-cohort out, and evaluate on the server with public examples",
        )
        require(
            not (self.clients and asked),
            f"evaluate-cohort is {asked} and clients is {self.clients}; leaves do not evaluate the"
            " model: leave evaluate-cohort out, and evaluate on the server",
        )
        self._check_late()

    def _check_late(self) -> None:
        """Check that replies may be late here, if the plan lets them."""
        given = f"staleness is {self.plan.staleness}"
        if not self.plan.staleness:
            return
        require(
            self.plan.deadline is not None,
            f"{given} and there is no deadline, so a node that is switched off during a task would"
            " count as under way for good: give deadline, in seconds",
        )
        require(
            not self.clients,
            f"{given} and clients is {self.clients}; leaves send one tally for all of their"
            " clients and cannot send late replies: leave staleness out",
        )
        require(
            not self.evaluate_cohort,
            f"{given} and evaluate-cohort is {self.evaluate_cohort}; the evaluation would wait for"
            " nodes that still train: leave evaluate-cohort out, and evaluate on the server",
        )

    @classmethod
    def read(cls, run_config: Mapping[str, Any]) -> ServerConfig:
        """Read a Flower run's config; other keys belong to the app and are ignored."""
        fields = {name: run_config[key] for name, key in KEYS.items() if key in run_config}
        plan = Plan(**fields)
        settings = settings_table(run_config.get("settings", ""))
        if settings:
            plan = dataclasses.replace(plan, algorithm=named_algorithm(plan.algorithm, **settings))
        keys = {f.name: f.name.replace("_", "-") for f in dataclasses.fields(cls)}
        del keys["plan"]
        return cls(
            plan=plan, **{name: run_config[key] for name, key in keys.items() if key in run_config}
        )

    def evaluators(self) -> Sampler | None:
        """Return the sampler of the clients that evaluate the model, if any."""
        return _at_most(sampler(self.evaluate_cohort)) if self.evaluate_cohort else None

    def saving(self) -> Checkpoints | None:
        """Return the checkpoints, if any; they wait for a ServerApp whose SuperLink was killed."""
        if not self.checkpoints:
            return None
        return Checkpoints(self.checkpoints, every=self.checkpoint_every, wait=60.0)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A federation that has ended."""

    model: nn.Module
    """The model with the final parameters; its ``state_dict()`` is that of any torch model."""
    state: ServerState
    """The server's vectors and counters."""
    history: Sequence[RoundRecord]
    """The records of all rounds, also of those before a resume."""


def server_app(
    model: Callable[[], nn.Module],
    *,
    evaluate: Evaluate | None = None,
    on_round: OnRound | None = None,
    finished: Callable[[Finished, Context], None] | None = None,
) -> ServerApp:
    """Make a ServerApp that runs the algorithm of the run's config (:class:`ServerConfig`).

    It calls ``evaluate(model)`` after every round, or less often with ``evaluate-every``;
    ``on_round(record, model)`` after every round, with a function that returns a copy of the
    model; and ``finished(run, context)`` once at the end.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = ServerConfig.read(context.run_config)
        run = run_server(grid, config, model, evaluate=evaluate, on_round=on_round)
        if finished is not None:
            finished(run, context)

    return app


def run_server(
    grid: Grid,
    config: ServerConfig,
    model: Callable[[], nn.Module],
    *,
    evaluate: Evaluate | None = None,
    on_round: OnRound | None = None,
) -> Finished:
    """Run one federation over a grid and print a line of progress per round.

    ``on_round(record, model)`` is called after each round, once it is saved; ``model()`` returns a
    copy of the model.  An error in ``on_round`` ends the run.
    """
    plan = config.plan
    require(
        plan.privacy is None or bool(config.num_partitions or config.clients),
        "there is privacy, whose account needs the number of clients, connected or not: give"
        " num-partitions, or clients if each node is a leaf with several",
    )
    torch.manual_seed(seed_of(plan.seed, "model"))
    network = model()
    if config.device:
        network.to(chosen(config.device))
    server = Server(
        plan,
        network,
        checkpoints=config.saving(),
        numerics={"threads": torch.get_num_threads()},
        watch=functools.partial(watchers, config.log_format, config.metrics),
    )
    if server.resumed is not None:
        print(f"resuming after round {server.resumed.round} from {config.checkpoints}", flush=True)
    with closing(server):
        if server.state.round < plan.rounds:  # otherwise no node needs to be connected
            for record in _rounds(grid, config, network, server, evaluate):
                if on_round is not None:
                    on_round(record, server.model)
        else:
            check_applied(plan, server.state, {})
    return Finished(model=server.model(), state=server.state, history=server.records)


def _rounds(
    grid: Grid, config: ServerConfig, network: nn.Module, server: Server, evaluate: Evaluate | None
) -> Iterator[RoundRecord]:
    """Yield the record of each round after a line of progress."""
    plan, state, evaluators = config.plan, server.state, config.evaluators()
    engine = GridEngine.of(
        plan,
        grid,
        network,
        nodes=config.nodes,
        wait=config.wait,
        deadline=plan.deadline,
        clients=config.clients or None,
        partitions=config.num_partitions or None,
    )
    late = None
    if plan.staleness:
        grounded(state)
        late = Late(engine, state)
    pace = Pace(state.round)
    plan = dataclasses.replace(plan, cohort=_at_most(plan.cohort))
    survey = None if evaluators is None else Survey(plan, engine, evaluators, name=engine.name)

    def completed(state: ServerState, record: RoundRecord) -> RoundRecord:
        if plan.privacy is None:  # otherwise nobody may know who was asked
            record = dataclasses.replace(record, missing=engine.attendance.missing)
        return record if survey is None else survey(state, record)

    try:
        for record in server.rounds(
            late or engine,
            plan=plan,
            evaluate=evaluate,
            survey=completed,
            collector=Leaves(plan, engine) if config.clients else None,
        ):
            left = pace.left(record.round, plan.rounds)
            print(progress(record, plan.rounds, left), flush=True)
            yield record
    except NothingApplied as error:
        causes = engine.attendance.causes[:MOST_CAUSES]
        raise NothingApplied("; ".join([str(error), *causes])) from error
    finally:
        if late is not None:
            late.close()


@dataclass(frozen=True)
class AtMost:
    """Draws a fixed number of clients, or all if there are fewer: nodes come and go."""

    size: int

    def cohort(self, seed: int, round: int, clients: int, busy: Collection[int] = ()) -> list[int]:
        return FixedSize(min(self.size, clients)).cohort(seed, round, clients, busy)


def _at_most(cohort: Sampler) -> Sampler:
    """Return a sampler that takes all clients if there are fewer than it draws."""
    return AtMost(cohort.size) if isinstance(cohort, FixedSize) else cohort
