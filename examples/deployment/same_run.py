"""A run of the app in examples/flower, and whether it ended in the bits of the run in process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import fedlada
from fedlada.protocol.seeds import seed_of

APP = Path(__file__).parents[1] / "flower"
ROUNDS = 2


def run_config(
    name: str, *, nodes: int, save: str, rounds: int = ROUNDS, **more: object
) -> dict[str, object]:
    """The config of a run in which all nodes take part in every round."""
    config = {"algorithm": name, "settings": "lr = 0.03", "rounds": rounds}
    config |= {"cohort": nodes, "nodes": nodes, "save": save}
    return config | {key.replace("_", "-"): value for key, value in more.items()}


def differences(name: str, saved: Path, *, nodes: int, rounds: int = ROUNDS) -> Iterator[str]:
    """Yield the tensors of the saved model that differ from those of the run in process."""
    sys.path.insert(0, str(APP))
    from digits.task import client_data, model, train

    torch.manual_seed(seed_of(0, "model"))
    run = fedlada.simulate(
        model(),
        [client_data(client, nodes, held_out=False) for client in range(nodes)],
        algorithm=fedlada.algorithm(name, lr=0.03),
        rounds=rounds,
        cohort=nodes,
        train=train,
    )
    run.run()
    found, wanted = torch.load(saved, weights_only=True), run.model.state_dict()
    for key in wanted.keys() | found.keys():
        if key not in found or key not in wanted or not found[key].equal(wanted[key]):
            yield key
