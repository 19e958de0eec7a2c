"""A SuperLink and two SuperNodes as containers on this machine, from the images to the last bit.

Run: python examples/deployment/containers.py [--build OPTION]... [--run OPTION]...

Needs buildah and podman, and mmdebstrap unless there is a base image with Python 3.11.  It builds
the images, starts the containers with TLS and node keys, and runs FedLADA and SCAFFOLD; then it
kills one SuperNode's container, starts another with the same volume, and lets both runs go on from
their checkpoints: both must end in the bits of the run in process.  At the end everything is gone:
containers, volumes and images, also if something fails.

The deployment is that of fedlada.flower.loopback; only how a program starts is different.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from same_run import differences, run_config

from fedlada.flower.loopback import Deployment
from fedlada.flower.loopback.launcher import Launcher
from fedlada.flower.loopback.processes import Process

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
APP = ROOT / "examples" / "flower"
NODES, BEFORE, AFTER = 2, 2, 3
USER = 10001
"""Of the containers; it must be able to read the keys that are mounted."""
HOME, SECRETS = "/var/lib/flower", "/etc/flower"
PROGRAMS = {"flower-superlink": "superlink", "flower-supernode": "supernode"}


def call(*command: str) -> str:
    """Run a program and return what it printed; its errors are shown."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class ContainerLauncher(Launcher):
    """Starts the SuperLink and the SuperNodes in containers, and flwr's commands as ever."""

    def __init__(self, directory: Path, *, tag: str, options: Sequence[str]) -> None:
        super().__init__(directory, {})
        self._keys, self._tag, self._options = directory / "keys", tag, options

    def start(self, name: str, command: Sequence[str], *, home: str) -> Process:
        """Start a program of Flower's, in a container if there is an image for it."""
        image = PROGRAMS.get(command[0])
        if image is None:
            return super().start(name, command, home=home)
        words, mounts = [], []
        for word in command[1:]:
            if Path(word).parent == self._keys:
                inside = f"{SECRETS}/{Path(word).name}"
                os.chown(word, USER, USER)
                mounts += ["--volume", f"{word}:{inside}:ro"]
                word = inside
            words.append(word)
        return self.process(
            name,
            [
                *("podman", "run", "--replace", "--name", self.container(name)),
                *("--label", f"fedlada={self._tag}", "--network", "host", "--read-only"),
                *("--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
                *("--volume", f"{self.container(name)}:{HOME}", *mounts, *self._options),
                *self._variables(name, image, command),
                *(f"localhost/{self._tag}-{image}", *words),
            ],
            environment=os.environ,
            directory=self._keys.parent,
        )

    def close(self) -> None:
        """Remove the containers, then kill whatever else still runs."""
        label = f"label=fedlada={self._tag}"
        for container in call("podman", "ps", "--all", "--quiet", "--filter", label).split():
            call("podman", "rm", "--force", "--time", "0", container)
        super().close()

    def container(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _variables(self, name: str, image: str, command: Sequence[str]) -> Iterator[str]:
        port = command[command.index("--port") + 1]
        scheme = "https" if image == "superlink" else "http"
        given = {"HEALTH": f"{scheme}://127.0.0.1:{port}/health", "OMP_NUM_THREADS": "1"}
        # With the mark in it, a process in a container is found and killed like any other.
        for key, value in (given | self.mark(name)).items():
            yield from ("--env", f"{key}={value}")


class Containers(Deployment):
    """The deployment of the loopback, with its SuperLink and SuperNodes in containers."""

    def __init__(self, directory: Path, *, tag: str, options: Sequence[str]) -> None:
        self.launcher = ContainerLauncher(directory, tag=tag, options=options)
        states = [{"state-directory": f"{HOME}/state"}] * NODES
        super().__init__(directory, nodes=NODES, node_configs=states, launcher=self.launcher)

    def saved(self, file: str) -> Path:
        """A copy of a file that the ServerApp wrote."""
        container, copy = self.launcher.container("superlink"), self.directory / file
        call("podman", "cp", f"{container}:{HOME}/{file}", str(copy))
        return copy

    def healthy(self) -> bool:
        """Whether the health check of each container succeeds."""
        names = ["superlink", *(f"node-{i}" for i in range(NODES))]
        for name in names:
            call("podman", "healthcheck", "run", self.launcher.container(name))
        return True


@contextmanager
def images(tag: str, given: argparse.Namespace) -> Iterator[None]:
    """The images and the base they need, for a `with` block."""
    base, common = (f"localhost/{tag}-{name}" for name in ("base", "flower"))
    made = [base, common, *(f"localhost/{tag}-{name}" for name in PROGRAMS.values())]
    options = given.build
    try:
        if given.image is not None:
            call("podman", "tag", given.image, common)
        else:
            if given.base is None:
                debian(base)
            build(common, "Containerfile", f"BASE={given.base or base}", *options)
        for name in PROGRAMS.values():
            file = f"{name}.Containerfile"
            build(f"localhost/{tag}-{name}", file, f"IMAGE={common}", *options)
        yield
    finally:
        subprocess.run(["podman", "rmi", "--force", *made], capture_output=True)


def build(image: str, file: str, argument: str, *options: str) -> None:
    """Build one image from a file beside this one."""
    call(
        *("buildah", "bud", "--quiet", "--format", "docker", "--build-arg", argument),
        *(*options, "--tag", image, "--file", str(HERE / file), str(ROOT)),
    )


def debian(image: str) -> None:
    """Make a base image of Debian with Python, where no registry can be reached."""
    with tempfile.TemporaryDirectory() as work:
        packages = "--include=python3,python3-venv,ca-certificates"
        call("mmdebstrap", "--variant=minbase", packages, "bookworm", f"{work}/base.tar")
        call("podman", "import", "--quiet", f"{work}/base.tar", image)


def secrets(images: Sequence[str], keys: Path) -> list[str]:
    """The files in any layer of the images that have a name of the deployment's keys, or such."""
    names = []
    with tempfile.TemporaryDirectory() as work:
        file = f"{work}/images.tar"
        call("podman", "save", "--quiet", "--multi-image-archive", "--output", file, *images)
        with tarfile.open(file) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".tar"):
                    with tarfile.open(fileobj=archive.extractfile(member)) as layer:
                        names += layer.getnames()
    assert "opt/fedlada/health.py" in names, "this does not see the layers"
    words = {path.name for path in keys.iterdir()} | {"pip.conf", "id_rsa"}
    return [name for name in names if Path(name).name in words or name.startswith("etc/flower")]


def show(sentence: str, began: float) -> None:
    print(f"{time.monotonic() - began:5.0f} s  {sentence}", flush=True)


def run(deployment: Containers, name: str, rounds: int, began: float) -> None:
    """Run an algorithm up to a round, and compare its bits with the run in process."""
    file = f"{name}-{rounds}.pt"
    config = run_config(
        name,
        nodes=NODES,
        rounds=rounds,
        save=f"{HOME}/{file}",
        checkpoints=f"{HOME}/checkpoints-{name}",
        num_partitions=NODES,
    )
    deployment.run(APP, config=config, timeout=600)
    wrong = list(differences(name, deployment.saved(file), nodes=NODES, rounds=rounds))
    if wrong:
        sys.exit(f"{name} differs from the run in process in {', '.join(wrong)}")
    show(f"{name}: round {rounds} of the containers has the bits of the run in process", began)


def rehearse(deployment: Containers, tag: str, began: float) -> None:
    """What a deployment of containers must survive."""
    show(f"a SuperLink and {NODES} SuperNodes are up, each in its container", began)
    users = {
        call("podman", "exec", deployment.launcher.container(name), "id", "-u")
        for name in ("superlink", "node-0", "node-1")
    }
    if users != {str(USER)}:
        sys.exit(f"the containers run as {users}, not as {USER}")
    deployment.healthy()
    show(f"they run as user {USER}, and their health checks succeed", began)
    names = [f"localhost/{tag}-{name}" for name in PROGRAMS.values()]
    found = secrets(names, deployment.directory / "keys")
    if found:
        sys.exit(f"there are secrets in the layers: {found}")
    show("no key, certificate or pip configuration is in a layer of the images", began)
    for name in ("fedlada", "scaffold"):
        run(deployment, name, BEFORE, began)
    deployment.kill_node(1)
    show("SuperNode 1 was killed", began)
    deployment.start_node(1, timeout=180)
    show("another container with its volume has taken its place", began)
    for name in ("fedlada", "scaffold"):  # SCAFFOLD's c_i is in the volume
        run(deployment, name, AFTER, began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", help="an image with Python 3.11; else one is made of Debian")
    parser.add_argument("--image", help="one that was built of the Containerfile before")
    more = {"action": "append", "default": [], "metavar": "OPTION"}
    parser.add_argument("--build", help="for buildah bud, as --build=--isolation=chroot", **more)
    parser.add_argument("--run", help="for podman run, as --run=--runtime=runc", **more)
    given = parser.parse_args()
    needed = ["buildah", "podman"] + ([] if given.base or given.image else ["mmdebstrap"])
    for program in needed:
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed; on Debian: apt install {program}")
    began, tag = time.monotonic(), f"fedlada-{uuid.uuid4().hex[:8]}"
    volumes = [f"{tag}-{name}" for name in ("superlink", *(f"node-{i}" for i in range(NODES)))]
    try:
        with images(tag, given):
            show("the images are built", began)
            with (
                tempfile.TemporaryDirectory() as work,
                Containers(Path(work) / "deployment", tag=tag, options=given.run) as deployment,
            ):
                rehearse(deployment, tag, began)
    finally:
        subprocess.run(["podman", "volume", "rm", "--force", *volumes], capture_output=True)
    left = call("podman", "ps", "--all", "--quiet", "--filter", f"label=fedlada={tag}")
    left += call("podman", "volume", "ls", "--quiet", "--filter", f"name={tag}")
    left += call("podman", "images", "--quiet", "--filter", f"reference=localhost/{tag}-*")
    if left:
        sys.exit(f"something is left: {left}")
    show("containers, volumes and images are removed", began)


if __name__ == "__main__":
    main()
