"""Devices: where a model is, how data gets there, and what differs from one device to another.

A model chooses the device: ``model.to("cuda")``, and all else follows it.  No other module names a
kind of device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .errors import FedladaError, nearest, require

__all__ = [
    *("BLOCK", "CPU", "block_of", "by_rank", "chosen", "device_of", "has_fused", "home"),
    *("in_bfloat16", "moved", "named", "numbers", "seeded", "wide", "with_float64"),
]

CPU = torch.device("cpu")

KINDS = ("auto", "cpu", "cuda", "mps")
"""What a user may choose; ``cuda:1`` and the kinds of other backends of torch work, too."""

WITHOUT_FLOAT64 = ("mps",)
WITH_FUSED = ("cpu", "cuda", "mps", "xpu")
"""Where torch has its optimizers as single kernels."""

BLOCK = 32_768
"""Numbers that a CPU processes at a time where that is faster: they fit in a core's cache."""
LARGE_BLOCK = 2**22
"""The same for other devices: enough to keep them busy."""


def chosen(name: str = "auto") -> torch.device:
    """Return the device of a name: ``cpu``, ``cuda``, ``cuda:1``, ``mps``; ``auto`` is the best.

    ``auto`` is the accelerator of this machine, or the CPU.  Of several accelerators, each process
    that ``torchrun`` started gets its own.
    """
    device, accelerator = named(name), _accelerator()
    if device is None:
        return CPU if accelerator is None else by_rank(accelerator)
    if device == CPU:
        return device
    require(
        accelerator is not None and accelerator.type == device.type,
        f"device is {name!r}, and this machine has"
        f" {'no accelerator' if accelerator is None else accelerator.type} that torch can use;"
        " choose 'auto' or 'cpu', or install the build of torch for it",
    )
    count = torch.get_device_module(device).device_count()
    require(
        (device.index or 0) < count,
        f"device is {name!r}, and the devices of this machine are numbered from 0 to {count - 1}",
    )
    return by_rank(device)


def named(name: str) -> torch.device | None:
    """Return the device of a name, which this machine may not have; None for ``auto``."""
    if name == "auto":
        return None
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise FedladaError(
            f"device is {name!r}; {nearest(str(name), KINDS)}; a number may follow, as in cuda:1"
        ) from error


def by_rank(device: torch.device) -> torch.device:
    """Return the device of this process: with ``torchrun``, each rank of a machine has another.

    A device with a number stays as it is.
    """
    rank, accelerator = os.environ.get("LOCAL_RANK"), _accelerator()
    if rank is None or accelerator is None or device != torch.device(accelerator.type):
        return device
    return torch.device(device.type, int(rank) % torch.get_device_module(device).device_count())


def device_of(model: nn.Module) -> torch.device:
    """Return where a model gets its inputs: the device of its first parameter, or buffer."""
    for t in chain(model.parameters(), model.buffers()):  # to list them all takes long
        return t.device
    return CPU


def home(device: torch.device) -> torch.device:
    """Return where the server keeps its vectors for a model on this device.

    That is the same device, or the CPU if it has no float64, in which means are summed.
    """
    return CPU if device.type in WITHOUT_FLOAT64 else device


def has_fused(device: torch.device) -> bool:
    """Return whether torch has fused optimizers for this device."""
    return device.type in WITH_FUSED


def moved(t: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of a batch on a device; one that is there already is not copied.

    The copy to a GPU runs beside the host's work.  A batch is not pinned for it: that copies the
    batch once more, and takes the training's own thread.  Data that a user has pinned are faster.
    """
    if t.device == device:
        return t
    if t.dtype == torch.float64 and device.type in WITHOUT_FLOAT64:
        t = t.float()
    # From a GPU it must wait: the numbers are read at once.
    return t.to(device, non_blocking=t.device == CPU and device.type == "cuda")


def in_bfloat16(device: torch.device) -> torch.autocast:
    """Return a block inside which torch computes layers of float32 in bfloat16 on this device."""
    require(
        torch.amp.is_autocast_available(device.type),
        f"autocast is 'bfloat16', and torch has no autocast for {device.type}; leave autocast out,"
        " or choose another device",
    )
    return torch.autocast(device.type, dtype=torch.bfloat16)


def with_float64(t: Tensor) -> Tensor:
    """Return a tensor as it is, or a copy on the CPU if its device has no float64."""
    return t.to(home(t.device))


def wide(t: Tensor) -> Tensor:
    """Return a tensor as float64, on the CPU if its device has none."""
    return with_float64(t).double()


def numbers(scalars: Iterable[Tensor]) -> list[float]:
    """Return the numbers in tensors of one element each; a device is waited for only once."""
    scalars = list(scalars)
    if len(scalars) < 2 or scalars[0].device == CPU:
        return [float(t) for t in scalars]
    if any(t.device != scalars[0].device for t in scalars):
        return [float(t) for t in scalars]
    together: list[float] = torch.stack([t.reshape(()) for t in scalars]).tolist()
    return together


def block_of(device: torch.device) -> int:
    """Return how many numbers are processed at a time on this device."""
    return BLOCK if device.type == "cpu" else LARGE_BLOCK


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch on every device inside the block and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        # Without an accelerator, torch.manual_seed would queue a call with a stack trace for CUDA.
        torch.default_generator.manual_seed(seed)
        sources = _sources()
        before = [source.get() for source in sources]
        for source in sources:
            source.seed(seed)
        try:
            yield
        finally:
            for source, state in zip(sources, before, strict=True):
                source.set(state)


class _Source(NamedTuple):
    """The random numbers of an accelerator."""

    get: Callable[[], Any]
    set: Callable[[Any], object]
    seed: Callable[[int], object]


def _sources() -> list[_Source]:
    """Return the random numbers of every accelerator that this process can use."""
    sources, kind = list[_Source](), _accelerator()
    if kind is not None:
        module = torch.get_device_module(kind)
        every = range(module.device_count())
        sources.append(
            _Source(
                get=lambda: [module.get_rng_state(i) for i in every],
                set=lambda states: [module.set_rng_state(states[i], i) for i in every],
                seed=getattr(module, "manual_seed_all", module.manual_seed),
            )
        )
    xla = sys.modules.get("torch_xla.core.xla_model")
    if xla is not None:  # which torch does not count as an accelerator
        sources.append(_Source(xla.get_rng_state, xla.set_rng_state, xla.set_rng_state))
    return sources


def _accelerator() -> torch.device | None:
    """Return the kind of accelerator that torch can use here, if there is one."""
    kind = torch.accelerator.current_accelerator()
    return kind if kind is not None and torch.accelerator.is_available() else None
