"""The command ``fedlada``: a table of its subcommands, and how their errors are printed."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from platform import python_version
from typing import NamedTuple, NoReturn

from . import __version__
from .errors import FedladaError, missing_extra, nearest

__all__ = ["COMMANDS", "Command", "main"]


class Command(NamedTuple):
    """A subcommand of ``fedlada``."""

    module: str
    """The module in this package with a function that has the command's name.  The function takes
    a parser, to which it adds its options, and the words to parse.  Its docstring is what
    ``fedlada COMMAND --help`` begins with."""
    extra: str
    """The extra that installs what the module imports; empty if that is torch alone."""
    help: str


COMMANDS = {
    "run": Command("experiment.commands", "experiment", "Run an experiment, or resume it."),
    "sweep": Command("experiment.commands", "experiment", "Run every combination of a sweep."),
    "resume": Command("experiment.commands", "experiment", "Resume the runs in a directory."),
    "compare": Command("experiment.commands", "experiment", "Compare runs in tables."),
    "report": Command("experiment.commands", "report", "Write a page with curves and tables."),
    "best": Command("experiment.commands", "experiment", "Choose the best settings of a sweep."),
    "partition": Command("experiment.commands", "experiment", "Show which client has which data."),
    "export": Command("experiment.commands", "experiment", "Write the model of a run to a file."),
    "replay": Command("experiment.commands", "experiment", "Train a run again from its records."),
    "pack": Command("experiment.commands", "experiment", "Pack finished runs into one file."),
    "tournament": Command("experiment.commands", "report", "Compare optimizers with equal tries."),
    "doctor": Command("flower.doctor.command", "flower", "Check a machine before a deployment."),
    "algorithms": Command("algorithms.listing", "", "List the algorithms and what they send."),
    "cost": Command("cost", "", "Count the bytes and the memory of a run before it starts."),
    "privacy": Command("privacy.command", "privacy", "Say what noise a private run needs."),
}
"""The subcommands by name, in the order of ``fedlada --help``: the most used come first."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit; an error that the user can fix is printed as a sentence."""
    try:
        try:
            _run(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        sys.exit(1)
    except (FedladaError, ImportError) as error:
        sys.exit(f"fedlada: {error}")
    except OSError as error:
        what = error.filename or "a file or an address on the network"
        sys.exit(
            f"fedlada: {what} cannot be read or written ({error.strerror or error}); give another"
            " path, or fix that one."
        )
    sys.exit(0)


def _run(words: Sequence[str]) -> None:
    name, *rest = words or ["--help"]
    if name in ("--help", "-h"):
        print(_overview())
    elif name == "--version":
        import torch

        print(f"fedlada {__version__} (torch {torch.__version__}, Python {python_version()})")
    elif name in COMMANDS:
        command = COMMANDS[name]
        try:
            module = import_module(f".{command.module}", __package__)
        except ModuleNotFoundError as error:
            if not command.extra or (error.name or "").startswith("fedlada"):
                raise
            raise missing_extra(error, f"fedlada {name}", f"fedlada[{command.extra}]") from None
        function = getattr(module, name)
        parser = argparse.ArgumentParser(
            prog=f"fedlada {name}", description=inspect.getdoc(function), allow_abbrev=False
        )
        function(parser, rest)
    else:
        sentence = f"fedlada: there is no command {name!r}; {nearest(name, COMMANDS)}."
        print(f"usage: fedlada COMMAND ...\n{sentence}", file=sys.stderr)
        sys.exit(2)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: fedlada COMMAND ...",
            "",
            "Federated optimizers for PyTorch: run, compare and deploy them.",
            "",
            "commands:",
            *(f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()),
            "",
            "options:",
            f"  {'--help':{width}}  Print this text; after a command, explain its options.",
            f"  {'--version':{width}}  Print the versions of fedlada, torch and Python.",
            "",
            "In the help of a command, brackets hold what is taken by default.",
        ]
    )


def _reader_is_gone() -> bool:
    """Return whether nobody reads what this process prints, as behind ``| head``; then stop it."""
    try:
        print(flush=True)
    except BrokenPipeError:
        # Python flushes once more when it exits, and would print an error about that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


if __name__ == "__main__":
    main()
