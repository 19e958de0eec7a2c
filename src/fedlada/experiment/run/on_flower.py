"""A run whose server and clients are processes of Flower on this machine.

The ServerApp of ``flower_app`` writes records and checkpoints into the run's directory, as an
in-process run does.  This module starts Flower, reads the records as they are written, and stops
Flower.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tomli_w

from ...errors import ExperimentError
from ...protocol.federated import clients_keep
from ...server.record import RoundRecord, record_of
from ...server.saving.lock import DirectoryLock
from ..config.experiment import Experiment
from ..config.reading import dump
from .directory import RunDirectory
from .problem import participants

__all__ = ["FLOWER", "watched_rounds"]

FLOWER = "flower"
"""The folder in a run's directory for Flower's homes, keys and logs; deleted after the run."""
POLL = 0.1  # seconds between reads of the records
ENDING = 20.0  # seconds to wait for the processes of a killed run to end


def watched_rounds(config: Experiment, directory: RunDirectory) -> Iterator[RoundRecord]:
    """Run the remaining rounds on the configuration's engine and yield each record."""
    from ...flower.loopback import Deployment, DeploymentError, RaySimulation

    path = directory.path.resolve()
    directory = RunDirectory(path)
    ray, work = config.engine.name == "ray", path / FLOWER
    nodes = participants(config) if ray else config.engine.nodes
    # The ServerApp locks the checkpoints itself, so this lock has another name.
    with DirectoryLock(path / "checkpoints", name="flower.lock").held():
        done = _cut(directory)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        app = _app(config, directory, nodes=nodes)
        try:
            start = RaySimulation if ray else Deployment
            with start(work, nodes=nodes, environment=_environment()) as engine:
                run = engine.begin(app)
                yield from _follow(directory.records_file, done, run.running)
                run.wait()
        except DeploymentError as error:
            raise ExperimentError(
                f"{error}\nAll logs are in {work / 'logs'}; fedlada resume {path} resumes"
                " after the last finished round."
            ) from error
        shutil.rmtree(work)


def _cut(directory: RunDirectory) -> int:
    """Cut the records to the rounds of the newest checkpoint and return their size in bytes."""
    saved = directory.checkpoints(wait=ENDING)
    try:
        saved.resume()
    finally:
        saved.close()
    return directory.records_file.stat().st_size


def _app(config: Experiment, directory: RunDirectory, *, nodes: int) -> Path:
    """Write a Flower app, a pyproject.toml that names ``flower_app``, and return its path."""
    work = directory.path / FLOWER
    told = {
        "experiment": dump(config),
        "directory": str(directory.path),
        "prepared": str(work / "prepared.pt"),
        "nodes": nodes,
    }
    plan = config.plan()
    if clients_keep(plan.algorithm, plan.buffers, plan.personal):
        told["state-directory"] = str(directory.checkpoints().clients)
    told["algorithm"] = json.dumps(config.algorithm)  # clients import only modules that this names
    module = f"{__package__}.flower_app"
    project = {
        "project": {"name": "experiment", "version": "1.0.0", "description": config.name},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedlada",
                    "components": {
                        "serverapp": f"{module}:server",
                        "clientapp": f"{module}:client",
                    },
                    "config": told,
                }
            }
        },
    }
    app = work / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(tomli_w.dumps(project))
    return app


def _environment() -> dict[str, str]:
    """Return FEDLADA_DATA as an absolute path: Flower's processes run in other directories."""
    data = os.environ.get("FEDLADA_DATA")
    return {"FEDLADA_DATA": str(Path(data).resolve())} if data else {}


def _follow(path: Path, done: int, going: Callable[[], bool]) -> Iterator[RoundRecord]:
    """Yield the records after the first ``done`` bytes as they are written, until the run ends."""
    last = False
    while not last:
        last = not going()  # check before reading, so that the last read misses no record
        with path.open("rb") as file:
            file.seek(done)
            whole = b"".join(line for line in file if line.endswith(b"\n"))
        done += len(whole)
        yield from (record_of(json.loads(line)) for line in whole.splitlines())
        if not last:
            time.sleep(POLL)
