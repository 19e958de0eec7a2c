"""The predicted cost as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .checking import Check
from .constants import Constants, Deployed
from .formula import Cost, Setting, Workload

__all__ = ["amount", "checked", "duration", "table"]


def table(
    title: str, work: Workload, setting: Setting, cost: Cost, constants: Constants, on: Deployed
) -> Group:
    """Return the cost of a round and of the run."""
    listed = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name in ("", "each round", f"{setting.rounds:,} rounds"):
        listed.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in _rows(work, setting, cost):
        listed.add_row(*row)
    notes = [
        f"{setting.clients:,} clients, {setting.cohort:,.6g} a round of {work.steps:,.6g} steps;"
        f" {work.parameters:,} parameters; {_where(setting)}",
        f"constants: {constants.source}",
    ]
    if setting.deployment == "flower":
        notes += [
            f"Flower: {on.message:g} s for a round of nothing, {1e9 * on.byte:.2g} ns a byte,"
            f" {on.node_minute:.2g} CPU s a minute for a connected node; a client has"
            f" {setting.down:g} Mbit/s down and {setting.up:g} up, a server {setting.link:g}",
            f"money: {setting.price_gb:g} per GB sent by servers, {setting.price_hour:g} per server"
            " and hour",
        ]
    if cost.polling > 1:
        notes.append(
            f"idle nodes would keep {cost.polling:,.0f} cores of a SuperLink busy, and Python uses"
            " one: give it fewer (--leaves), or gateways (docs/scale.md)"
        )
    return Group(listed, *(Text(note) for note in notes))


def _rows(work: Workload, setting: Setting, cost: Cost) -> list[tuple[str, str, str]]:
    rounds, flower = setting.rounds, setting.deployment == "flower"

    def bytes_row(name: str, count: float) -> tuple[str, str, str]:
        return name, amount(count), amount(rounds * count)

    rows = [
        bytes_row("bytes down, one client", work.bytes_down),
        bytes_row("bytes up, one client", work.bytes_up),
        bytes_row("bytes down, all clients", cost.bytes_down),
        bytes_row("bytes up, all clients", cost.bytes_up),
    ]
    if cost.bytes_root:
        rows.append(bytes_row("bytes between leaves and root", cost.bytes_root))
    rows += [
        ("a client computes", duration(cost.client_seconds), ""),
        *([("its bytes travel", duration(cost.transfer_seconds), "")] if flower else []),
        _time_row("CPU of the servers", cost.server_seconds, rounds),
        ("memory of a server", amount(cost.server_memory), ""),
        ("a checkpoint", amount(cost.save_bytes), ""),
        _time_row("it takes", cost.save_seconds, rounds),
    ]
    if cost.kept_bytes:
        rows.append(("kept by clients", "", amount(cost.kept_bytes)))
    if flower:
        rows.append(("cores of a SuperLink for polls", f"{cost.polling:,.3g}", ""))
    rows.append(("time", duration(cost.seconds), duration(cost.run_seconds)))
    if flower:
        rows.append(("money", f"{cost.run_money / rounds:,.3g}", f"{cost.run_money:,.3g}"))
    return rows


def _time_row(name: str, seconds: float, rounds: int) -> tuple[str, str, str]:
    return name, duration(seconds), duration(rounds * seconds)


def _where(setting: Setting) -> str:
    if setting.deployment == "process":
        return f"simulated by {setting.workers} process{'es' if setting.workers > 1 else ''}"
    return f"on Flower, {setting.leaves or 'no'} leaves"


def checked(checks: Sequence[Check]) -> Table:
    """Return predictions beside measured rounds that were not used to make them."""
    listed = Table(
        title="Rounds that were measured and not used for the constants",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
    )
    for name in ("", "predicted", "measured", "error", "bytes", "error of bytes"):
        listed.add_column(name, justify="right" if name else "left", no_wrap=True)
    for check in checks:
        listed.add_row(
            check.what,
            duration(check.predicted),
            duration(check.measured),
            f"{check.error:+.1%}",
            amount(check.bytes_measured),
            f"{check.bytes_error:+.1%}",
        )
    return listed


def amount(count: float) -> str:
    """Return bytes as people read them, such as ``12.3 MB``."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Return seconds as people read them, such as ``3.2 min``."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
