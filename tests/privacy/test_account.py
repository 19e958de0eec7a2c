"""The account: dp-accounting's own figures, and the command that prints them."""

import re

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant

from fedlada.cli import main
from fedlada.privacy import PrivateTraining, Sampled


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.05, 0.8), (1.0, 5.0)])
def test_epsilon_is_that_of_dp_accounting(rate, noise):
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    event = dp.SelfComposedDpEvent(event, 100)
    theirs = PLDAccountant(relation, value_discretization_interval=1e-3).compose(event)
    ours = Sampled(rate=rate, count=100).epsilon(noise, 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)


def test_the_noise_of_a_budget_is_the_least_within_it():
    sums = Sampled(rate=0.1, count=50)
    noise = sums.noise(8, 1e-5)
    assert sums.epsilon(noise, 1e-5) <= 8 < sums.epsilon(noise - 0.001, 1e-5)


def test_the_epsilon_of_a_client_counts_steps_rounds_and_second_gradients():
    train = PrivateTraining(steps=10, batch_size=250, noise=0.8)
    once = train.epsilon(5000, rounds=20, delta=1e-5)
    assert once == Sampled(rate=0.05, count=200).epsilon(0.8, 1e-5)
    assert train.epsilon(5000, rounds=10, delta=1e-5, gradients=2) == once
    by_epochs = PrivateTraining(epochs=1, batch_size=250, noise=0.8)
    assert by_epochs.epsilon(5000, rounds=10, delta=1e-5) == once


def test_the_command_says_the_noise_of_a_budget_and_the_epsilon_of_a_noise(capsys):
    words = ["privacy", "--examples", "5000", "--batch-size", "250"]
    words += ["--steps", "10", "--rounds", "20"]
    with pytest.raises(SystemExit) as done:
        main(words)
    assert not done.value.code
    lines = capsys.readouterr().out.splitlines()[1:]
    noises = dict(re.fullmatch(r"epsilon (\d): noise (\S+)", line).groups() for line in lines)
    for epsilon, noise in noises.items():
        with pytest.raises(SystemExit):
            main([*words, "--noise", noise])
        found = float(capsys.readouterr().out.split()[-1])
        assert found == pytest.approx(float(epsilon), rel=0.02)


def test_a_delta_that_lets_one_example_out_is_refused():
    with pytest.raises(SystemExit, match=r"choose less than 0\.01"):
        main(["privacy", "--examples", "100", "--delta", "0.05"])


def said(capsys, *words: str) -> list[str]:
    with pytest.raises(SystemExit) as done:
        main(["privacy", *words])
    assert not done.value.code
    return capsys.readouterr().out.splitlines()


def test_the_command_says_the_noise_that_hides_whole_clients_and_its_length(capsys):
    words = ["--clients", "1000", "--rate", "0.1", "--rounds", "50", "--parameters", "6506"]
    lines = said(capsys, *words)
    noises = {line.split()[1]: float(line.split()[-1]) for line in lines if ": noise" in line}
    assert noises == pytest.approx({"2:": 1.750, "8:": 0.803}, rel=0.02)
    lengths = [float(word) for word in re.findall(r"[\d.]+", lines[-1].rpartition(":")[2])]
    assert lengths == pytest.approx([1.4, 0.65], rel=0.05)
    for line in said(capsys, *words, "--noise", "0.803")[1:-1]:
        rounds, epsilon = re.fullmatch(r"noise 0\.803, (\d+) rounds: epsilon (\S+)", line).groups()
        stated = Sampled(rate=0.1, count=int(rounds)).epsilon(0.803, 1e-5)
        assert float(epsilon) == pytest.approx(stated, rel=0.01)


def test_the_command_warns_of_noise_that_drowns_the_model(capsys):
    words = ["--clients", "1000", "--epsilon", "8", "--parameters", "11000000"]
    assert "more than 3 clips drown" in said(capsys, *words)[-1]


def test_the_command_needs_clients_or_examples():
    for words in ([], ["--clients", "100", "--examples", "100"]):
        with pytest.raises(SystemExit, match="give --clients, to protect whole clients"):
            main(["privacy", *words])
