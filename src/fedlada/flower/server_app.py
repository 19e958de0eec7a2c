"""The server side on Flower: a ready ServerApp around the common server loop."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from ..algorithms import algorithm as named_algorithm
from ..protocol.seeds import seed_of
from ..server.checkpoint import Checkpoints
from ..server.loop import check_applied, federate
from ..server.model import Evaluate, Server
from ..server.plan import Plan, settings_table
from ..server.record import RoundRecord
from ..server.sampling import FixedSize
from ..server.state import ServerState
from ..server.watch import watchers
from .grid import GridEngine

__all__ = ["KEYS", "ServerConfig", "run_server", "server_app"]

RENAMED = {"rounds": "num-server-rounds", "sampling": "cohort"}

KEYS = {f.name: RENAMED.get(f.name, f.name.replace("_", "-")) for f in dataclasses.fields(Plan)}
"""The key in a run's config for each field of a plan."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The config of a run: its plan, and settings that only matter on Flower.

    Each field is a key of the app's config, with dashes for underscores.  Two fields of the plan
    have other names there: ``num-server-rounds`` for rounds and ``cohort`` for sampling.  The key
    ``settings`` has hyper-parameters of the algorithm as in TOML: ``lr = 0.01, alpha = 0.05``.
    """

    plan: Plan = field(default_factory=Plan)
    deadline: float = 0.0
    """Seconds a round may take; 0 for no deadline."""
    nodes: int = 1
    """Number of nodes that must be connected before the first round."""
    wait: float = 60.0
    """Seconds to wait for these nodes."""
    num_partitions: int = 0
    """Number of nodes, each one client, connected or not; 0 takes what most of the nodes say."""
    checkpoints: str = ""
    """A directory on the ServerApp's machine for checkpoints; a run started with the same config
    continues from there."""
    checkpoint_every: int = 1
    log_format: str = ""
    """``json`` adds one JSON object per event to the ServerApp's standard error."""
    metrics: str | int = ""
    """A port of 127.0.0.1, or ``address:port``, at which Prometheus finds metrics of the run."""

    @classmethod
    def read(cls, run_config: Mapping[str, Any]) -> ServerConfig:
        """Read a Flower run's config; other keys belong to the app and are ignored."""
        given = {name: run_config[key] for name, key in KEYS.items() if key in run_config}
        plan = Plan.of(**given)
        settings = settings_table(run_config.get("settings", ""))
        if settings:
            plan = dataclasses.replace(plan, algorithm=named_algorithm(plan.algorithm, **settings))
        own = {f.name: f.name.replace("_", "-") for f in dataclasses.fields(cls)}
        del own["plan"]
        return cls(
            plan=plan, **{name: run_config[key] for name, key in own.items() if key in run_config}
        )

    def saving(self) -> Checkpoints | None:
        """Return the checkpoints, if any; they wait for a ServerApp whose SuperLink was killed."""
        if not self.checkpoints:
            return None
        return Checkpoints(self.checkpoints, every=self.checkpoint_every, wait=60.0)


def server_app(
    model: Callable[[], nn.Module],
    *,
    evaluate: Evaluate | None = None,
    finished: Callable[[nn.Module, ServerState, Context], None] | None = None,
) -> ServerApp:
    """Make a ServerApp that runs any algorithm, as the run's config says (:class:`ServerConfig`).

    ``evaluate(model)`` is called after every round, ``finished`` once at the end.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = ServerConfig.read(context.run_config)
        trained, state = run_server(grid, config, model, evaluate=evaluate)
        if finished is not None:
            finished(trained, state, context)

    return app


def run_server(
    grid: Grid,
    config: ServerConfig,
    model: Callable[[], nn.Module],
    *,
    evaluate: Evaluate | None = None,
) -> tuple[nn.Module, ServerState]:
    """Run one federation over a grid and print a line of progress per round."""
    plan = config.plan
    torch.default_generator.manual_seed(seed_of(plan.seed, "model"))
    own = model()
    server = Server(
        plan,
        own,
        checkpoints=config.saving(),
        watch=functools.partial(watchers, config.log_format, config.metrics),
    )
    if server.resumed is not None:
        print(f"going on after round {server.resumed.round}, from {config.checkpoints}", flush=True)
    with closing(server):
        if server.state.round < plan.rounds:  # else no node needs to be connected
            _rounds(grid, config, own, server, evaluate)
        else:
            check_applied(plan, server.state, {})
    return server.model(), server.state


def _rounds(
    grid: Grid, config: ServerConfig, own: nn.Module, server: Server, evaluate: Evaluate | None
) -> None:
    plan, state = config.plan, server.state
    engine = GridEngine.of(
        plan,
        grid,
        own,
        nodes=config.nodes,
        wait=config.wait,
        deadline=config.deadline or None,
        partitions=config.num_partitions or None,
    )
    began, before = time.monotonic(), state.round
    for record in federate(
        _with_the_nodes_there(plan),
        engine,
        state,
        evaluate=server.evaluation(evaluate),
        save=server.save,
    ):
        each = (time.monotonic() - began) / (record.round - before)
        print(progress(record, plan.rounds, each * (plan.rounds - record.round)), flush=True)


@dataclass(frozen=True)
class AtMost:
    """Draws a fixed number of clients, or all if there are fewer: nodes come and go."""

    size: int

    def cohort(self, seed: int, round: int, clients: int) -> list[int]:
        return FixedSize(min(self.size, clients)).cohort(seed, round, clients)


def _with_the_nodes_there(plan: Plan) -> Plan:
    """Return the plan with a cohort of all clients whenever it asks for more."""
    if isinstance(plan.sampling, FixedSize):
        return dataclasses.replace(plan, sampling=AtMost(plan.sampling.size))
    return plan


def progress(record: RoundRecord, rounds: int, left: float) -> str:
    """Return a line: ``round 3/20: 9 of 9 replies, clients' loss 1.2, 8.1 s; about 2 min left``."""
    parts = [f"{record.accepted} of {len(record.cohort)} replies"]
    parts += [f"{count} {reason}" for reason, count in record.failures.items()]
    parts += [f"{count} rejected ({reason})" for reason, count in record.rejected.items()]
    parts += [f"{count} limited ({what})" for what, count in record.limited.items()]
    parts += [] if record.applied else ["round abandoned"]
    parts += [f"clients' {name} {value:.4g}" for name, value in record.client_metrics.items()]
    parts += [f"{name} {value:.4g}" for name, value in record.metrics.items()]
    then = f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"
    return f"round {record.round}/{rounds}: {', '.join(parts)}, {record.seconds:.1f} s; {then}"
