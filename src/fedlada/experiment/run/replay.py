"""Trains a run with late replies once more, from its records, and compares the result."""

from __future__ import annotations

from pathlib import Path

from ...devices import chosen
from ...engines import InProcess, MemoryStore
from ...engines.replay import replay
from ...errors import ExperimentError
from ...protocol.federated import PERSONAL
from ...server.record import record_of
from ...server.server import Server
from .directory import RunDirectory
from .problem import build

__all__ = ["replayed"]


def replayed(path: Path) -> tuple[int, list[str]]:
    """Return the number of rounds that were trained again, and the vectors with other bits."""
    directory = RunDirectory(path)
    config = directory.experiment()
    plan, saved = config.plan(), directory.checkpoints().latest()
    if saved is None:
        raise ExperimentError(f"{path} has no checkpoint; fedlada resume {path} runs it.")
    problem = build(config)
    problem.model.to(chosen(config.device))
    parts = plan.algorithm, problem.model, problem.clients, problem.train
    kept = {"buffers": plan.buffers, "personal": plan.personal}
    engine = InProcess(*parts, store=MemoryStore(), **kept)  # type: ignore[arg-type]
    state = Server(plan, problem.model, watch=list).state
    if PERSONAL in state.vectors:
        engine.newcomer = state.vectors.personal
    records = [record_of(record) for record in directory.records()][: saved.state.round]
    for _ in replay(plan, engine, state, records):
        pass
    recorded = saved.state.vectors.on(state.vectors.x.device)
    names = sorted(state.vectors.keys() | recorded.keys())
    same = {
        name: name in recorded
        and name in state.vectors
        and state.vectors[name].equal(recorded[name])
        for name in names
    }
    return state.round, [name for name in names if not same[name]]
