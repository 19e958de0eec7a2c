"""Exports the model of a checkpoint as a plain ``state_dict`` for any torch program."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from ...atomic import write
from ...errors import require
from ...protocol.federated import PERSONAL
from .checkpoint import Checkpoint, Checkpoints, safetensors

__all__ = ["export"]


def export(
    checkpoint: Checkpoint | Checkpoints | str | Path,
    path: str | Path,
    model: nn.Module | None = None,
) -> None:
    """Write the model of a checkpoint as a plain ``state_dict`` in safetensors.

    Any torch program can load it: ``model.load_state_dict(safetensors.torch.load_file(path))``.
    Without ``model`` the file has the federated parameters and averaged buffers.  With ``model``
    it also has the tensors that are not federated, such as frozen parameters.

    Each client keeps its own personal tensors, so no file has them trained: a warning and the
    file's metadata name them.
    """
    if isinstance(checkpoint, str | Path):
        checkpoint = Checkpoints(checkpoint)
    if isinstance(checkpoint, Checkpoints):
        latest = checkpoint.latest()
        require(latest is not None, f"there is no checkpoint in {checkpoint.directory}")
        assert latest is not None
        checkpoint = latest
    tensors = checkpoint.model()
    if model is not None:
        tensors = _with_ties(model, tensors)
    plain = {n: t.detach().contiguous().clone() for n, t in tensors.items()}
    write(
        Path(path), safetensors().save(plain, metadata=_note(checkpoint, whole=model is not None))
    )


def _note(checkpoint: Checkpoint, *, whole: bool) -> dict[str, str] | None:
    """Warn of the personal tensors of a run; return the warning as the metadata of a file."""
    personal = checkpoint.names.get(PERSONAL)
    if not personal:
        return None
    note = (
        f"the exported model {'has not trained' if whole else 'lacks'} {', '.join(personal)}: they"
        " are personal, so each client keeps its own"
    )
    warnings.warn(note, stacklevel=3)
    return {PERSONAL: note}


def _with_ties(model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the whole ``state_dict``; a tied weight is federated under one of its names."""
    state = model.state_dict(keep_vars=True)
    unknown = trained.keys() - state.keys()
    require(
        not unknown,
        f"the model has no {', '.join(sorted(unknown))}: give the model that the run trained",
    )
    by_identity = {id(state[name]): t for name, t in trained.items()}
    return {name: by_identity.get(id(t), t.detach()) for name, t in state.items()}
