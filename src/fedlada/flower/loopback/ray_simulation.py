"""Flower's simulation engine on this machine: the nodes are virtual, and Ray runs them."""

from collections.abc import Mapping
from pathlib import Path

from .deployment import Deployment

__all__ = ["RaySimulation"]


class RaySimulation(Deployment):
    """A SuperLink that runs apps on Ray with `nodes` virtual nodes, for a `with` block."""

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int = 10,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, nodes=nodes, environment=environment)
        self._superlink_options = ["--simulation"]
        self._server_program = "flwr-simulation"
        options = f"num-supernodes={nodes} client-resources-num-cpus=1"
        self._run_options = ["--federation-config", options]

    def _start_nodes(self) -> None:
        """Start none: Ray runs the nodes."""
