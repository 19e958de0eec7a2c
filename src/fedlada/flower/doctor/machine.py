"""Checks this machine: installed versions, private files, directories and disk space."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from ...errors import missing_extra
from ...server.saving.checkpoint import versions
from . import Finding, ok, problem, warning

__all__ = ["directory", "installed", "private_key", "same_versions"]

GIGABYTE = 10**9
MUST_MATCH = ("fedlada", "flwr")
"""Packages that server and nodes must have in the same version.  With other versions of the rest a
run works, but may end in other bits."""


def installed() -> Iterator[Finding]:
    """Check the versions of Python and packages against what this fedlada supports."""
    present, supported = versions(), _supported()
    for name in ("python", "fedlada", "torch", "flwr"):
        if name not in present:
            yield problem("version", f'{name} is not installed; run pip install "fedlada[flower]"')
        elif name not in supported:
            yield ok("version", f"{name} {present[name]}")
        elif _within(present[name], supported[name]):
            yield ok("version", f"{name} {present[name]} (supported: {supported[name]})")
        else:
            yield problem(
                "version",
                f"{name} {present[name]} is not supported: install {name} {supported[name]}",
            )


def same_versions(expected: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the versions here with those of the server."""
    present = versions()
    for name, theirs in expected.items():
        mine = present.get(name, "none")
        if mine == theirs:
            yield ok("server's version", f"{name} {mine}, as on the server")
        elif name in MUST_MATCH:
            yield problem(
                "server's version",
                f"{name} is {mine} here and {theirs} on the server; install {name}=={theirs}",
            )
        else:
            yield warning(
                "server's version",
                f"{name} is {mine} here and {theirs} on the server; a run works, and may end in"
                " other bits",
            )


def private_key(path: Path) -> Iterator[Finding]:
    """Check that a SuperNode's private key is one, and that nobody else can read it."""
    try:
        content, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        yield problem("key", f"{path} cannot be read ({error.strerror}); give the node's own key")
        return
    if mode & 0o077:
        yield problem("key", f"{path} can be read by others (mode {mode:o}); run chmod 600 {path}")
    else:
        yield ok("key", f"{path} is private (mode {mode:o})")
    yield _kind(path, content)


def directory(path: Path, *, free: float) -> Finding:
    """Check that a directory can be written or created, and that ``free`` gigabytes are left."""
    existing = next((each for each in (path, *path.absolute().parents) if each.exists()), path)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"fedlada")
        left = shutil.disk_usage(existing).free / GIGABYTE
    except OSError as error:
        return problem(
            "disk",
            f"{path} cannot be written ({error.strerror}: {existing}); give a directory of user"
            f" {os.geteuid()}, who runs this",
        )
    text = f"{path} can be {'written' if path.is_dir() else 'created'}, {left:.1f} GB are free"
    if left < free:
        return problem(
            "disk", f"{text}, but {free:g} are required; free disk space, or use another disk"
        )
    return ok("disk", text)


def _supported() -> dict[str, str]:
    """Return the ranges in the package's own metadata."""
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada doctor", "fedlada[flower]") from None
    try:
        ranges = {r.name: str(r.specifier) for r in map(Requirement, requires("fedlada") or ())}
        ranges["python"] = metadata("fedlada")["Requires-Python"]
    except PackageNotFoundError:  # the sources are on the path without being installed
        return {}
    return {name: specifier for name, specifier in ranges.items() if specifier}


def _within(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _kind(path: Path, content: bytes) -> Finding:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada doctor", "fedlada[flower]") from None
    advice = "make one on this node: ssh-keygen -t ecdsa -b 384 -N '' -f node.key"
    try:
        key = load_ssh_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        return problem("key", f"{path} is not a private key without a password ({error}); {advice}")
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.key_size != 384:
        return problem("key", f"{path} is no ECDSA key on the curve P-384; {advice}")
    return ok("key", f"{path} is an ECDSA key on the curve P-384")
