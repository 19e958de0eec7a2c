"""FedLADA on three real SuperNodes on this machine, over TLS with node keys.

Run: python examples/deployment/run.py [ROUNDS]

It makes a certificate authority, a server certificate and node keys; starts a SuperLink (TLS,
SuperNode authentication, a database) and three SuperNodes, all on 127.0.0.1; runs the app of
examples/flower on digits split over the nodes; and stops everything it started.
"""

import sys
import tempfile
from pathlib import Path

from fedlada.flower.loopback import Deployment

APP = Path(__file__).parents[1] / "flower"
NODES = 3

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
abandoned = []


def show(line: str) -> None:
    if line.startswith("round "):
        print(line, flush=True)
        if "round abandoned" in line:
            abandoned.append(line)


with tempfile.TemporaryDirectory() as work:
    # Vectors that a client keeps between rounds (SCAFFOLD, FedDyn) survive a restart here.
    states = [{"state-directory": f"{work}/state-{i}"} for i in range(NODES)]
    print(f"starting a SuperLink and {NODES} SuperNodes on 127.0.0.1 ...", flush=True)
    with Deployment(f"{work}/deployment", nodes=NODES, node_configs=states) as deployment:
        print(f"SuperLink at {deployment.address}; logs in {deployment.directory}/logs", flush=True)
        deployment.run(
            APP,
            config={
                "algorithm": "fedlada",
                "settings": "lr = 0.03",
                "rounds": rounds,
                "nodes": NODES,
                "deadline": 60.0,
                "minimum": 2,
            },
            timeout=120 + 60 * rounds,
            show=show,
        )
    print("everything is stopped")
if abandoned:
    print(
        f"{len(abandoned)} of {rounds} rounds were abandoned and changed nothing: fewer than 2"
        " nodes replied within the deadline of 60 seconds. A busy machine needs a longer deadline."
    )
