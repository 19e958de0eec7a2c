"""A run on Flower that is killed and started again ends as if it had not been.

The app is that of ``benchmarks/deployment_kills.py``: its ServerApp runs an algorithm with
checkpoints.  A run is started, killed in the middle of a round, and started again by a new
``flwr run`` of the same, until it ends; it must end in the bits of the in-process engine.
"""

import sys
import time
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest

from fedlada import Checkpoints
from fedlada.flower.loopback import Deployment, RaySimulation, Run
from places import ROOT

APP = ROOT / "benchmarks" / "apps" / "resume"
COHORT = 2


@dataclass
class Story:
    """A run that was killed in each of its rounds but the first."""

    directory: Path
    """Where the ServerApp kept its checkpoints and noted what it computed."""
    states: Path
    """Where the clients kept their vectors."""
    algorithm: str
    clients: int
    rounds: int
    outputs: list[str] = field(default_factory=list)
    """What each ``flwr run`` printed."""
    nodes: list[bool] | None = None
    """Whether each SuperNode outlived the SuperLink."""

    def config(self) -> dict[str, str | int]:
        return {
            "algorithms": self.algorithm,
            "rounds": self.rounds,
            "cohort": COHORT,
            "nodes": self.clients,
            "directory": str(self.directory),
        }

    @property
    def checkpoints(self) -> Path:
        return self.directory / self.algorithm

    def computed(self) -> list[str]:
        """The model of every round that was computed, by its hash."""
        return (self.checkpoints / "computed").read_text().split()

    def await_round(self, saved: int, run: Run, timeout: float = 300) -> None:
        """Wait until so many rounds are saved."""
        end = time.monotonic() + timeout
        while saved not in Checkpoints(self.checkpoints).rounds():
            assert run.running(), f"the run ended too early: {run.output()}"
            assert time.monotonic() < end, f"round {saved} was not saved: {run.output()}"
            time.sleep(0.02)

    def leave(self, run: Run) -> None:
        self.outputs.append(run.output())
        run.leave()


@pytest.fixture(scope="module")
def ray(tmp_path_factory) -> Story:
    """An adaptive algorithm; its ServerApp is killed."""
    directory = tmp_path_factory.mktemp("ray")
    story = Story(directory / "server", directory / "states", "fedlada", clients=3, rounds=2)
    # Rounds on Ray are over before they can be killed, so clients sleep.
    config = story.config() | {"state-directory": str(story.states), "pause": 1.5}
    with RaySimulation(directory / "flower", nodes=story.clients, at_once=1) as engine:
        run = engine.begin(APP, config=config)
        story.await_round(1, run)
        time.sleep(0.5)
        engine.kill_server_app()
        story.leave(run)

        story.outputs.append(engine.run(APP, config=config))
    return story


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Story:
    """One whose clients keep vectors; first its ServerApp is killed, then the SuperLink."""
    directory = tmp_path_factory.mktemp("deployed")
    story = Story(directory / "server", directory / "states", "scaffold", clients=2, rounds=3)
    nodes = [{"state-directory": str(story.states)}] * story.clients
    with Deployment(directory / "flower", nodes=story.clients, node_configs=nodes) as engine:
        run = engine.begin(APP, config=story.config())
        story.await_round(1, run)
        time.sleep(2)
        engine.kill_server_app()
        story.leave(run)

        run = engine.begin(APP, config=story.config())
        story.await_round(2, run)
        time.sleep(2)
        engine.kill_superlink()
        engine.start_superlink()
        story.leave(run)
        await_end(engine)

        story.outputs.append(engine.run(APP, config=story.config()))
        story.nodes = [engine.node_runs(i) for i in range(story.clients)]
    return story


def await_end(engine: Deployment, timeout: float = 120) -> None:
    """Wait for the ServerApp to see that its SuperLink is gone: it holds the checkpoints."""
    end = time.monotonic() + timeout
    while engine.server_apps():
        assert time.monotonic() < end, "the ServerApp outlives its SuperLink"
        time.sleep(0.1)


@pytest.fixture(
    params=[
        pytest.param("ray", marks=pytest.mark.flower(seconds=100)),
        pytest.param("deployed", marks=pytest.mark.flower(seconds=200, group="killed deployment")),
    ]
)
def story(request) -> Story:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def undisturbed():
    sys.path.insert(0, str(APP))
    try:
        from resume import undisturbed as module
    finally:
        sys.path.remove(str(APP))
    return module


@pytest.fixture
def expected(story, undisturbed):
    return undisturbed.undisturbed(
        story.algorithm, clients=story.clients, cohort=COHORT, rounds=story.rounds
    )


def test_a_run_that_was_killed_and_started_again_ends_in_the_bits_of_one_that_was_not(
    story, expected, undisturbed
):
    assert list(undisturbed.differences(story.checkpoints, story.states, expected)) == []


def test_only_the_round_in_flight_is_computed_again_and_every_round_counts_once(story, expected):
    computed = story.computed()
    assert [name for name, _ in groupby(computed)] == expected.names
    assert computed.count(expected.names[0]) == 1


def test_a_new_flwr_run_goes_on_where_the_killed_one_was(story):
    for saved, output in enumerate(story.outputs):
        told = f"resuming after round {saved} from {story.checkpoints}" in output
        assert told == (saved > 0)
    assert len(story.outputs) == story.rounds


@pytest.mark.flower(seconds=200, group="killed deployment")
def test_supernodes_outlive_the_superlink_and_find_it_again(deployed):
    assert deployed.nodes == [True] * deployed.clients
