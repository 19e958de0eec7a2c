"""The command: its options, and the findings as lines or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import FedladaError
from .finding import Finding, problem
from .machine import directory, installed, private_key, same_versions
from .model import Expected, dry_run, model, write_expected
from .network import listening, superlink
from .tls import authority, server_certificate

__all__ = ["doctor"]

EXAMPLES = """
examples:
  on the server's machine
    fedlada doctor --superlink flower.example.org:8443 --root-certificates ca.crt \\
        --ssl-certfile server.pem --ssl-keyfile server.key --directory checkpoints \\
        --app my-app --model task:model --write server.json
  on a node, with server.json from there
    fedlada doctor --superlink flower.example.org:8443 --root-certificates ca.crt \\
        --auth-supernode-private-key node.key --directory state --listen 127.0.0.1:9190 \\
        --app my-app --model task:model --expect server.json \\
        --dry-run "partition-id=0 num-partitions=10"
"""


def doctor(words: Sequence[str]) -> None:
    """Run ``fedlada doctor``: print what was found, and exit with 1 if anything is a problem."""
    given = _options(words)
    findings = []
    for finding in examine(given):
        findings.append(finding)
        if not given.json:
            print(f"{finding.state:8} {finding.check:18} {finding.text}", flush=True)
    problems = [finding for finding in findings if finding.state == "problem"]
    if given.json:
        checks = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"ok": not problems, "checks": checks}, indent=1))
    sys.exit(1 if problems else 0)


def examine(given: argparse.Namespace) -> Iterator[Finding]:
    """Yield what each check finds that the options ask for."""
    try:
        yield from installed()
        expected = Expected(given.expect) if given.expect else None
        if expected is not None:
            yield from same_versions(expected.versions)
        if given.root_certificates:
            trusted = authority(given.root_certificates, days=given.days)
            yield trusted
            if trusted.state != "problem":  # else nothing that it signed can be judged
                yield from _trusting(given)
        if given.auth_supernode_private_key:
            yield from private_key(given.auth_supernode_private_key)
        for path in given.directory:
            yield directory(path, free=given.free)
        for address in given.listen:
            yield listening(address)
        if given.model:
            yield from model(given.model, app=given.app, buffers=given.buffers, expected=expected)
            if given.write:
                write_expected(given.write, given.model, app=given.app, buffers=given.buffers)
            if given.dry_run:
                yield dry_run(given.dry_run, given.model, app=given.app)
    except FedladaError as error:
        yield problem("doctor", str(error))


def _trusting(given: argparse.Namespace) -> Iterator[Finding]:
    """Yield what is found with the authority's file: the server's files, and the connection."""
    trusted, days = given.root_certificates, given.days
    if given.ssl_certfile:
        host = given.superlink.rpartition(":")[0]
        yield from server_certificate(
            given.ssl_certfile, given.ssl_keyfile, trusted, host, days=days
        )
    if given.superlink and not given.offline:
        node = given.auth_supernode_private_key is not None
        yield from superlink(given.superlink, trusted, node=node, days=days)


NEEDS = {
    "superlink": ("root_certificates",),
    "ssl_certfile": ("ssl_keyfile", "root_certificates", "superlink"),
    "ssl_keyfile": ("ssl_certfile",),
    "write": ("model",),
    "dry_run": ("model",),
}


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    given = parser.parse_args(words)
    for option, needed in NEEDS.items():
        missing = [f"--{n.replace('_', '-')}" for n in needed if getattr(given, n) is None]
        if getattr(given, option) is not None and missing:
            parser.error(f"--{option.replace('_', '-')} needs {' and '.join(missing)}, too")
    return given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedlada doctor",
        description="Check, before the first round, what a deployment needs on this machine:"
        " versions, certificates, keys, connection, clock, ports, disk and model. Without options"
        " only versions are checked. Options have the names that Flower's programs give them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--superlink", metavar="HOST:PORT", help="where nodes connect to; the proxy, if any")
    add("--offline", action="store_true", help="do not connect to it")
    add("--root-certificates", type=Path, metavar="FILE", help="the authority that nodes trust")
    add("--ssl-certfile", type=Path, metavar="FILE", help="the SuperLink's certificate")
    add("--ssl-keyfile", type=Path, metavar="FILE", help="the SuperLink's key")
    add("--auth-supernode-private-key", type=Path, metavar="FILE", help="this SuperNode's key")
    add("--directory", type=Path, nargs="+", default=[], metavar="DIR", help="checkpoints or state")
    add("--free", type=float, default=1.0, metavar="GB", help="wanted there (%(default)g)")
    add("--listen", nargs="+", default=[], metavar="HOST:PORT", help="ports that must be free here")
    add("--days", type=float, default=30.0, help="warn of certificates that end (%(default)g)")
    add("--model", metavar="MODULE:NAME", help="makes the app's model; runs the app's code")
    add("--app", type=Path, default=Path(), metavar="DIR", help="where MODULE is (.)")
    add("--buffers", default="refuse", help="of the run's config (%(default)s)")
    add("--expect", type=Path, metavar="FILE", help="compare with what the server wrote")
    add("--write", type=Path, metavar="FILE", help="on the server: write what to expect")
    add("--dry-run", metavar="NODE-CONFIG", help="one round of the app here, in memory")
    add("--json", action="store_true", help="print one JSON object")
    return parser
