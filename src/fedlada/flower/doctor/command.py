"""The command: its options, and the findings as lines or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import FedladaError
from . import Finding, problem
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


def doctor(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Check, before the first round, what a deployment needs on this machine.

    These are versions, certificates, keys, connection, clock, ports, disk and model. Without
    options only versions are checked. Options have the names that Flower's programs give them.
    The exit code is 1 if anything is a problem.
    """
    options = _options(parser, words)
    findings = []
    for finding in examine(options):
        findings.append(finding)
        if not options.json:
            print(f"{finding.state:8} {finding.check:18} {finding.text}", flush=True)
    problems = [finding for finding in findings if finding.state == "problem"]
    if options.json:
        checks = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"ok": not problems, "checks": checks}, indent=1))
    sys.exit(1 if problems else 0)


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings of the checks that the options select."""
    try:
        yield from installed()
        expected = Expected(options.expect) if options.expect else None
        if expected is not None:
            yield from same_versions(expected.versions)
        if options.root_certificates:
            trusted = authority(options.root_certificates, days=options.days)
            yield trusted
            if trusted.state != "problem":  # otherwise nothing that it signed can be checked
                yield from _trusting(options)
        if options.auth_supernode_private_key:
            yield from private_key(options.auth_supernode_private_key)
        for path in options.directory:
            yield directory(path, free=options.free)
        for address in options.listen:
            yield listening(address)
        if options.model:
            kind = {"buffers": options.buffers, "personal": options.personal}
            yield from model(options.model, app=options.app, expected=expected, **kind)
            if options.write:
                write_expected(options.write, options.model, app=options.app, **kind)
            if options.dry_run:
                yield dry_run(options.dry_run, options.model, app=options.app)
    except FedladaError as error:
        yield problem("doctor", str(error))


def _trusting(options: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings that need the authority's file: the server's files, and the connection."""
    trusted, days = options.root_certificates, options.days
    if options.ssl_certfile:
        host = options.superlink.rpartition(":")[0]
        yield from server_certificate(
            options.ssl_certfile, options.ssl_keyfile, trusted, host, days=days
        )
    if options.superlink and not options.offline:
        node = options.auth_supernode_private_key is not None
        yield from superlink(options.superlink, trusted, node=node, days=days)


NEEDS = {
    "superlink": ("root_certificates",),
    "ssl_certfile": ("ssl_keyfile", "root_certificates", "superlink"),
    "ssl_keyfile": ("ssl_certfile",),
    "write": ("model",),
    "dry_run": ("model",),
}


def _options(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    _add_options(parser)
    options = parser.parse_args(words)
    for option, needed in NEEDS.items():
        missing = [f"--{n.replace('_', '-')}" for n in needed if getattr(options, n) is None]
        if getattr(options, option) is not None and missing:
            parser.error(f"--{option.replace('_', '-')} needs {' and '.join(missing)}, too")
    return options


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--superlink", metavar="HOST:PORT", help="where nodes connect to; the proxy, if any")
    add("--offline", action="store_true", help="do not connect to it")
    add("--root-certificates", type=Path, metavar="FILE", help="the authority that nodes trust")
    add("--ssl-certfile", type=Path, metavar="FILE", help="the SuperLink's certificate")
    add("--ssl-keyfile", type=Path, metavar="FILE", help="the SuperLink's key")
    add("--auth-supernode-private-key", type=Path, metavar="FILE", help="this SuperNode's key")
    add("--directory", type=Path, nargs="+", default=[], metavar="DIR", help="checkpoints or state")
    add(
        "--free",
        type=float,
        default=1.0,
        metavar="GB",
        help="disk space required there (%(default)g)",
    )
    add("--listen", nargs="+", default=[], metavar="HOST:PORT", help="ports that must be free here")
    add(
        "--days",
        type=float,
        default=30.0,
        help="warn of certificates that expire within this time (%(default)g)",
    )
    add("--model", metavar="MODULE:NAME", help="makes the app's model; runs the app's code")
    add("--app", type=Path, default=Path(), metavar="DIR", help="where MODULE is (.)")
    add("--buffers", default="refuse", help="of the run's config (%(default)s)")
    add("--personal", default="", metavar="PATTERNS", help="of the run's config")
    add("--expect", type=Path, metavar="FILE", help="compare with what the server wrote")
    add("--write", type=Path, metavar="FILE", help="on the server: write what to expect")
    add("--dry-run", metavar="NODE-CONFIG", help="one round of the app here, in memory")
    add("--json", action="store_true", help="print one JSON object")
