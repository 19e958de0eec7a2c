"""Make, and check, the keys of a trial deployment: authority, server certificate, node keys.

They are for the loopback only. The certificate names 127.0.0.1 and localhost and is valid for a
week. The authority's private key is never written to disk, so nothing else can be signed with it.
A deployment that leaves the machine needs certificates from its operator.
"""

import datetime
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

__all__ = ["ServerCertificate", "answers", "write_node_key", "write_server_certificate"]

_LIFETIME = datetime.timedelta(days=7)


@dataclass(frozen=True)
class ServerCertificate:
    """The three files a SuperLink needs to speak TLS."""

    authority: Path
    certificate: Path
    key: Path


def write_server_certificate(directory: Path) -> ServerCertificate:
    """Make an authority and let it certify a server on the loopback."""
    files = ServerCertificate(
        directory / "ca.crt", directory / "server.pem", directory / "server.key"
    )
    authority = trustme.CA(organization_name="fedlada loopback", path_length=0)
    expires = datetime.datetime.now(datetime.UTC) + _LIFETIME
    server = authority.issue_cert("localhost", "127.0.0.1", not_after=expires)
    authority.cert_pem.write_to_path(files.authority)
    server.cert_chain_pems[0].write_to_path(files.certificate)
    _write_private(files.key, server.private_key_pem.bytes())
    return files


def write_node_key(path: Path) -> None:
    """Write a SuperNode's ECDSA P-384 key to `path` and its public half to `path` + `.pub`."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def answers(address: str, authority: Path) -> bool:
    """Return whether a server listens at `address`; raise if the authority did not certify it."""
    context = ssl.create_default_context(cafile=str(authority))
    host, port = address.split(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ConnectionRefusedError:
        return False


def _write_private(path: Path, content: bytes) -> None:
    # Set the mode at creation: a chmod afterwards would leave a moment to read the key.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
