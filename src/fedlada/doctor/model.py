"""The model that this machine builds, against the one that the server builds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from torch import nn

from ..algorithms.ingredients import find
from ..atomic import write
from ..errors import FedladaError, missing_extra
from ..protocol.federated import BufferPolicy
from ..protocol.manifest import Manifest
from ..server.saved import versions
from .finding import Finding, ok, problem

__all__ = ["Expected", "dry_run", "model", "write_expected"]


class Expected:
    """What the server's machine has: a JSON file of versions and the manifest of its model."""

    def __init__(self, path: Path) -> None:
        sentence = f"{path} is not what fedlada doctor --write writes; get it from the server"
        try:
            given: dict[str, Any] = json.loads(path.read_bytes())
            self.versions = {str(k): str(v) for k, v in given["versions"].items()}
            self.buffers, self.manifest = str(given["buffers"]), str(given["manifest"])
        except OSError as error:
            raise FedladaError(
                f"{path} cannot be read ({error.strerror}); get it from the server"
            ) from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise FedladaError(sentence) from None


def model(name: str, *, app: Path, buffers: str, expected: Expected | None) -> Iterator[Finding]:
    """Build the model and compare its manifest; this runs the app's code."""
    try:
        own = built(name, app=app, buffers=expected.buffers if expected else buffers)
        if expected is not None:
            own.check(expected.manifest)
    except FedladaError as error:
        yield problem("model", f"{name}: {error}")
        return
    numbers = sum(entry.numel for entry in own.parameters)
    told = f"{name} has {numbers:,} parameters; its manifest is {digest(own.text())}"
    yield ok("model", told + (", as on the server" if expected else ""))


def write_expected(path: Path, name: str, *, app: Path, buffers: str) -> None:
    """Write what nodes are to expect: the versions here and the manifest of the model."""
    manifest = built(name, app=app, buffers=buffers).text()
    told = {"versions": versions(), "model": name, "buffers": buffers, "manifest": manifest}
    write(path, (json.dumps(told, indent=1) + "\n").encode())


def dry_run(node: str, name: str, *, app: Path) -> Finding:
    """Run one round of the app on this node's data, in this process."""
    try:
        from ..flower.rehearsal import rehearse
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a dry run", "fedlada[flower]") from None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the lines of the doctor are for others
            record = rehearse(app, node, lambda: made(name, app=app))
    except FedladaError as error:
        return problem("dry run", f"{app}: {error}")
    told = ", ".join(f"{key} {value:.4g}" for key, value in record.client_metrics.items())
    return ok(
        "dry run",
        f"one round of {app} on this node's data: {record.steps:.0f} steps in"
        f" {record.local_seconds:.1f} s{', ' + told if told else ''}; nothing was sent",
    )


def built(name: str, *, app: Path, buffers: str) -> Manifest:
    """Return the manifest of the model that ``package.module:NAME`` makes."""
    return Manifest.of(made(name, app=app), cast(BufferPolicy, buffers))


def made(name: str, *, app: Path) -> nn.Module:
    """Build the model that ``package.module:NAME`` makes."""
    if str(app.resolve()) not in sys.path:
        sys.path.insert(0, str(app.resolve()))
    named = find(name, "model")
    try:
        own = named() if callable(named) and not isinstance(named, nn.Module) else named
    except Exception as error:
        raise FedladaError(
            f"it cannot be built without arguments ({type(error).__name__}: {error}); give the"
            " function that the app gives to client_app"
        ) from error
    if not isinstance(own, nn.Module):
        raise FedladaError(f"it is a {type(own).__name__}, not a torch.nn.Module")
    return own


def digest(manifest: str) -> str:
    """Return the first letters of a manifest's hash, to compare by telephone."""
    return hashlib.sha256(manifest.encode()).hexdigest()[:16]
