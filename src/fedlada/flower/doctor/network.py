"""Checks the SuperLink from this machine: TLS, its clock, and which requests it accepts."""

from __future__ import annotations

import email.utils
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from . import Finding, ok, problem, warning
from .tls import lifetime, reason, trusting

__all__ = ["AHEAD", "BEHIND", "listening", "superlink"]

WAIT = 10.0  # seconds for an answer
AHEAD, BEHIND = 5.0, 305.0
"""Seconds that a node's clock may be ahead of, or behind, the SuperLink's: it refuses messages
that were signed at any other time."""
RESOLUTION = 1.0  # the server's clock is read from a header of whole seconds
HEALTH, CONTROL = "/health", "/v1/control/list-runs"


def superlink(address: str, trusted: Path, *, node: bool, days: float) -> Iterator[Finding]:
    """Connect to the SuperLink, or to the proxy in front of it.

    Args:
        address: ``host:port``.
        trusted: The file of the authority.
        node: Whether this is the machine of a SuperNode, which needs no Control API.
        days: Certificates that are valid for fewer days are a warning.
    """
    try:
        host, port = split(address)
    except ValueError:
        yield problem("connection", f"{address!r} is no address; give host:port")
        return
    connection = http.client.HTTPSConnection(host, port, timeout=WAIT, context=trusting(trusted))
    try:
        connection.connect()
        shown = connection.sock.getpeercert() or {}
        what = f"{address} answers over TLS with a certificate that names it"
        yield lifetime("connection", what, shown, days=days)
        yield from _asked(connection, address, node=node)
    except (OSError, http.client.HTTPException) as error:
        yield problem("connection", f"{address}: {_why(error, host)}")
    finally:
        connection.close()


def _asked(
    connection: http.client.HTTPSConnection, address: str, *, node: bool
) -> Iterator[Finding]:
    status, date, took = _get(connection, HEALTH)
    if status == http.HTTPStatus.OK:
        yield ok("health", f"{address}{HEALTH} says that the SuperLink is up")
    else:
        yield problem(
            "health",
            f"{address}{HEALTH} answers with status {status}, not 200; check whether that is the"
            " SuperLink or its proxy, and read its log",
        )
    yield clock(date, took)
    status, _, _ = _get(connection, CONTROL)
    # Flower answers 405, because the path accepts only POST. A proxy refuses with 403 or 404.
    refused = status in (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND)
    if refused == node:
        yield ok("control", f"the Control API {'is refused' if refused else 'answers'} here")
    elif node:
        yield warning(
            "control",
            "the Control API answers here, so anybody in this machine's network can submit code to"
            " every node; ask the operator to put the proxy in front",
        )
    else:
        yield warning(
            "control",
            f"the Control API is refused here (status {status}): flwr run works only where the"
            " operator's proxy lets it through",
        )


def clock(date: str | None, took: float) -> Finding:
    """Compare the clock here with the date that the server has just sent.

    Behind a proxy it is the proxy's date.
    """
    if date is None:
        return warning("clock", "the server sends no date; compare the clocks by other means")
    server = email.utils.parsedate_to_datetime(date).timestamp()
    ahead = time.time() - took / 2 - (server + RESOLUTION / 2)
    unsure = RESOLUTION / 2 + took / 2
    text = (
        f"the clock here is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the"
        f" server's (give or take {unsure:.1f} s)"
    )
    if ahead - unsure > -BEHIND and ahead + unsure < AHEAD:
        return ok("clock", text)
    limits = f"a SuperLink refuses nodes more than {AHEAD:g} s ahead or {BEHIND:g} s behind"
    if ahead - unsure >= AHEAD or ahead + unsure <= -BEHIND:
        return problem("clock", f"{text}; {limits}: set the clock, with NTP")
    return warning("clock", f"{text}; {limits}: that is close")


def listening(address: str) -> Finding:
    """Check that a program can listen on an address of this machine."""
    try:
        host, port = split(address)
        with socket.create_server((host, port)):
            return ok("port", f"{address} is free")
    except ValueError:
        return problem("port", f"{address!r} is no address; give host:port")
    except OSError as error:
        return problem(
            "port",
            f"{address} cannot be opened ({error.strerror}); stop the program that uses it, or"
            " choose another port or an address of this machine",
        )


def split(address: str) -> tuple[str, int]:
    """Return host and port of an address; raise ValueError if it has none."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and 0 < int(port) < 65536):
        raise ValueError(address)
    return host.strip("[]"), int(port)


def _get(connection: http.client.HTTPSConnection, path: str) -> tuple[int, str | None, float]:
    """Return the status, the date and how long the answer took."""
    began = time.monotonic()
    connection.request("GET", path)
    response = connection.getresponse()
    took = time.monotonic() - began
    response.read()
    return response.status, response.getheader("Date"), took


def _why(error: Exception, host: str) -> str:
    if isinstance(error, ssl.SSLError):
        return reason(error, host)
    if isinstance(error, socket.gaierror):
        return f"the name {host} is not known here; check it, or ask for a DNS entry"
    if isinstance(error, ConnectionRefusedError):
        return "no program listens there; check the port, and that the SuperLink or its proxy runs"
    if isinstance(error, TimeoutError):
        return f"no answer within {WAIT:g} s; check whether a firewall blocks the connection"
    return f"the connection failed ({error or type(error).__name__}); see the server's log"
