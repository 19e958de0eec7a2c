"""Certificates as OpenSSL sees them: the authority's file, and the server's certificate and key.

The server's files are tested by a TLS handshake in memory, with the authority on the other side:
the same library checks chain, host name, dates and key when nodes connect.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import Finding, ok, problem, warning

__all__ = ["authority", "lifetime", "reason", "server_certificate", "trusting"]

DAY = 86_400.0
AUTHORITY, CERTIFICATE = "authority", "server certificate"


def trusting(path: Path) -> ssl.SSLContext:
    """Return the context of a client that trusts the authorities in a file."""
    return ssl.create_default_context(cafile=str(path))


def authority(path: Path, *, days: float) -> Finding:
    """Check the file of the certificate authority that nodes trust."""
    try:
        certificates = trusting(path).get_ca_certs()
    except OSError as error:
        return _unreadable(AUTHORITY, path, error, "give the PEM file of the authority")
    if not certificates:
        return problem(
            AUTHORITY,
            f"{path} holds no certificate of an authority; if it is a server's, give the PEM file"
            " of the authority that signed it",
        )
    first = min(certificates, key=lambda each: _seconds(each, "notAfter"))
    return lifetime(AUTHORITY, str(path), first, days=days)


def server_certificate(
    certificate: Path, key: Path, trusted: Path, host: str, *, days: float
) -> Iterator[Finding]:
    """Check the SuperLink's certificate and key against the authority and the host's name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(certificate, key)
    except OSError as error:
        what = f"{certificate} with {key}"
        yield _unreadable(CERTIFICATE, what, error, "give a PEM certificate and its own key")
        return
    try:
        shown = _handshake(server, trusting(trusted), host)
    except ssl.SSLError as error:
        yield problem(CERTIFICATE, f"{certificate}: {reason(error, host)}")
        return
    except OSError as error:
        yield _unreadable(CERTIFICATE, trusted, error, "give the PEM file of the authority")
        return
    what = f"{certificate} names {host} and is signed by {trusted}"
    yield lifetime(CERTIFICATE, what, shown, days=days)


def lifetime(check: str, what: str, shown: Mapping[str, object], *, days: float) -> Finding:
    """Check that a certificate, as ssl shows it, is valid now and will be for ``days``."""
    now, begins, ends = time.time(), _seconds(shown, "notBefore"), _seconds(shown, "notAfter")
    if now < begins:
        return problem(
            check,
            f"{what}: valid only from {_day(begins)}, and the clock here says {_day(now)}; set the"
            " clock, or wait",
        )
    if now > ends:
        return problem(check, f"{what}: expired on {_day(ends)}; get a new certificate")
    left = (ends - now) / DAY
    text = f"{what}: valid until {_day(ends)}, {left:.0f} days from now"
    return ok(check, text) if left >= days else warning(check, f"{text}; renew it soon")


def reason(error: ssl.SSLError, host: str) -> str:
    """Return what a failed handshake with ``host`` means, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        message = error.verify_message
        if "expired" in message or "not yet valid" in message:
            return f"{message} by the clock here; get a new certificate, or set the clock"
        if "match" in message or "valid for" in message:
            return f"{message}; connect by a name in the certificate, or get one that names {host}"
        return (
            f"not signed by this authority ({message}); give the authority that signed it, and give"
            " the server its whole chain"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the server does not use TLS; start the SuperLink with its certificate and key"
    return f"the TLS handshake failed ({error.reason or error}); see the server's log"


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> dict[str, object]:
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(back, forth, server_hostname=host),
        server.wrap_bio(forth, back, server_side=True),
    ]
    done: set[int] = set()
    while len(done) < len(sides):
        for i, side in enumerate(sides):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                done.add(i)
    return dict(sides[0].getpeercert() or {})


def _unreadable(check: str, what: object, error: OSError, advice: str) -> Finding:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return problem(check, f"{what}: the key is that of another certificate; {advice}")
        return problem(check, f"{what} cannot be read as PEM; {advice}")
    return problem(check, f"{what} cannot be read ({error.strerror}); {advice}")


def _seconds(shown: Mapping[str, object], key: str) -> float:
    return ssl.cert_time_to_seconds(str(shown[key]))


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
