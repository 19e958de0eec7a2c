"""A run on Flower that is killed and started again ends as if it had not been.

The app is that of ``benchmarks/deployment_kills.py``: its ServerApp runs one algorithm after the
other, each with checkpoints.  A run is started, killed in the middle of a round, and started again
by a new ``flwr run`` of the same, until it ends; it must end in the bits of the in-process engine.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedlada import Checkpoints
from fedlada.flower.loopback import Deployment, RaySimulation, Run

APP = Path(__file__).parents[2] / "benchmarks" / "apps" / "resume"
CLIENTS, COHORT, ROUNDS = 3, 2, 2


@dataclass
class Story:
    """A run of ``fedlada`` and then ``scaffold`` that was killed in the last round of each."""

    directory: Path
    """Where the ServerApp kept its checkpoints and noted what it computed."""
    states: Path
    """Where the clients kept their vectors."""
    outputs: list[str]
    """What each of the three ``flwr run`` printed."""
    nodes: list[bool] | None = None
    """Whether each SuperNode outlived the SuperLink."""

    @classmethod
    def begin(cls, directory: Path) -> "Story":
        return cls(directory / "server", directory / "states", [])

    def config(self) -> dict[str, str | int]:
        return {
            "algorithms": "fedlada scaffold",
            "num-server-rounds": ROUNDS,
            "cohort": COHORT,
            "nodes": CLIENTS,
            "directory": str(self.directory),
        }

    def computed(self, name: str) -> list[str]:
        """The model of every round that was computed, by its hash."""
        path = self.directory / name / "computed"
        return path.read_text().split() if path.exists() else []

    def await_last_round(self, name: str, run: Run, timeout: float = 300) -> None:
        """Wait until all rounds but the last are saved."""
        end = time.monotonic() + timeout
        while ROUNDS - 1 not in Checkpoints(self.directory / name).rounds():
            assert run.running(), f"the run ended too early: {run.output()}"
            assert time.monotonic() < end, f"{name} did not come to its last round: {run.output()}"
            time.sleep(0.02)

    def leave(self, run: Run) -> None:
        self.outputs.append(run.output())
        run.leave()


@pytest.fixture(scope="module")
def ray(tmp_path_factory) -> Story:
    directory = tmp_path_factory.mktemp("ray")
    story = Story.begin(directory)
    # Rounds on Ray are over before they can be killed, so clients sleep.
    config = story.config() | {"state-directory": str(story.states), "pause": 1.5}
    with RaySimulation(directory / "flower", nodes=CLIENTS) as engine:
        for name in ("fedlada", "scaffold"):
            run = engine.begin(APP, config=config)
            story.await_last_round(name, run)
            time.sleep(0.5)
            engine.kill_server_app()
            story.leave(run)
        story.outputs.append(engine.run(APP, config=config))
    return story


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Story:
    directory = tmp_path_factory.mktemp("deployed")
    story = Story.begin(directory)
    nodes = [{"state-directory": str(story.states)}] * CLIENTS
    with Deployment(directory / "flower", nodes=CLIENTS, node_configs=nodes) as engine:
        run = engine.begin(APP, config=story.config())
        story.await_last_round("fedlada", run)
        time.sleep(2)
        engine.kill_server_app()
        story.leave(run)

        run = engine.begin(APP, config=story.config())
        story.await_last_round("scaffold", run)
        time.sleep(2)
        engine.kill_superlink()
        engine.start_superlink()
        story.leave(run)
        await_end(engine)

        story.outputs.append(engine.run(APP, config=story.config()))
        story.nodes = [engine.node_runs(i) for i in range(CLIENTS)]
    return story


def await_end(engine: Deployment, timeout: float = 120) -> None:
    """Wait for the ServerApp to see that its SuperLink is gone: it holds the checkpoints."""
    end = time.monotonic() + timeout
    while engine.server_apps():
        assert time.monotonic() < end, "the ServerApp outlives its SuperLink"
        time.sleep(0.1)


@pytest.fixture(params=["ray", "deployed"])
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


@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_a_run_that_was_killed_and_started_again_ends_in_the_bits_of_one_that_was_not(
    story, undisturbed, name
):
    expected = undisturbed.undisturbed(name, clients=CLIENTS, cohort=COHORT, rounds=ROUNDS)
    found = undisturbed.differences(story.directory / name, story.states, expected)
    assert list(found) == []


@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_only_the_round_in_flight_is_computed_again_and_every_round_counts_once(
    story, undisturbed, name
):
    expected = undisturbed.undisturbed(name, clients=CLIENTS, cohort=COHORT, rounds=ROUNDS)
    computed = story.computed(name)
    assert computed[: ROUNDS - 1] == expected.names[: ROUNDS - 1]
    assert set(computed[ROUNDS - 1 :]) == {expected.names[-1]}


def test_a_new_flwr_run_goes_on_where_the_killed_one_was(story):
    _, second, third = story.outputs
    assert f"going on after round {ROUNDS - 1}, from {story.directory / 'fedlada'}" in second
    assert f"going on after round {ROUNDS - 1}, from {story.directory / 'scaffold'}" in third


def test_supernodes_outlive_the_superlink_and_find_it_again(deployed):
    assert deployed.nodes == [True] * CLIENTS
