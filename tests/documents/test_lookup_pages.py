"""The pages for users who look something up: messages, variables and numbers are the library's."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator

from command_pages import commands
from tuning_records import tunings

from fedlada.cli import COMMANDS
from places import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))


def texts() -> list[str]:
    """Return every text in the sources, with `…` for what is filled in."""
    found = []
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_library():
    page = (ROOT / "docs/troubleshooting.md").read_text()
    prose = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    quoted = re.findall(r'"([^"`\n]+)"', re.sub(r"`[^`]*`", "", prose))
    reasons = re.search(r"^\| reason in the record(?:.*\n\|)+.*", page, re.M)
    assert reasons is not None
    for line in reasons[0].splitlines()[2:]:
        quoted += re.findall(r"`([^`]+)`", line.split("|")[1])
    quoted += re.findall(r"^\| failures `([^`]+)`", page, re.M)
    assert len(quoted) > 12
    known = texts()
    for quote in quoted:
        assert any(quote in text for text in known), f"the library never says {quote!r}"


def test_the_page_of_commands_has_the_help_of_each():
    page = commands()
    for name in COMMANDS:
        assert f"### fedlada {name}\n\n```text\nusage: fedlada {name} " in page


def test_every_variable_of_the_sources_is_on_the_page_of_the_environment():
    page = (ROOT / "docs/cli.md").read_text()
    used = {name for file in SOURCES for name in re.findall(r"\bFEDLADA_\w+", file.read_text())}
    assert len(used) >= 3
    assert used == set(re.findall(r"^\| `(FEDLADA_\w+)`", page, re.MULTILINE))


def test_the_tuning_page_has_the_ratios_of_the_records():
    page = " ".join((ROOT / "docs/tuning.md").read_text().split())
    found = list(tunings())
    fedavg = {one.source: one.best for one in found if one.algorithm == "fedavg"}
    fedcm = [one for one in found if one.algorithm == "fedcm" and "alpha" not in one.settings]
    every = [one.best / fedavg[one.source] for one in fedcm]
    ratios = sorted(every)
    choosing = " ".join((ROOT / "docs/choosing.md").read_text().split())
    digits, others = (
        sorted(r for r, one in zip(every, fedcm, strict=True) if ("digits" in one.problem) == on)
        for on in (True, False)
    )
    assert (
        f"The best was {others[0]:g} to {others[-1]:g} times it on images and text, and"
        f" {digits[0]:.1f} to {digits[-1]:g} times it on digits" in choosing
    )
    below = [one.problem for one in fedcm if one.best < fedavg[one.source]]
    assert len(below) == 3
    assert all("digits" in problem for problem in below)
    number = {4: "four", 11: "eleven"}
    edges = sum(bool(one.edge) for one in fedcm)
    assert (
        f"the best lr was {ratios[0]:.2g} to {ratios[-1]:g} times the one of `fedavg` on the same"
        f" problem; {number[edges]} of these {number[len(fedcm)]} are at an edge" in page
    )
    assert not [one for one in found if one.algorithm == "fedavg" and one.best < 0.03]
    desk = [one for one in found if one.source.endswith("/tune.jsonl")]
    best = {}
    for one in desk:
        best[one.algorithm] = max(best.get(one.algorithm, 0), one.scores[one.best])
    (averaging,) = (one.scores for one in desk if one.algorithm == "fedavg")
    lost = 100 * (averaging[0.1] - averaging[0.4])
    apart = 100 * (max(best.values()) - min(best.values()))
    assert f"cost FedAvg {lost:.0f} points; the best and the worst of seven" in page
    assert f"were {apart:.0f} points apart" in page
    assert len(best) == 7


MODULES = ("algorithms", "data", "models", "flower", "engines", "training", "server", "privacy")


def fields_of(kind: type) -> Iterator[tuple[str, str]]:
    """The name of each field of a class, and all that is said about it where it is defined."""
    for owner in kind.__mro__:
        if not owner.__module__.startswith("fedlada"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        whole = ast.get_docstring(tree) or ""
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
                continue
            name = ast.unparse(node.target)
            own = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            said = re.search(rf"^ *{name}: .*|``{name}``", whole, re.MULTILINE)
            yield f"{owner.__name__}.{name}", after.value.value if own else said and said[0]


def test_every_field_of_a_public_class_is_explained():
    """The reference leaves out those that are not."""
    found = {}
    for module in ("fedlada", *(f"fedlada.{name}" for name in MODULES)):
        public = importlib.import_module(module)
        for kind in (getattr(public, name) for name in public.__all__):
            found |= fields_of(kind) if inspect.isclass(kind) else {}
    assert len(found) > 100
    assert not [name for name, said in found.items() if not said and "._" not in name]
