"""Write the command lines of Flower's programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from .certificates import ServerCertificate
from .processes import free_port
from .run import Value

__all__ = ["superlink_command", "supernode_command"]


def superlink_command(
    address: str, certificate: ServerCertificate, options: Sequence[str]
) -> list[str]:
    """Return the command of a SuperLink that listens on `address` and speaks TLS."""
    host, port = address.split(":")
    command = ["flower-superlink", "--host", host, "--port", port]
    command += ["--ssl-ca-certfile", str(certificate.authority)]
    command += ["--ssl-certfile", str(certificate.certificate)]
    command += ["--ssl-keyfile", str(certificate.key)]
    return [*command, *options]


def supernode_command(
    superlink: str,
    *,
    authority: Path | None,
    key: Path | None,
    config: Mapping[str, Value] | None = None,
) -> list[str]:
    """Return the command of a SuperNode.

    Args:
        superlink: The address that it connects to.
        authority: The certificate of the authority to trust; without it the node speaks HTTP.
        key: The private key that it shows, if any.
        config: Its node config.
    """
    command = ["flower-supernode", "--superlink", superlink]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    if key is not None:
        command += ["--auth-supernode-private-key", str(key)]
    if config:
        words = tomli_w.dumps(dict(config)).replace(" = ", "=").splitlines()
        command += ["--node-config", " ".join(words)]
    return command
