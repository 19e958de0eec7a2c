"""The server side on Flower: a ready ServerApp around the one server loop."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from ..admission import Weighting
from ..algorithms import Algorithm, algorithm as by_name, require
from ..algorithms.composition import nearest
from ..checkpoint import Checkpoints
from ..client import keeps
from ..federation import ServerState, federate
from ..guard import Guard
from ..parameters import BufferPolicy
from ..robust import AGGREGATORS
from ..rounds import Aggregator, RoundRecord
from ..sampling import FixedSize, seed_of
from ..server import Evaluate, Server
from .grid import GridEngine
from .records import Manifest

__all__ = ["ServerConfig", "run_server", "server_app"]


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """What a run is told; each is a key of the app's config, with dashes for underscores."""

    num_server_rounds: int = 10
    algorithm: str = "fedlada"
    settings: str = ""
    """Hyper-parameters as in TOML: ``lr = 0.01, alpha = 0.05``."""
    cohort: int = 10
    """Clients sampled per round; all of them if there are fewer."""
    target: int = 0
    """Close a round at so many replies; 0 waits for the whole cohort."""
    minimum: int = 1
    """Abandon a round that ends with fewer replies."""
    deadline: float = 0.0
    """Seconds a round may take; 0 for no deadline."""
    nodes: int = 1
    """Nodes that must be there before the first round."""
    wait: float = 60.0
    """Seconds to wait for them."""
    seed: int = 0
    lr_decay: float = 0.998
    weighting: Weighting = "uniform"
    buffers: BufferPolicy = "refuse"
    guard: str = ""
    """Other limits for the guard, as in TOML: ``slack = 5.0``; ``off`` lets in whatever comes."""
    aggregator: str = "mean"
    """How replies become one: a name of :data:`fedlada.robust.AGGREGATORS`."""
    checkpoints: str = ""
    """A directory, on the ServerApp's machine, to save to; a run started with the same config
    goes on from there."""
    checkpoint_every: int = 1

    @classmethod
    def read(cls, run_config: Mapping[str, Any]) -> ServerConfig:
        """From a Flower run's config; keys that are not ours are the app's own."""
        names = {name.replace("_", "-"): name for name in cls.__dataclass_fields__}
        return cls(**{names[key]: value for key, value in run_config.items() if key in names})

    def identity(self) -> dict[str, object]:
        """What makes the run what it is: with another value the bits would be others."""
        own = ("cohort", "target", "minimum", "seed", "lr_decay", "weighting", "aggregator")
        return {key: getattr(self, key) for key in own} | {"guard": self.limits()}

    def saving(self) -> Checkpoints | None:
        """Where to save, if anywhere; a ServerApp whose SuperLink was killed takes time to end."""
        if not self.checkpoints:
            return None
        return Checkpoints(self.checkpoints, every=self.checkpoint_every, wait=60.0)

    def limits(self) -> Guard | None:
        """The guard; None for none."""
        return None if self.guard == "off" else Guard(**_table(self.guard))

    def chosen_aggregator(self) -> Callable[[], Aggregator]:
        """How replies become one."""
        require(
            self.aggregator in AGGREGATORS,
            f"there is no aggregator {self.aggregator!r}; {nearest(self.aggregator, AGGREGATORS)}",
        )
        return AGGREGATORS[self.aggregator]

    def chosen(self) -> tuple[Algorithm, str]:
        """The algorithm, and what tells it to the clients."""
        settings = _table(self.settings)
        return by_name(self.algorithm, **settings), json.dumps([self.algorithm, settings])


def server_app(
    model: Callable[[], nn.Module],
    *,
    evaluate: Evaluate | None = None,
    finished: Callable[[nn.Module, ServerState, Context], None] | None = None,
) -> ServerApp:
    """A ServerApp that runs any algorithm, as the run's config says (:class:`ServerConfig`).

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
    """One federation over a grid, with a line of progress per round."""
    algorithm, named = config.chosen()
    torch.default_generator.manual_seed(seed_of(config.seed, "model"))
    own = model()
    server = Server(
        own,
        algorithm,
        rounds=config.num_server_rounds,
        buffers=config.buffers,
        checkpoints=config.saving(),
        config=config.identity(),
    )
    if server.resumed is not None:
        print(f"going on after round {server.resumed.round}, from {config.checkpoints}", flush=True)
    if server.state.round >= config.num_server_rounds:
        return server.model(), server.state  # nobody need be there
    engine = GridEngine(
        grid,
        Manifest.of(own, config.buffers),
        algorithm=named,
        keeps=keeps(algorithm, config.buffers),
        buffers=config.buffers,
        deadline=config.deadline or None,
        wait=config.wait,
        nodes=config.nodes,
    )
    began, before = time.monotonic(), server.state.round
    for record in federate(
        algorithm,
        engine,
        server.state,
        rounds=config.num_server_rounds,
        sampling=FixedSize(min(config.cohort, engine.clients)),
        seed=config.seed,
        lr_decay=config.lr_decay,
        weighting=config.weighting,
        target=config.target or None,
        minimum=config.minimum,
        guard=config.limits(),
        aggregator=config.chosen_aggregator(),
        evaluate=server.evaluation(evaluate),
        save=server.save,
    ):
        each = (time.monotonic() - began) / (record.round - before)
        left = each * (config.num_server_rounds - record.round)
        print(progress(record, config.num_server_rounds, left), flush=True)
    return server.model(), server.state


def _table(text: str) -> dict[str, Any]:
    """``lr = 0.01, alpha = 0.05`` as TOML reads it."""
    table: dict[str, Any] = tomllib.loads(f"table = {{ {text} }}")["table"]
    return table


def progress(record: RoundRecord, rounds: int, left: float) -> str:
    """``round 3/20: 10 of 10 replies, loss 1.234, 8.1 s; about 2 min left``."""
    parts = [f"{record.accepted} of {len(record.cohort)} replies"]
    parts += [f"{count} {reason}" for reason, count in record.failures.items()]
    parts += [f"{count} rejected ({reason})" for reason, count in record.rejected.items()]
    parts += [f"{count} limited ({what})" for what, count in record.limited.items()]
    parts += [] if record.applied else ["round abandoned"]
    parts += [f"{name} {value:.4g}" for name, value in record.metrics.items()]
    then = f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"
    return f"round {record.round}/{rounds}: {', '.join(parts)}, {record.seconds:.1f} s; {then}"
