"""The help of every command, for the page of commands."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from unittest.mock import patch

from fedlada.cli import COMMANDS, main

__all__ = ["commands"]


def commands() -> str:
    """Return a section for each command with what its ``--help`` prints."""
    sections = [f"### fedlada {name}\n\n```text\n{_help(name)}\n```\n" for name in COMMANDS]
    return "\n".join(sections)


def _help(name: str) -> str:
    printed = io.StringIO()
    with patch.dict(os.environ, COLUMNS="88"), redirect_stdout(printed), suppress(SystemExit):
        main([name, "--help"])
    return printed.getvalue().strip()
