"""What the site does beyond mkdocs: generated pages, pages from outside docs/, links, docstrings.

A page is written once.  Those of :data:`ADOPTED` stay where they are in the repository and are
pages of the site as well.  A link to a file that is no page becomes its path in the repository, or
a link there once ``repo_url`` is set in mkdocs.yml.
"""

from __future__ import annotations

import ast
import os
import re
from functools import partial
from pathlib import Path
from posixpath import dirname, relpath

import griffe
from algorithm_pages import algorithm_pages, lr_table, navigation
from command_pages import commands
from markdown_text import markdown_of
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebook_pages import notebook_pages

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ADOPTED = {
    "experiments/desk/README.md": "desk.md",
    "experiments/paper/README.md": "paper.md",
    "experiments/paper/claims.md": "paper_claims.md",
    "experiments/tournament/README.md": "tournament_results.md",
    "experiments/successor/README.md": "successor.md",
    "experiments/amending/README.md": "amending.md",
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the site by where they are in the repository."""
SHOWN = {
    "README.md": "index.md",
    "examples/notebooks/digits.ipynb": "notebooks/digits.md",
    "examples/notebooks/own_table.ipynb": "notebooks/own_table.md",
    "src/fedlada/algorithms/registry.py": "algorithms/index.md",
}
"""Pages of the site that show what another file of the repository has."""
GENERATED = {"lr": lr_table, "commands": commands}
"""What replaces ``<!-- generated: NAME -->`` on a page."""

IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[((?:!\[[^\]]*\]\([^)]*\)|[^\[\]])+)\]\(([^)\s]+)\)")
FENCES = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Say the version, and list the algorithms where the navigation says ``algorithms/``."""
    source = (ROOT / "src/fedlada/__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)
    assert version is not None
    config.copyright = f"fedlada {version[1]}, {config.copyright}"
    for section in config.nav:
        for title, target in section.items():
            if target == "algorithms/":
                section[title] = navigation()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages, the adopted pages and the images that they show."""
    for uri, content in (algorithm_pages() | notebook_pages()).items():
        files.append(File.generated(config, uri, content=content))
    for source, uri in ADOPTED.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
        for _, target in IMAGE.findall((ROOT / source).read_text()):
            image = _in_repository(ROOT / source, target)
            files.append(File.generated(config, image, abs_src_path=str(ROOT / image)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead every link to a page, to an image or to the repository."""
    if page.file.abs_src_path is None:  # generated
        return markdown
    for name, make in GENERATED.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    source = Path(page.file.abs_src_path)
    if source.parent == DOCS / "reference":
        markdown += _rest(source.stem, markdown)
    parts = FENCES.split(markdown)
    for i in range(0, len(parts), 2):  # between the fences
        text = LINK.sub(partial(_link, source=source, page=page, config=config), parts[i])
        parts[i] = IMAGE.sub(partial(_image, source=source, page=page), text)
    return "".join(parts)


def _rest(page: str, markdown: str) -> str:
    """Return what shows the public names of a module that its reference page does not place."""
    module = "fedlada" if page == "fedlada" else f"fedlada.{page}"
    # The package itself imports its names from public.py when they are asked for.
    file = "public.py" if page == "fedlada" else "__init__.py"
    tree = ast.parse((ROOT / "src" / module.replace(".", "/") / file).read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    placed = re.findall(r"^::: (\S+)$", markdown, re.MULTILINE)
    rest = [f"{module}.{name}" for name in names if f"{module}.{name}" not in placed]
    return "\n## More\n\n" + "".join(f"::: {name}\n" for name in rest) if rest else ""


def _in_repository(source: Path, target: str) -> str:
    return os.path.relpath((source.parent / target).resolve(), ROOT)


def _link(match: re.Match[str], *, source: Path, page: Page, config: MkDocsConfig) -> str:
    text, (target, hash_, anchor) = match[1], match[2].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return match[0]
    path = _in_repository(source, target)
    if not (ROOT / path).exists():
        return match[0]  # mkdocs reports it
    uri = (ADOPTED | SHOWN).get(path)
    if uri is None and (ROOT / path).is_relative_to(DOCS) and path.endswith(".md"):
        uri = path.removeprefix("docs/")
    if uri is not None:
        return f"[{text}]({relpath(uri, dirname(page.file.src_uri) or '.')}{hash_}{anchor})"
    if config.repo_url:
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{hash_}{anchor})"
    if text.startswith("!"):
        return text
    return f"`{path}`" if path.endswith(text.strip("`/")) else f"{text} (`{path}`)"


def _image(match: re.Match[str], *, source: Path, page: Page) -> str:
    path = _in_repository(source, match[2])
    uri = path.removeprefix("docs/")
    return f"![{match[1]}]({relpath(uri, dirname(page.file.src_uri) or '.')})"


class Docstrings(griffe.Extension):
    """Docstrings are written for readers of the source; this makes Markdown of them.

    It also says that fields with ``kw_only=False`` are positional, which griffe overlooks, and
    lists the settings of a plan where a function takes them as ``**settings``.
    """

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Rewrite a whole package once it is loaded."""
        _rewrite(pkg, pkg["server.plan"])


def _rewrite(found: griffe.Object | griffe.Alias, plan: griffe.Module) -> None:
    if found.is_alias:
        return
    if isinstance(found, griffe.Function):
        _spell_out(found, plan)
    if found.docstring is not None:
        found.docstring.value = markdown_of(found.docstring.value)
    if isinstance(found, griffe.Function) and found.name == "__init__":
        found.parameters = _positional_first(found)
    for member in found.members.values():
        _rewrite(member, plan)


def _spell_out(function: griffe.Function, plan: griffe.Module) -> None:
    """List the settings for which ``Unpack`` stands, with what the plan says about each."""
    for packed in list(function.parameters):
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(packed.annotation))
        if unpacked is None:
            continue
        words, lines = plan[unpacked[1]], ["", "", "Args:"]
        parameters = [p for p in function.parameters if p is not packed]
        for name, word in {**plan["OtherSettings"].attributes, **words.attributes}.items():
            field = plan["Plan"].members[name]
            parameters.append(
                griffe.Parameter(
                    name,
                    annotation=word.annotation,
                    kind=griffe.ParameterKind.keyword_only,
                    default=_default(str(field.value)),
                )
            )
            lines.append(f"    {name}: {' '.join(field.docstring.value.split())}")
        function.parameters = griffe.Parameters(*parameters)
        if function.docstring is not None:
            function.docstring.value += "\n".join(lines)


def _default(value: str) -> str:
    """Return the default of a dataclass's field from what stands behind its equals sign."""
    call = ast.parse(value, mode="eval").body
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "field":
        return value
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return given.get("default") or f"{given['default_factory']}()"


def _positional_first(init: griffe.Function) -> griffe.Parameters:
    owner, kinds = init.parent, griffe.ParameterKind
    assert isinstance(owner, griffe.Class)
    for parameter in init.parameters:
        known = (place.members.get(parameter.name) for place in (owner, *owner.mro()))
        field = next(filter(None, known), None)
        if "kw_only=False" in str(getattr(field, "value", "")):
            parameter.kind = kinds.positional_or_keyword
    return griffe.Parameters(*sorted(init.parameters, key=lambda p: p.kind is kinds.keyword_only))
