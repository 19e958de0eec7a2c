"""A cache of decoded images on disk.

A machine decodes each file only once, and processes share the memory of the cache. The cache is
in the directory of the data if that is writable, otherwise in ``$XDG_CACHE_HOME/fedlada`` or
``~/.cache/fedlada``. Its name contains a hash of the path, size and modification time of the
decoded files, so a changed file is decoded again. The cache may be deleted at any time.
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

from .examples import Images

__all__ = ["cache_file", "cached"]

WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
VERSION = 1  # of the decoding and of the storage format


def cached(name: str, sources: Sequence[Path], decode: Callable[[], Images]) -> Images:
    """Return the images from the cache, or decode them and write the cache.

    If several processes ask at the same time, one decodes and the others wait for it. Nothing is
    cached if no directory is writable or if the images come from no file.
    """
    place = cache_file(name, sources) if sources else None
    if place is None:
        return decode()
    images = _read(place)
    if images is None:
        with FileLock(f"{place}.lock"):
            images = _read(place) or _write(place, decode())
    return images


def cache_file(name: str, sources: Sequence[Path]) -> Path | None:
    """Return the path of the cache of these files; None if no directory is writable."""
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
    """Return whether to write to a directory; root also respects a mode without write bits."""
    return os.access(directory, os.W_OK) and bool(directory.stat().st_mode & WRITE_BITS)


def _read(place: Path) -> Images | None:
    """Map the cache into memory; return None if it does not exist or cannot be read."""
    try:
        held = torch.load(place, mmap=True, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        return None
    return Images(held["inputs"], held["labels"], tuple(held["classes"]))


def _write(place: Path, images: Images) -> Images:
    """Write a temporary file in the same directory, sync it to disk, and rename it."""
    held = {"inputs": images.inputs, "labels": images.labels, "classes": list(images.classes)}
    with NamedTemporaryFile(dir=place.parent, prefix=f"{place.name}.", delete=False) as part:
        try:
            torch.save(held, part)
            part.flush()
            os.fsync(part.fileno())
            os.chmod(part.name, 0o644)  # users who can read the data can read the cache
            Path(part.name).replace(place)
        except OSError:  # such as a full disk: continue without a cache
            Path(part.name).unlink(missing_ok=True)
    return images
