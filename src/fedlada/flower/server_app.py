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

from ..algorithms import Algorithm, Vector, Vectors, algorithm as by_name
from ..federation import RoundRecord, ServerState, Weighting, federate
from ..parameters import BufferPolicy, federated_buffers, federated_parameters
from ..sampling import FixedSize, seed_of
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

    @classmethod
    def read(cls, run_config: Mapping[str, Any]) -> ServerConfig:
        """From a Flower run's config; keys that are not ours are the app's own."""
        names = {name.replace("_", "-"): name for name in cls.__dataclass_fields__}
        return cls(**{names[key]: value for key, value in run_config.items() if key in names})

    def chosen(self) -> tuple[Algorithm, str]:
        """The algorithm, and what tells it to the clients."""
        settings = tomllib.loads(f"settings = {{ {self.settings} }}")["settings"]
        return by_name(self.algorithm, **settings), json.dumps([self.algorithm, settings])


def server_app(
    model: Callable[[], nn.Module],
    *,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
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
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
) -> tuple[nn.Module, ServerState]:
    """One federation over a grid, with a line of progress per round."""
    algorithm, named = config.chosen()
    torch.default_generator.manual_seed(seed_of(config.seed, "model"))
    own = model()
    parameters = Vector(p.detach() for p in federated_parameters(own).values())
    buffers = federated_buffers(own, config.buffers)
    averaged = buffers.clone() if config.buffers == "average" else None
    state = ServerState.new(algorithm, parameters.clone(), averaged)

    @torch.no_grad()
    def loaded() -> nn.Module:
        parameters.copy_(state.vectors.x)
        if averaged is not None:
            buffers.copy_(state.vectors.buffers)
        return own

    def metrics(_: Vectors, round: int) -> Mapping[str, float]:
        return evaluate(loaded()) if evaluate is not None else {}

    engine = GridEngine(
        grid,
        Manifest.of(own, config.buffers),
        algorithm=named,
        up=algorithm.up,
        buffers=config.buffers,
        deadline=config.deadline or None,
        wait=config.wait,
        nodes=config.nodes,
    )
    began = time.monotonic()
    for record in federate(
        algorithm,
        engine,
        state,
        rounds=config.num_server_rounds,
        sampling=FixedSize(min(config.cohort, engine.clients)),
        seed=config.seed,
        lr_decay=config.lr_decay,
        weighting=config.weighting,
        target=config.target or None,
        minimum=config.minimum,
        evaluate=metrics,
    ):
        print(progress(record, config.num_server_rounds, time.monotonic() - began), flush=True)
    return loaded(), state


def progress(record: RoundRecord, rounds: int, elapsed: float) -> str:
    """``round 3/20: 10 of 10 replies, loss 1.234, 8.1 s; about 2 min left``."""
    parts = [f"{record.accepted} of {len(record.cohort)} replies"]
    parts += [f"{count} {reason}" for reason, count in record.failures.items()]
    parts += [] if record.applied else ["round abandoned"]
    parts += [f"{name} {value:.4g}" for name, value in record.metrics.items()]
    left = elapsed / record.round * (rounds - record.round)
    then = f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"
    return f"round {record.round}/{rounds}: {', '.join(parts)}, {record.seconds:.1f} s; {then}"
