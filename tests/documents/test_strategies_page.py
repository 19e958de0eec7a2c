"""The page for users of Flower's strategies names arguments that Flower has."""

import inspect
import re

import flwr.server.strategy as old
import flwr.serverapp.strategy as new

from places import ROOT

PAGE = (ROOT / "docs/from_flower.md").read_text()
NAMED = re.findall(r"`([A-Z]\w+)(?:\.(\w+))?\(([\w, ]*)\)`", PAGE)
"""Class, method and arguments, as in `FedProx(proximal_mu)` and `Strategy.start(timeout)`."""


def arguments(module, name: str, method: str) -> set[str]:
    function = getattr(getattr(module, name, None), method, None)
    return set() if function is None else {*inspect.signature(function).parameters}


def test_the_arguments_that_the_page_names_exist():
    assert len(NAMED) > 20
    for name, method, text in NAMED:
        method, asked = method or "__init__", {*filter(None, text.split(", "))}
        both = [arguments(module, name, method) for module in (new, old)]
        assert any(both), f"Flower has no strategy {name}"
        assert any(asked <= known for known in both), (name, asked)


def test_the_page_names_every_strategy_and_every_argument_that_has_a_counterpart():
    strategies = {
        name
        for name in new.__all__
        if inspect.isclass(getattr(new, name)) and issubclass(getattr(new, name), new.Strategy)
    } - {"Strategy"}
    lacking = set(re.findall(r"^\| `(\w+)\(\)` \| no counterpart \|", PAGE, re.MULTILINE))
    common = arguments(new, "FedAvg", "__init__")
    for name in strategies:
        own = arguments(new, name, "__init__") - (common if name != "FedAvg" else {"self"})
        named = {a for other, _, text in NAMED if other == name for a in text.split(", ")}
        assert name in {other for other, _, _ in NAMED}
        assert name in lacking or own <= named, f"{name}: {own - named}"
