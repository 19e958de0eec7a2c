"""A second device without hardware: tensors that say they are elsewhere, and compute on the CPU.

As on a GPU, an operation on tensors of both devices is an error, only a copy crosses, and the
device has random numbers of its own.  Python implements it by torch's backend "PrivateUse1", which
cannot be undone, so a process that imports this module should run nothing else.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "second"
CROSSING = {"copy_", "_foreach_copy_", "_to_copy"}
"""The operations that may have tensors of both devices."""
FROM_THE_HOST = {"index", "index_put_", "_index_put_impl_"}
"""Those whose rows may be numbered by a tensor of the CPU."""


class Backend:
    """What torch asks the module of a device."""

    def __init__(self) -> None:
        self.float64 = True
        """Whether the device has float64."""
        self.manual_seed_all(0)

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def manual_seed_all(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed).get_state()

    manual_seed = manual_seed_all

    def get_rng_state(self, device: int = 0) -> Tensor:
        return self.random

    def set_rng_state(self, state: Tensor, device: int = 0) -> None:
        self.random = state


BACKEND = Backend()
_setup_privateuseone_for_python_backend(rename=NAME, backend_module=BACKEND)
DEVICE = torch.device(NAME, 0)


class There(Tensor):
    """A tensor on the second device; ``held`` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        if held.dtype == torch.float64 and not BACKEND.float64:
            raise TypeError(f"{DEVICE} has no float64")
        there = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        there.held = held
        return there

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operation: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return carry_out(operation, args, kwargs or {})

    def tolist(self) -> list:
        return self.held.tolist()

    def __repr__(self) -> str:
        return f"There({self.held!r})"

    def __reduce_ex__(self, protocol: object) -> tuple:
        return There, (self.held,)


def carry_out(operation: Callable, args: tuple, kwargs: dict) -> Any:
    """Carry out an operation of which one tensor or more is on the second device."""
    name = operation.overloadpacket.__name__
    tensors = [*tensors_in(args), *tensors_in(kwargs.values())]
    there = {id(t.held): t for t in tensors if isinstance(t, There)}
    checked = [] if name in CROSSING else tensors[:1] if name in FROM_THE_HOST else tensors
    on_the_host = [t for t in checked if t.dim() and not isinstance(t, There)]  # or just a number
    if on_the_host and name.startswith("_foreach") and len(args[0]) > 1:
        return one_by_one(operation, args, kwargs)
    if on_the_host:
        raise RuntimeError(f"{name}: expected all tensors on {DEVICE}, and one is on the CPU")
    device = torch.device((kwargs := dict(kwargs)).pop("device", None) or DEVICE)
    kwargs.pop("pin_memory", None)
    held = [here(arg) for arg in args], {name: here(arg) for name, arg in kwargs.items()}
    result = drawn(operation, *held)
    if name == "copy_" and not isinstance(args[0], There):
        return args[0]
    if device.type != NAME:
        return result.to(device)
    return back(result, there)


def one_by_one(operation: Callable, args: tuple, kwargs: dict) -> list[Tensor] | None:
    """Carry out an operation on lists of tensors whose devices differ, as torch does elsewhere."""
    parts = []
    for i in range(len(args[0])):
        single = [arg[i : i + 1] if isinstance(arg, list) else arg for arg in args]
        parts.append(operation(*single, **kwargs))
    return None if parts[0] is None else [part[0] for part in parts]


def drawn(operation: Callable, args: list, kwargs: dict) -> Any:
    """Return the result of an operation, its random numbers from the device's own."""
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return operation(*args, **kwargs)
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"expected a generator of {DEVICE}, and it is one of the CPU")
    host = torch.get_rng_state()
    torch.set_rng_state(BACKEND.random)
    try:
        return operation(*args, **kwargs)
    finally:
        BACKEND.random = torch.get_rng_state()
        torch.set_rng_state(host)


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among an operation's arguments, of which some are lists of tensors."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def here(value: object) -> object:
    """Return an argument of an operation with the tensors that the device holds."""
    if isinstance(value, list | tuple):
        return [here(part) for part in value]
    return value.held if isinstance(value, There) else value


def back(result: object, there: dict[int, There]) -> object:
    """Return the tensors that an operation has changed, and new ones in place of what it made."""
    if isinstance(result, list | tuple):
        return type(result)(back(part, there) for part in result)
    if not isinstance(result, Tensor):
        return result
    return there[id(result)] if id(result) in there else There(result)


def empty(size: list[int], *, dtype: torch.dtype | None = None, **layout: object) -> Tensor:
    form = layout.get("memory_format") or torch.contiguous_format
    return There(torch.empty(size, dtype=dtype, memory_format=form))


def empty_strided(
    size: list[int], stride: list[int], *, dtype: torch.dtype | None = None, **layout: object
) -> Tensor:
    return There(torch.empty_strided(size, stride, dtype=dtype))


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    here(target).copy_(here(source))
    return target


OPERATIONS, EVERY = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
OPERATIONS.impl("empty.memory_format", empty, "PrivateUse1")
OPERATIONS.impl("empty_strided", empty_strided, "PrivateUse1")
OPERATIONS.impl("_copy_from", copy_from, "PrivateUse1")
EVERY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
