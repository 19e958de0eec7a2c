"""Tells the operator which sites are missing since when, and why."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import Error

from ..protocol.messages import Failure, Rejection

__all__ = ["Attendance", "failed"]

log = logging.getLogger("fedlada")

REASONS = {1: "app not loaded", 2: "error in app", 5: "node lost", 8: "app crashed"}
"""Short reasons for the codes of Flower's errors."""
LONGEST = 500
"""Largest number of characters of a client's sentence in the log: a client can send any text."""
MOST_LINES = 20
"""Largest number of sites that the log names in one round."""
RECORDS = {"config", "arrays"}
"""The records of a message of Flower's own strategies."""


def failed(client: int, error: Error) -> Failure:
    """Return the failure of a client whose node sent an error instead of a reply."""
    reason = REASONS.get(error.code, f"Flower error {error.code}")
    return Failure(client=client, reason=reason, cause=_sentence(error.reason or ""))


def _sentence(reason: str) -> str:
    """Return what raised the error, from Flower's ``<class 'KeyError'>:<'...'>``, in one line."""
    kind, text = "", reason
    match = re.fullmatch(r"<class '([^']*)'>:<'(.*)'>", reason, re.DOTALL)
    if match:
        kind, text = match[1].rpartition(".")[2], match[2]
    # Ray's simulation keeps only the text of the app's own error, behind these words.
    text, inner, last = text.rpartition("Exception ClientAppException occurred. Message: ")
    printable = "".join(c if c.isprintable() else " " for c in last)
    words = " ".join(printable.split())
    if kind and not inner and not kind.endswith("TrainingError"):
        words = f"{kind}: {words}"
    name = re.fullmatch(r"(?:KeyError: )?'(\w+)'", words)
    if name and name[1] in RECORDS:
        words += (
            f": a message here has no record {name[1]!r}. Use `with training(message, context,"
            " model) as local`, which sets the model and has local.lr; other settings are in"
            " context.run_config"
        )
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."


class _Absence(NamedTuple):
    rounds: int
    last: int
    reason: str
    cause: str


class Attendance:
    """Notes which sites of each round sent nothing, and logs every change.

    Args:
        name: Returns the name of a site by its number.
        what: What the sites are asked for.
    """

    def __init__(self, name: Callable[[int], str], what: str) -> None:
        self._name, self._what = name, what
        self._absences: dict[int, _Absence] = {}
        self._round, self._lines = -1, 0

    @property
    def missing(self) -> Mapping[str, int]:
        """The sites that sent nothing when they were last asked, and how often in a row."""
        return {self._name(site): self._absences[site].rounds for site in sorted(self._absences)}

    @property
    def causes(self) -> Sequence[str]:
        """Why they sent nothing, for those that said why."""
        absences = ((site, self._absences[site]) for site in sorted(self._absences))
        return [f"site {self._name(site)}: {a.cause}" for site, a in absences if a.cause]

    def note(self, round: int, site: int, answer: object) -> None:
        """Note what a site sent in a round, counted from 0."""
        if round != self._round:
            self._round, self._lines = round, 0
        before = self._absences.pop(site, None)
        rounds = before.rounds if before else 0
        if isinstance(answer, Failure) and not isinstance(answer, Rejection):
            again = before is not None and before.last == round  # a leaf may be asked twice
            now = _Absence(rounds if again else rounds + 1, round, answer.reason, answer.cause)
            self._absences[site] = now
            if before is None or (now.reason, now.cause) != (before.reason, before.cause):
                cause = f": {now.cause}" if now.cause else ""
                self._log(site, f"sent no {self._what}: {now.reason}{cause}")
        elif rounds:
            self._log(site, f"is back; it missed {rounds} round{'s' if rounds > 1 else ''}")

    def _log(self, site: int, sentence: str) -> None:
        self._lines += 1
        if self._lines <= MOST_LINES:
            log.warning("round %d: site %s %s", self._round + 1, self._name(site), sentence)
        elif self._lines == MOST_LINES + 1:
            log.warning("round %d: more sites changed than are named here", self._round + 1)
