"""Decoded images on disk, so that a machine decodes a file once and processes share its memory.

The cache lies beside the data where that directory can be written to, otherwise in
``$XDG_CACHE_HOME/fedlada`` or ``~/.cache/fedlada``. Its name holds a hash of the path, size and
time of the files that were decoded, so a changed file is decoded again. It may be deleted at any
time.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from filelock import FileLock

from .images import Images

__all__ = ["cache_file", "cached"]

WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
VERSION = 1  # of what is decoded, and how it is stored


def cached(name: str, sources: Sequence[Path], decode: Callable[[], Images]) -> Images:
    """Read what was decoded from these files, or decode it and keep it for the next process.

    Of several processes that ask at once, one decodes and the others wait for it. Where nothing
    can be written, every process decodes for itself; so it does with images from no file.
    """
    place = cache_file(name, sources) if sources else None
    if place is None:
        return decode()
    found = _read(place)
    if found is None:
        with FileLock(f"{place}.lock"):
            found = _read(place) or _write(place, decode())
    return found


def cache_file(name: str, sources: Sequence[Path]) -> Path | None:
    """Say where the cache of these files is, or would be; None if no place can be written to."""
    key = hashlib.sha256(f"fedlada {VERSION} {name}".encode())
    for source in sources:
        about = source.stat()
        key.update(f" {source.resolve()} {about.st_size} {about.st_mtime_ns}".encode())
    file = f"{name}-{key.hexdigest()[:16]}.pt"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for directory in (sources[0].resolve().parent, caches / "fedlada"):
        if directory == caches / "fedlada":
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError:
                return None
        if _writable(directory):
            return directory / file
    return None


def _writable(directory: Path) -> bool:
    """Tell whether to write there: root may everywhere, but a mode without w says not to."""
    return os.access(directory, os.W_OK) and bool(directory.stat().st_mode & WRITE_BITS)


def _read(place: Path) -> Images | None:
    """Map the cache into memory; None if there is none, or none that can be read."""
    try:
        held = torch.load(place, mmap=True, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        return None
    return Images(held["inputs"], held["labels"], tuple(held["classes"]))


def _write(place: Path, images: Images) -> Images:
    """Write beside the place, to the disk, and move it there."""
    held = {"inputs": images.inputs, "labels": images.labels, "classes": list(images.classes)}
    with NamedTemporaryFile(dir=place.parent, prefix=f"{place.name}.", delete=False) as part:
        try:
            torch.save(held, part)
            part.flush()
            os.fsync(part.fileno())
            os.chmod(part.name, 0o644)  # others who read the data may read this too
            Path(part.name).replace(place)
        except OSError:  # a full disk: the images are there all the same
            Path(part.name).unlink(missing_ok=True)
    return images
