"""Flower's simulation engine on this machine: the nodes are virtual, and Ray runs them."""

from collections.abc import Mapping
from pathlib import Path

from .deployment import Deployment

__all__ = ["RaySimulation"]


class RaySimulation(Deployment):
    """A SuperLink that runs apps on Ray with `nodes` virtual nodes, for a `with` block.

    Args:
        directory: As for a deployment.
        nodes: The number of virtual nodes.
        at_once: How many of them compute at once; by default one per core.  Ray starts a process
            for each, which imports the app.
        environment: As for a deployment.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int = 10,
        at_once: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, nodes=nodes, environment=environment)
        self._superlink_options = ["--simulation"]
        self._server_program = "flwr-simulation"
        options = f"num-supernodes={nodes} client-resources-num-cpus=1"
        if at_once is not None:
            options += f" init-args-num-cpus={at_once}"
        self._run_options = ["--federation-config", options]

    def _start_nodes(self) -> None:
        """Start none: Ray runs the nodes."""
