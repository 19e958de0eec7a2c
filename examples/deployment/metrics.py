"""Debian's Prometheus reads the metrics of a run on a deployment on this machine.

Run: python examples/deployment/metrics.py     (needs prometheus: apt install prometheus)

It starts a SuperLink and two SuperNodes, a Prometheus that asks the ServerApp every second, runs
FedLADA, and compares what Prometheus has stored with the JSON lines in the run's log.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from same_run import run_config

from fedlada.flower.loopback import Deployment
from fedlada.flower.loopback.processes import free_port

APP = Path(__file__).parents[1] / "flower"
NODES, ROUNDS = 2, 3
CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: fedlada
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


@contextmanager
def prometheus(work: Path, port: int) -> Iterator[str]:
    """A Prometheus on a free port that asks a port of 127.0.0.1, for a `with` block."""
    work.mkdir()
    (work / "prometheus.yml").write_text(CONFIG.format(port=port))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={work}/prometheus.yml"]
    command += [f"--storage.tsdb.path={work}/data", f"--web.listen-address={address}"]
    with (work / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(20)


def stored(address: str, query: str) -> float:
    """The largest value that Prometheus has seen in the last hour."""
    asked = urllib.parse.urlencode({"query": f"max_over_time({query}[1h])"})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{asked}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    return max(float(series["value"][1]) for series in result) if result else float("nan")


def main() -> None:
    if shutil.which("prometheus") is None:
        sys.exit("prometheus is not installed; on Debian: apt install prometheus")
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as name,
        prometheus(Path(name) / "prometheus", port) as address,
        Deployment(Path(name) / "deployment", nodes=NODES) as deployment,
    ):
        config = run_config(
            "fedlada",
            nodes=NODES,
            rounds=ROUNDS,
            save="",
            metrics=port,
            log_format="json",
            checkpoints=f"{name}/checkpoints",
        )
        printed = deployment.run(APP, config=config)
        events = [json.loads(line) for line in re.findall(r"\{.*\"event\".*\}", printed)]
        rounds = [event for event in events if event["event"] == "round"]
        print(f"{len(events)} JSON lines in the log: {[event['event'] for event in events]}")
        *_, before, last = rounds
        # The ServerApp ends with its last round: Prometheus is sure to have seen the one before.
        for query, least, most in (
            ("fedlada_round", before["round"], last["round"]),
            ("fedlada_checkpoint_round", before["round"], last["round"]),
            ('fedlada_replies_total{outcome="accepted"}', NODES * (ROUNDS - 1), NODES * ROUNDS),
            (
                'fedlada_bytes_total{direction="up"}',
                sum(event["bytes_up"] for event in rounds[:-1]),
                sum(event["bytes_up"] for event in rounds),
            ),
            ("fedlada_round_seconds_count", ROUNDS - 1, ROUNDS),
        ):
            value = stored(address, query)
            held = least <= value <= most
            print(f"{'ok  ' if held else 'NOT '} {query} = {value:,g} (log: {least:,} to {most:,})")
            if not held:
                sys.exit(1)
        version = subprocess.run(["prometheus", "--version"], capture_output=True, text=True)
        print((version.stdout or version.stderr).splitlines()[0])


if __name__ == "__main__":
    main()
