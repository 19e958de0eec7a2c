"""The ClientApp that Flower starts: cold or warm, as the ServerApp says in a file.

It imports no torch and notes what its process cost, from its start to its end.
"""

import atexit
import json
import os
import time
from importlib import import_module
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlada.flower import warm_app

REAL = "rounds.client:app"


class Entry(ClientApp):
    def __call__(self, message: Message, context: Context) -> Message:
        results = Path(str(context.run_config["results"]))
        turn = results.with_suffix(".turn").read_text()
        atexit.register(note, results.with_suffix(".cost"), turn, time.monotonic())
        if turn.endswith("warm"):
            return warm_app(REAL)(message, context)
        return import_module("rounds.client").app(message, context)


def note(costs: Path, turn: str, began: float) -> None:
    """Append this process's CPU seconds, and the seconds that it lived before the app and in it."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lived = time.monotonic() - started / os.sysconf("SC_CLK_TCK")
    inside = time.monotonic() - began
    cost = {"turn": turn, "cpu": time.process_time(), "start": lived - inside, "inside": inside}
    with costs.open("a") as file:
        file.write(json.dumps(cost) + "\n")


app = Entry()
