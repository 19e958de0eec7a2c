"""``fedlada cost``: what a federation costs, before it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from ..errors import ExperimentError, nearest
from .cost.checking import Check, measured
from .cost.constants import DEPLOYED, REFERENCE
from .cost.formula import Deployment, Setting, predict
from .cost.table import checked, table
from .cost.workload import cohort_of, workload
from .results.holdings import first
from .run.memory import keep_memory
from .run.problem import build

__all__ = ["EXAMPLE", "cost"]

EXAMPLE = (
    "Example: fedlada cost experiments/digits.toml --clients 100000 --cohort 1000"
    " --deployment flower --leaves 100 --measure"
)
SECONDS = 4.0
"""How long --measure lets rounds take turns; a large model takes longer."""
console = Console()

Count = Annotated[int | None, typer.Option(min=1, help="else as the file says")]
_LEAST = 1e-6


def cost(
    file: Annotated[Path, typer.Argument(help="the experiment's TOML file", show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="such as algorithm=scaffold train.steps=10"),
    ] = None,
    clients: Count = None,
    cohort: Count = None,
    rounds: Count = None,
    deployment: Annotated[str, typer.Option(help="process or flower")] = "process",
    workers: Annotated[int, typer.Option(min=1, help="processes of a simulation")] = 1,
    leaves: Annotated[int, typer.Option(min=0, help="aggregators below the root")] = 0,
    down: Annotated[float, typer.Option(min=_LEAST, help="Mbit/s to a client")] = Setting.down,
    up: Annotated[float, typer.Option(min=_LEAST, help="Mbit/s from a client")] = Setting.up,
    link: Annotated[float, typer.Option(min=_LEAST, help="Mbit/s of a server")] = Setting.link,
    speed: Annotated[
        float, typer.Option(min=_LEAST, help="of a client; 1 is the machine of the constants")
    ] = Setting.speed,
    price_gb: Annotated[float, typer.Option(min=0, help="per GB servers send")] = Setting.price_gb,
    price_hour: Annotated[
        float, typer.Option(min=0, help="per server and hour")
    ] = Setting.price_hour,
    measure: Annotated[
        bool, typer.Option("--measure", help="measure this machine by some seconds of real rounds")
    ] = False,
) -> None:
    """Predict bytes, memory, CPU, time and money of a federation.

    Bytes follow from algorithm, model and codec. Times follow from constants of a machine that the
    table names or, with --measure, of this one. KEY=VALUE overrides a key of FILE; of a sweep the
    first run counts.
    """
    where = _where(deployment, workers=workers, leaves=leaves)
    keep_memory()
    config = first(file, changes or ())
    problem = build(config)
    work = workload(config, problem)
    known = clients or len(problem.clients)
    setting = Setting(
        clients=known,
        cohort=_cohort(cohort or cohort_of(config.plan(), known), known),
        rounds=rounds or config.federation.rounds,
        deployment=where,
        workers=workers,
        leaves=leaves,
        down=down,
        up=up,
        link=link,
        speed=speed,
        price_gb=price_gb,
        price_hour=price_hour,
    )
    constants, checks = REFERENCE, list[Check]()
    if measure:
        constants, checks = measured(config, problem, work, seconds=SECONDS)
    title = f"The cost of {config.title} on {config.data.dataset}, {config.model.name}"
    found = predict(work, setting, constants, DEPLOYED)
    console.print(table(title, work, setting, found, constants, DEPLOYED))
    console.print(checked(checks) if measure else "--measure measures this machine instead")


def _where(name: str, *, workers: int, leaves: int) -> Deployment:
    """Return the deployment of this name, which must fit the other options."""
    if name not in get_args(Deployment):
        raise ExperimentError(f"--deployment is {name!r}; {nearest(name, get_args(Deployment))}.")
    if leaves and name != "flower":
        raise ExperimentError(f"--leaves is {leaves}; leaves need --deployment flower.")
    if workers > 1 and name != "process":
        raise ExperimentError(f"--workers is {workers}; workers need --deployment process.")
    return "flower" if name == "flower" else "process"


def _cohort(cohort: float, clients: int) -> float:
    if cohort > clients:
        raise ExperimentError(
            f"the cohort has {cohort:g} clients, but there are {clients}; give a smaller --cohort,"
            " or more --clients."
        )
    return cohort
