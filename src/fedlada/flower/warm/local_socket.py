"""Send parts of bytes over a Unix socket between two processes of one user."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import FedladaError, require

__all__ = [
    "ConnectionEnded",
    "ConnectionSilent",
    "check_peer",
    "connect",
    "given_up",
    "listen",
    "receive",
    "send",
]

_LENGTH = struct.Struct(">Q")
_LONGEST = 100
"""Largest number of bytes in the path of a socket: Linux takes 108, other systems a few less."""


class ConnectionEnded(FedladaError):
    """The other process closed the connection, or ended."""


class ConnectionSilent(ConnectionEnded):
    """The other process neither went on nor closed the connection in time."""


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path in a private directory, with mode 0600."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with _short(path) as address:
        listener.bind(address)
    path.chmod(0o600)
    listener.listen()
    return listener


def connect(path: Path) -> socket.socket | None:
    """Return a connection to the listener at this path, or None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    check_peer(connection)
    return connection


def check_peer(connection: socket.socket) -> None:
    """Check that the process at the other end is of this user."""
    if not sys.platform.startswith("linux"):
        return  # the directory keeps others out
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", peer)
    require(user == os.geteuid(), f"user {user} is at the other end of this node's socket")


def send(connection: socket.socket, *parts: bytes) -> None:
    """Send the parts, each after its length."""
    try:
        for part in parts:
            connection.sendall(_LENGTH.pack(len(part)))
            if part:  # an empty part has arrived already, and the other process may have closed
                connection.sendall(part)
    except TimeoutError as error:
        raise ConnectionSilent("the other process did not read all in time") from error
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ConnectionEnded("the other process ended before it had read all") from error


def receive(connection: socket.socket, parts: int) -> list[bytearray]:
    """Return this number of parts."""
    return [
        _exactly(connection, *_LENGTH.unpack(_exactly(connection, _LENGTH.size)))
        for _ in range(parts)
    ]


def given_up(connection: socket.socket) -> bool:
    """Return whether the other process, which has nothing more to send, closed the connection."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _exactly(connection: socket.socket, size: int) -> bytearray:
    part = bytearray(size)
    view, done = memoryview(part), 0
    while done < size:
        try:
            count = connection.recv_into(view[done:])
        except TimeoutError as error:
            raise ConnectionSilent("the other process did not send all in time") from error
        except ConnectionResetError:
            count = 0
        if count == 0:
            raise ConnectionEnded("the other process ended before it had sent all")
        done += count
    return part


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name of this path that is short enough for a socket."""
    if len(os.fsencode(path)) <= _LONGEST or not sys.platform.startswith("linux"):
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
