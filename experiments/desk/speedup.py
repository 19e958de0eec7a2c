r"""Linear speedup: how the gradient shrinks with S·K·T on a smooth problem whose gradient is known.

Theorem 1 of the paper bounds the mean over rounds of ‖∇F(z_t)‖², z_t = x_t/α - (1-α)/α·x_{t-1}.
Its corollary sets ηη_l = O(√(SK/T)) and η_l = O(1/√(KT)), where η = Kη_g; so here

    lr = c/√(KT),  server_lr = √S,  and the claim is  mean ‖∇F(z_t)‖² = O(1/√(SKT)) + O(1/T).

The problem satisfies the assumptions of the theorem: 100 clients with 200 examples each, 20
features of different scales, logistic loss plus 0.05·Σ w²/(1+w²), which is smooth and not convex,
one example per step drawn with replacement, S of the 100 clients per round.  A client's labels come
from its own weights, ``spread`` away from the common ones.  The seed determines all of it.
β1 is 0.5, since the theorem wants β1 < K/(K+1) and its authors K ≥ 2/(1-β1); there is no weight
decay, no decay of lr, and no guard.  FedAvg, whose z is x, is the control: its c is twice that of
FedLADA, whose steps are divided by √v̂, about 1/2 for features of scale 1.

    OMP_NUM_THREADS=1 python experiments/desk/speedup.py --out experiments/desk/results/speedup

Rows that are in its ``speedup.csv`` already are not computed again.  The figure of README.md is its
``speedup.svg``, moved to ``figures/``.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import track
from speedup_figure import EXPECTED, Row, draw, fit
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlada import Algorithm, algorithm, simulate
from fedlada.atomic import write
from fedlada.experiment.run.directory import provenance
from fedlada.server import FixedSize

CLIENTS, EXAMPLES, FEATURES, REGULARISER = 100, 200, 20, 0.05
COLUMNS = ("setting", "S", "K", "T", "seed", "lr", "server_lr", "square_z", "square_x", "seconds")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The constants that the theorem leaves open; in the table a name stands for them all."""

    algorithm: str = "fedlada"
    c: float = 0.15
    alpha: float = 0.1
    eps: float = 1e-8
    spread: float = 0.3
    batch: int = 1
    seeds: int = 1
    largest: int = 4
    """No larger cohort is computed: these take most of the time."""

    def at(self, S: int, K: int, T: int) -> Algorithm:
        """The algorithm with the corollary's rates."""
        rates = {"lr": self.c / math.sqrt(K * T), "server_lr": math.sqrt(S), "weight_decay": 0.0}
        own = {"betas": (0.5, 0.99), "eps": self.eps, "alpha": self.alpha}
        return algorithm(self.algorithm, **rates, **(own if self.algorithm == "fedlada" else {}))


SETTINGS = {
    "fedlada": Setting(seeds=3, largest=CLIENTS),
    "fedlada-eps-0.1": Setting(eps=0.1),
    "fedlada-unlike-clients": Setting(spread=2.0, batch=16),
    "fedavg": Setting(algorithm="fedavg", c=0.3, alpha=1.0),
}


@dataclass(frozen=True)
class Examples:
    """Inputs and labels (0 or 1): of a batch, of a client, or of all."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def gradient(self, w: Tensor) -> Tensor:
        """Of the loss at w, exactly."""
        error = torch.sigmoid(self.inputs @ w) - self.labels
        return error @ self.inputs / len(self) + 2 * REGULARISER * w / (1 + w * w) ** 2


def problem(seed: int, spread: float) -> list[Examples]:
    """Clients that see the same features and label them by their own weights."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scales, common = torch.logspace(0, -0.5, FEATURES, dtype=torch.float64), normal(FEATURES)
    clients = []
    for _ in range(CLIENTS):
        inputs = (scales * normal(EXAMPLES, FEATURES)).clamp(-3, 3)
        chance = torch.sigmoid(inputs @ (common + spread * normal(FEATURES)))
        clients.append(Examples(inputs, torch.bernoulli(chance, generator=generator)))
    return clients


def together(clients: Sequence[Examples]) -> Examples:
    """Everybody's examples, whose loss is F, since all clients have equally many."""
    inputs = torch.cat([client.inputs for client in clients])
    return Examples(inputs, torch.cat([client.labels for client in clients]))


def noise(setting: Setting) -> dict[str, float]:
    """Variances of gradients at the start: of a batch around its client, of clients around F."""
    clients = problem(0, setting.spread)
    start = torch.zeros(FEATURES, dtype=torch.float64)
    own = torch.stack([client.gradient(start) for client in clients])
    each = torch.cat([(0.5 - client.labels)[:, None] * client.inputs for client in clients])
    within = (each - own.repeat_interleave(EXAMPLES, 0)).square().sum(1).mean() / setting.batch
    between = (own - own.mean(0)).square().sum(1).mean()
    return {"within": float(within), "between": float(between)}


def local_steps(k: int, batch: int) -> Callable[[nn.Module, Examples, Optimizer], None]:
    """Steps whose gradients are written down, not asked of autograd, which takes longer."""

    def train(model: nn.Module, data: Examples, optimizer: Optimizer) -> None:
        (w,) = model.parameters()
        rows = torch.randint(len(data), (k, batch))
        for inputs, labels in zip(data.inputs[rows], data.labels[rows], strict=True):
            w.grad = Examples(inputs, labels).gradient(w.detach())
            optimizer.step()

    return train


def measure(setting: Setting, S: int, K: int, T: int, seed: int) -> dict[str, float]:
    """One run: the mean over its rounds of the squared gradient norm, at z and at x."""
    began = time.perf_counter()
    clients = problem(seed, setting.spread)
    everything, chosen = together(clients), setting.at(S, K, T)
    before = x = torch.zeros(FEATURES, dtype=torch.float64)
    run = simulate(
        nn.ParameterList([x.clone()]),
        clients,
        algorithm=chosen,
        rounds=T,
        train=local_steps(K, setting.batch),
        cohort=FixedSize(S),
        seed=seed,
        lr_decay=1.0,
        guard=None,
    )
    square_z = square_x = 0.0
    for _ in run:
        z = x + (1 / setting.alpha - 1) * (x - before)
        square_z += float(everything.gradient(z).square().sum()) / T
        square_x += float(everything.gradient(x).square().sum()) / T
        before, x = x, run.state.vectors.x.tensors[0].clone()
    return {
        "lr": setting.c / math.sqrt(K * T),
        "server_lr": math.sqrt(S),
        "square_z": square_z,
        "square_x": square_x,
        "seconds": round(time.perf_counter() - began, 2),
    }


def read(path: Path) -> list[Row]:
    """The rows computed so far."""
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def save(path: Path, rows: Sequence[Row]) -> None:
    """All rows, whole or not at all."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write(path, text.getvalue().encode())


def grouped(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row]]:
    """By setting; and of one with larger cohorts than the others, also those that all have."""
    groups: dict[str, list[Row]] = {}
    for name in names:
        own = groups[name] = [row for row in rows if row["setting"] == name]
        if SETTINGS[name].largest > Setting.largest:
            small = [row for row in own if int(row["S"]) <= Setting.largest]
            groups[f"{name}, S ≤ {Setting.largest}"] = small
    return groups


def main(words: Sequence[str] | None = None) -> None:
    """Compute what is missing of the settings asked for, then fit and draw these."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--cohorts", nargs="+", type=int, default=[1, 4, 16], metavar="S")
    parser.add_argument("--steps", nargs="+", type=int, default=[4, 8, 16], metavar="K")
    parser.add_argument("--rounds", nargs="+", type=int, default=[128, 512], metavar="T")
    options = parser.parse_args(words)
    lists = options.cohorts, options.steps, options.rounds
    if min(len(set(values)) for values in lists) < 2:
        parser.error("a slope needs at least two each of --cohorts, --steps and --rounds")
    options.out.mkdir(parents=True, exist_ok=True)
    rows = read(options.out / "speedup.csv")
    known = {tuple(str(row[name]) for name in COLUMNS[:5]) for row in rows}
    wanted = [
        (name, *cell, seed)
        for name in options.settings
        for seed in range(SETTINGS[name].seeds)
        for cell in itertools.product(*lists)
        if cell[0] <= SETTINGS[name].largest
    ]
    for key in track([key for key in wanted if tuple(map(str, key)) not in known], "speedup"):
        name, *numbers = key
        rows.append({**dict(zip(COLUMNS, key, strict=False)), **measure(SETTINGS[name], *numbers)})
        save(options.out / "speedup.csv", rows)
    by_setting = grouped(rows, options.settings)
    slopes = {name: fit(own, "square_z") for name, own in by_setting.items()}
    found = {
        "expected": EXPECTED,
        "slopes": slopes,
        "slopes at x": {name: fit(own, "square_x") for name, own in by_setting.items()},
        "settings": {name: asdict(SETTINGS[name]) for name in options.settings},
        "variance at the start": {name: noise(SETTINGS[name]) for name in options.settings},
        "seconds": round(sum(float(row["seconds"]) for row in rows), 1),
        **provenance(threads=torch.get_num_threads(), device="cpu"),
    }
    write(options.out / "speedup.json", (json.dumps(found, indent=2) + "\n").encode())
    write(options.out / "speedup.svg", draw(by_setting, slopes).encode())
    for name, four in slopes.items():
        shown = (f"{n} {s['slope']:.2f} [{s['low']:.2f}, {s['high']:.2f}]" for n, s in four.items())
        print(f"{name}: " + ", ".join(shown))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
