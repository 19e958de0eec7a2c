"""Compares the model that this machine builds with the one that the server builds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from torch import nn

from ...atomic import write
from ...errors import FedladaError, missing_extra
from ...named import find
from ...protocol.federated import BufferPolicy
from ...protocol.manifest import Manifest
from ...server.plan import Plan
from ...server.saving.checkpoint import versions
from . import Finding, ok, problem

__all__ = ["Expected", "dry_run", "model", "write_expected"]


class Expected:
    """What the server's machine has: a JSON file of versions and the manifest of its model."""

    def __init__(self, path: Path) -> None:
        sentence = f"{path} was not written by fedlada doctor --write; get it from the server"
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            self.versions = {str(k): str(v) for k, v in content["versions"].items()}
            self.buffers, self.manifest = str(content["buffers"]), str(content["manifest"])
            self.personal = str(content.get("personal", ""))
        except OSError as error:
            raise FedladaError(
                f"{path} cannot be read ({error.strerror}); get it from the server"
            ) from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise FedladaError(sentence) from None


def model(
    name: str, *, app: Path, buffers: str, personal: str, expected: Expected | None
) -> Iterator[Finding]:
    """Build the model and compare its manifest; this runs the app's code."""
    if expected is not None:
        buffers, personal = expected.buffers, expected.personal
    try:
        manifest = built(name, app=app, buffers=buffers, personal=personal)
        if expected is not None:
            manifest.check(expected.manifest)
    except FedladaError as error:
        yield problem("model", f"{name}: {error}")
        return
    numbers = sum(entry.numel for entry in manifest.parameters)
    text = f"{name} has {numbers:,} parameters; its manifest is {digest(manifest.text())}"
    yield ok("model", text + (", as on the server" if expected else ""))


def write_expected(path: Path, name: str, *, app: Path, buffers: str, personal: str) -> None:
    """Write what nodes should expect: the versions here and the manifest of the model."""
    manifest = built(name, app=app, buffers=buffers, personal=personal).text()
    text = {
        "versions": versions(),
        "model": name,
        "buffers": buffers,
        "personal": personal,
        "manifest": manifest,
    }
    write(path, (json.dumps(text, indent=1) + "\n").encode())


def dry_run(node: str, name: str, *, app: Path) -> Finding:
    """Run one round of the app on this node's data, in this process."""
    try:
        from ..dry_run import rehearse
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a dry run", "fedlada[flower]") from None
    try:
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # standard output is for the lines of the doctor
            record = rehearse(app, node, lambda: made(name, app=app))
    except FedladaError as error:
        return problem("dry run", f"{app}: {error}")
    text = ", ".join(f"{key} {value:.4g}" for key, value in record.client_metrics.items())
    return ok(
        "dry run",
        f"one round of {app} on this node's data: {record.steps:.0f} steps in"
        f" {record.local_seconds:.1f} s{', ' + text if text else ''}; nothing was sent",
    )


def built(name: str, *, app: Path, buffers: str, personal: str = "") -> Manifest:
    """Return the manifest of the model that ``package.module:NAME`` makes."""
    patterns = Plan(personal=personal).personal
    return Manifest.of(made(name, app=app), cast(BufferPolicy, buffers), patterns)


def made(name: str, *, app: Path) -> nn.Module:
    """Build the model that ``package.module:NAME`` makes."""
    if str(app.resolve()) not in sys.path:
        sys.path.insert(0, str(app.resolve()))
    named = find(name, "model")
    try:
        network = named() if callable(named) and not isinstance(named, nn.Module) else named
    except Exception as error:
        raise FedladaError(
            f"it cannot be built without arguments ({type(error).__name__}: {error}); give the"
            " function that the app gives to client_app"
        ) from error
    if not isinstance(network, nn.Module):
        raise FedladaError(f"it is a {type(network).__name__}, not a torch.nn.Module")
    return network


def digest(manifest: str) -> str:
    """Return the first letters of a manifest's hash, for people to compare."""
    return hashlib.sha256(manifest.encode()).hexdigest()[:16]
