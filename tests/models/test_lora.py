"""LoRA: adapters alone travel, and averaging their factors errs by their covariance."""

import importlib.util
import sys

import pytest
import torch

import fedlada
from fedlada.data import by_owner, shakespeare
from fedlada.models import Decoder
from places import ROOT
from plays import archive

FILE = ROOT / "examples" / "lora.py"
SPEC = importlib.util.spec_from_file_location("lora_example", FILE)
lora = importlib.util.module_from_spec(SPEC)
sys.modules["lora_example"] = lora  # dataclasses look their module up
SPEC.loader.exec_module(lora)

COHORT, RANK, CONTEXT = 2, 3, 16
TRAIN = fedlada.LocalTraining(steps=3, batch_size=4, clip_norm=1.0)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    directory = str(archive(tmp_path_factory.mktemp("plays")))
    parts = {
        name: shakespeare.load(name, directory=directory, context=CONTEXT)
        for name in ("train", "test")
    }
    evaluate = fedlada.Evaluation(data=parts["test"], objective=fedlada.training.TEXT)
    return by_owner(parts["train"]), evaluate, directory


def small():
    torch.manual_seed(0)
    return Decoder(context=CONTEXT, width=12, layers=2, heads=3)


def lines(model, texts, way, rounds=4):
    clients, evaluate, _ = texts
    return list(
        lora.finetune(model, clients, evaluate, way=way, rounds=rounds, cohort=COHORT, train=TRAIN)
    )


MAKERS = [lora.with_lora, lora.with_peft]


@pytest.fixture(params=MAKERS, ids=["own", "peft"])
def adapted(request):
    return request.param(small(), RANK)


def size(model, letter):
    return sum(pair[letter].numel() for pair in lora.factors(model).values())


def test_an_adapted_model_is_at_first_what_it_was(adapted):
    rows = torch.randint(0, 128, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(adapted(rows), small()(rows))


def test_only_adapters_are_trainable(adapted):
    trainable = {id(p) for p in adapted.parameters() if p.requires_grad}
    pairs = lora.factors(adapted)
    assert trainable == {id(p) for pair in pairs.values() for p in pair.values()}
    assert len(pairs) == 2 * 2  # two layers of two blocks


def test_only_adapters_travel_and_change(adapted, texts):
    frozen = {n: p.detach().clone() for n, p in adapted.named_parameters() if "lora_" not in n}
    (line,) = lines(adapted, texts, "averaged", rounds=1)
    assert line.bytes == 2 * COHORT * 4 * (size(adapted, "A") + size(adapted, "B"))
    after = dict(adapted.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in frozen.items())


def test_one_factor_at_a_time_sends_that_factor_alone(adapted, texts):
    both = 2 * COHORT * 4
    sent = [line.bytes for line in lines(adapted, texts, "alternating")]
    assert sent == [both * size(adapted, letter) for letter in "BABA"]


@pytest.mark.parametrize("way", ["frozen A", "alternating"])
def test_averaging_is_exact_if_clients_train_one_factor(adapted, texts, way):
    assert max(line.share for line in lines(adapted, texts, way)) < 1e-12


def test_averaging_both_factors_is_not(adapted, texts):
    assert min(line.share for line in lines(adapted, texts, "averaged")) > 1e-9


def test_a_frozen_factor_stays(texts):
    model = lora.with_lora(small(), RANK)
    before = [pair["A"].detach().clone() for pair in lora.factors(model).values()]
    lines(model, texts, "frozen A")
    after = [pair["A"] for pair in lora.factors(model).values()]
    assert all(map(torch.equal, before, after))


def test_the_error_is_the_covariance_of_the_factors(texts):
    """mean(B A) - mean(B) mean(A) = mean((B_i - B)(A_i - A)), of what the clients sent."""
    clients, _, _ = texts
    model = lora.with_lora(small(), RANK)
    algorithm = fedlada.algorithm("fedavg", lr=1.0, weight_decay=0.0)
    kept = []

    class Kept(fedlada.engines.InProcess):
        def exchange(self, task, cohort):
            for reply in super().exchange(task, cohort):
                kept.append(task.vectors.x - reply.vectors.delta)
                yield reply

    measured = lora.AveragingError(Kept(algorithm, model, clients, TRAIN), model)
    run = fedlada.simulate(
        model,
        clients,
        engine=measured,
        algorithm=algorithm,
        rounds=2,
        cohort=fedlada.server.FixedSize(3),
    )
    for _ in run:
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        ends = [dict(zip(names, (t.double() for t in y), strict=True)) for y in kept]
        kept.clear()
        total = 0.0
        for name in (name for name in names if "lora_A" in name):
            a = torch.stack([end[name] for end in ends])
            b = torch.stack([end[name.replace("lora_A", "lora_B")] for end in ends])
            total += float(((b - b.mean(0)) @ (a - a.mean(0))).mean(0).square().sum())
        assert measured.error == pytest.approx(total**0.5, rel=1e-9)
        assert measured.error > 0


def test_it_learns_and_its_table_and_figure_say_so(texts, tmp_path):
    _, evaluate, directory = texts
    base = lora.pretrained(lora.milton(directory), steps=3, context=CONTEXT)
    before = evaluate(base)["test_bits"]
    found = {"averaged": lines(lora.with_lora(base, RANK), texts, "averaged")}
    assert found["averaged"][-1].bits < before
    assert f"| averaged | {found['averaged'][-1].bits:.3f} |" in lora.table(before, found)
    lora.draw(before, found, tmp_path / "lora.svg")
    assert (tmp_path / "lora.svg").read_text().count("<svg") == 1
