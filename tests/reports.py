"""Runs as ``fedlada run`` leaves them, and the page of a report as a reader finds it."""

import json
from html.parser import HTMLParser

from fedlada.experiment.config.reading import experiment
from fedlada.experiment.run.directory import RunDirectory

BYTES, SECONDS = {"fedavg": 10**6, "fedlada": 3 * 10**6, "localadam": 2 * 10**6}, 2.5


def write(
    directory,
    algorithm,
    seed,
    accuracies,
    *,
    rounds=3,
    incidents=None,
    always=None,
    score="accuracy",
    **keys,
):
    """A run's directory as ``fedlada run`` leaves it, finished if it has all its rounds.

    The record of round 2 has the ``incidents`` too, and every record what is ``always`` so.
    """
    flat = {
        "name": "small",
        "algorithm": algorithm,
        "data.dataset": "digits",
        "data.clients": 12,
        "federation.seed": seed,
        "federation.rounds": rounds,
        "evaluate.targets": [0.5, 0.7],
    }
    RunDirectory(directory).prepare(experiment(flat | keys, source="test"))
    lines = []
    for number, accuracy in enumerate(accuracies, 1):
        metrics = {f"test_{score}": accuracy, "test_loss": 1 - accuracy}
        record = {"round": number, "seconds": SECONDS, "metrics": metrics, "drift": 0.1 + accuracy}
        record["client_metrics"] = {"loss": 1 / number}
        sent = BYTES.get(str(algorithm), 1)
        record |= {"bytes_down": sent, "bytes_up": sent}
        lines.append(
            json.dumps(record | (incidents or {} if number == 2 else {}) | (always or {})) + "\n"
        )
    (directory / "records.jsonl").write_text("".join(lines))
    if len(accuracies) >= rounds:
        machine = {"processor": "Z80", "cores": 1, "torch_threads": 1, "system": "CP/M"}
        done = {"rounds": rounds, "machine": machine, "versions": {"fedlada": "0"}}
        done["command"] = ["/bin/fedlada", "sweep", "my file.toml"]
        (directory / "done.json").write_text(json.dumps(done))


class Page(HTMLParser):
    """Tables by caption, each as rows of texts; and all attributes."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.attributes, self.tags, self._cell = {}, [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag == "tr":
            self._rows.append([])
        if tag == "table":
            self._rows = []
        if tag in ("caption", "th", "td"):
            self._cell = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data.replace("\u00a0", " ")

    def handle_endtag(self, tag):
        if tag == "caption":
            self.tables[self._cell] = self._rows
        if tag in ("th", "td"):
            self._rows[-1].append(self._cell)
        self._cell = None if tag in ("caption", "th", "td") else self._cell
