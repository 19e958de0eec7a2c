"""A page of the site for every named algorithm, and an index, made from the registry and records.

A new name in ``fedlada.algorithms.CATALOGUE`` gets its page without an edit here.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from markdown_text import markdown_of, table
from tuning_records import Tuning, tunings

from fedlada.algorithms import CATALOGUE, Algorithm, Part
from fedlada.algorithms.registry import Named
from fedlada.algorithms.server_rules import Averaging
from fedlada.algorithms.vectors import is_small

FOLDER, SOURCES = "algorithms", "sources"
VECTORS = {
    "x": "the server's model",
    "delta": "the client's displacement, x − y",
    "g_a": "average direction of the previous round",
    "v": "shared second moment",
    "v_rows": "shared second moment, one number per row",
    "v_i": "the client's second moment",
    "v_hat": "the client's second moment, which never falls within a round",
    "v_hat_rows": "the client's second moment, one number per row",
    "v_i_rows": "the client's second moment, one number per row",
    "weight_each": "bias correction of the second moment, one number per tensor",
    "m": "the client's momentum",
    "m_mean": "mean of the clients' momenta",
    "m_change": "change of this client's momentum",
    "c": "mean gradient of all clients",
    "c_i": "mean gradient of this client",
    "c_change": "change of this client's mean gradient",
    "h": "sum of the displacements",
    "h_i": "the client's sum of its displacements",
    "x_old": "the model that this client received before",
    "t_each": "number of steps, one number per tensor",
    "m_g": "the server's momentum",
    "v_g": "the server's second moment",
    "v_hat_g": "the server's largest second moment so far",
}
"""What each vector is; a vector of a new algorithm is shown by its name until it is listed."""


def algorithm_pages() -> dict[str, str]:
    """Return the Markdown of every page by its address."""
    records = list(tunings())
    pages = {f"{FOLDER}/index.md": _index()}
    for group in CATALOGUE.values():
        for name, named in group.items():
            tried = [one for one in records if one.algorithm == name]
            pages[f"{FOLDER}/{name}.md"] = _page(name, named, tried)
    return pages | {f"{FOLDER}/{SOURCES}.md": _sources()}


def navigation() -> list[dict[str, Any]]:
    """Return the section of the site's navigation: the index, then the pages by group."""
    groups = [
        {group.capitalize(): [{name: f"{FOLDER}/{name}.md"} for name in names]}
        for group, names in CATALOGUE.items()
    ]
    first = {"All algorithms": "index", "Sources": SOURCES}
    return [*({title: f"{FOLDER}/{page}.md"} for title, page in first.items()), *groups]


def lr_table() -> str:
    """Return the best lr of every committed search: a row per algorithm, a column per problem."""
    best: dict[tuple[str, str], dict[str, Tuning]] = {}
    for one in tunings():
        without_m = " without m" if "`betas` [0.0" in one.settings else ""
        row = best.setdefault((one.algorithm, without_m), {})
        if one.problem not in row or one.better_than(row[one.problem]):
            row[one.problem] = one
    problems = list(dict.fromkeys(one.problem for one in tunings()))
    rows = [
        (
            f"[`{name}`](algorithms/{name}.md){without_m}",
            *(row[problem].marked if problem in row else "" for problem in problems),
        )
        for (name, without_m), row in sorted(best.items(), key=lambda item: _place(item[0][0]))
    ]
    columns = [f"({number})" for number, _ in enumerate(problems, 1)]
    legend = "".join(f"{number}. {problem}\n" for number, problem in enumerate(problems, 1))
    return f"{legend}\n{table(('algorithm', *columns), rows)}"


def _place(name: str) -> int:
    return [known for group in CATALOGUE.values() for known in group].index(name)


def example(name: str, lr: float) -> str:
    """Return three lines that train with an algorithm; they need a model and clients."""
    settings = f'algorithm="{name}", lr={lr:g}, rounds=20'
    return (
        "import fedlada\n"
        f"run = fedlada.simulate(model, clients, {settings})\n"
        "print(run.run()[-1])\n"
    )


def _index() -> str:
    parts = [
        "# Algorithms\n\n"
        "Every name works in `simulate`, in an experiment's file and on Flower. A page has the"
        " equations, the settings with their defaults, what is sent, and the learning rates that"
        " worked. [Which one should I use?](../choosing.md) compares them, and"
        f" [Sources]({SOURCES}.md) says where each comes from.\n\n"
        "Traffic counts vectors of the model's size per sampled client and round: sent down, sent"
        " up, and kept by the client between rounds.\n"
    ]
    for group, names in CATALOGUE.items():
        rows = [
            (f"[`{name}`]({name}.md)", named.purpose, _counts(named.algorithm))
            for name, named in names.items()
        ]
        parts.append(f"## {group.capitalize()}\n")
        parts.append(table(("name", "purpose", "down / up / kept"), rows))
    return "\n".join(parts)


def _sources() -> str:
    """Return the page that says of every name where it comes from and where it differs."""
    rows = [
        (f"[`{name}`]({name}.md)", named.source, named.deviates)
        for group in CATALOGUE.values()
        for name, named in group.items()
    ]
    return (
        "# Sources\n\n"
        "Where each algorithm comes from, and where it differs from there. The page of an algorithm"
        " has the reference and the reasons. A test compares every algorithm with a second program"
        " (`tests/oracles.py`), written from the source without code of this library: after five"
        " rounds all parameters agree to 1e-10.\n\n"
        'In all of them clients count equally unless you ask for `weighting="examples"`, and the'
        " default settings are ours where a page does not say otherwise.\n\n"
        + table(("name", "source", "what differs"), rows)
    )


def _page(name: str, named: Named, tried: list[Tuning]) -> str:
    algorithm, lr = named.algorithm, named.algorithm.local.lr
    parts = [
        f"# `{name}`\n\n{named.purpose}\n\n"
        f"Source: {named.source}."
        + (f" What differs: {named.deviates}." if named.deviates else "")
        + "\n\n"
        f"Composition: `{_composition(algorithm)}`. "
        f"As a mapping: `{json.dumps(_structure(algorithm))}`.\n\n"
        "## Example\n\n"
        "`model` is any `torch.nn.Module`, `clients` a list of data sets"
        " ([your own data](../guide/own_data.md)).\n\n"
        f"```python\n{example(name, lr)}```\n",
        "## Settings\n\n"
        "`lr` is an argument of `simulate`. Set the others with `fedlada.algorithm`, such as"
        f' `algorithm=fedlada.algorithm("{name}", weight_decay=0.001)`.\n',
        table(("setting", "default", "meaning"), _settings(algorithm)),
        "## What is sent and kept\n",
        _travels(algorithm),
    ]
    if tried:
        parts += [_tuned(tried)]
    parts += ["## Equations and references\n", *_equations(algorithm)]
    return "\n".join(parts)


def _composition(algorithm: Algorithm) -> str:
    names = [type(part).__name__ for part in algorithm.part.chain()]
    return f"{'('.join(names)}{')' * (len(names) - 1)} + {type(algorithm.server).__name__}"


def _structure(algorithm: Algorithm) -> dict[str, Any]:
    spec = algorithm.spec()
    return {key: spec[key] for key in ("local", "corrections", "server")}


def _counts(algorithm: Algorithm) -> str:
    traffic = algorithm.traffic
    return f"{traffic.down} / {traffic.up} / {traffic.client_state}"


def _owners(algorithm: Algorithm) -> list[Part | Averaging]:
    return [*algorithm.part.chain(), algorithm.server]


def _settings(algorithm: Algorithm) -> Iterator[tuple[str, str, str]]:
    for owner in _owners(algorithm):
        for field in fields(owner):
            if field.name in algorithm.settings():
                value = getattr(owner, field.name)
                meaning = _meaning(type(owner), field.name)
                yield f"`{field.name}`", f"`{value}`", meaning


def _meaning(owner: type, name: str) -> str:
    """Return the docstring below a field, in the class itself or the nearest base that has one."""
    for kind in owner.__mro__[:-1]:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and ast.unparse(field.target) == name
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                return " ".join(str(text.value.value).split())
    return ""


def _travels(algorithm: Algorithm) -> str:
    places = {
        "server to client": algorithm.down,
        "client to server": algorithm.up,
        "kept by the client": algorithm.client_state,
        "kept by the server alone": algorithm.server_state,
    }
    rows = [
        (place, f"`{name}`", VECTORS.get(name, ""), "small" if is_small(name) else "1")
        for place, names in places.items()
        for name in names
    ]
    traffic, plain = algorithm.traffic, CATALOGUE["averaging"]["fedavg"].algorithm.traffic
    both, base = traffic.down + traffic.up, plain.down + plain.up
    return (
        table(("", "vector", "what it is", "size"), rows)
        + "\nSize 1 is the size of the model's parameters; small vectors have one number per row or"
        f" per tensor. Per sampled client and round {both} vectors travel"
        + (f", {both / base:g} times FedAvg's {base}.\n" if both != base else ", as in FedAvg.\n")
        + "\n[Codecs](../bytes.md) reduce the bytes of each vector.\n"
    )


def _equations(algorithm: Algorithm) -> Iterator[str]:
    shown = {Part.__module__}  # the protocol, which has no equations
    for owner in _owners(algorithm):
        if type(owner) is Averaging:
            yield "### Averaging\n\nThe server subtracts `server_lr` times the mean delta.\n"
            continue
        # A part says what it adds to the one it extends; a server rule says everything.
        kinds = type(owner).__mro__[:-1] if isinstance(owner, Part) else type(owner).__mro__[:1]
        for kind in kinds:
            module = inspect.getmodule(kind)
            if module is None or module.__name__ in shown or not module.__doc__:
                continue
            shown.add(module.__name__)
            extended = "" if kind is type(owner) else f", which {type(owner).__name__} extends"
            text = markdown_of(inspect.cleandoc(module.__doc__))
            yield f"### {kind.__name__}{extended}\n\n{text}\n"


def _tuned(tried: list[Tuning]) -> str:
    rows = [(one.problem, one.settings, one.lrs, one.score, one.edge) for one in tried]
    sources = sorted({one.source.rpartition("/")[0] for one in tried})
    return (
        "## Learning rates that worked\n\n"
        "The best of the learning rates that we tried is bold, judged on validation data with one"
        " seed. If it is the smallest or the largest tried, a better one may lie beyond it."
        " [Tuning](../tuning.md) says how to search on your own problem.\n\n"
        + table(("problem", "settings", "lr tried", "validation score", "edge"), rows)
        + "\nRecords: "
        + ", ".join(f"`{source}`" for source in sources)
        + ".\n"
    )
