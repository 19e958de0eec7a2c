"""The package as a whole: what it exports, its version, its command, its folders and its size."""

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedlada
from fedlada.algorithms import CATALOGUE
from fedlada.algorithms.listing import listing
from places import ROOT

PACKAGE = ROOT / "src" / "fedlada"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FUNCTION_LINES, FEDERATE_LINES, SCAFFOLD_LINES = 50, 36, 27


def test_everything_exported_exists_once():
    assert all(hasattr(fedlada, name) for name in fedlada.__all__)
    assert len(set(fedlada.__all__)) == len(fedlada.__all__)


def test_public_names_are_imported_when_they_are_used():
    code = (
        "import sys, fedlada\n"
        "assert fedlada.__version__ and 'torch' not in sys.modules\n"
        "assert {'simulate', '__version__'} <= set(dir(fedlada))\n"
        "assert fedlada.server.aggregate.robust.TrimmedMean is fedlada.server.TrimmedMean\n"
        "from fedlada import *\n"
        "assert simulate is fedlada.simulate\n"
        "assert fedlada.data.split and fedlada.flower.client_app\n"
        "assert not hasattr(fedlada, 'simulated')\n"
        "from fedlada.flower import client_app, training\n"
        "import fedlada.flower.apps\n"
        "from fedlada import flower\n"
        "assert flower.client_app is client_app and callable(client_app)\n"
        "assert set(flower.__all__) <= set(dir(flower))\n"
        "assert all(hasattr(flower, name) for name in flower.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def kind_and_name(name: str) -> tuple[bool, bool, str]:
    """The order in which ruff wants exported names: constants, classes, then the rest."""
    return not name.isupper(), not name[0].isupper(), name


def test_exported_names_are_sorted():
    assert list(fedlada.__all__) == sorted(fedlada.__all__, key=kind_and_name)


def test_importing_the_library_imports_torch_alone():
    code = (
        "import sys, fedlada.public, fedlada.models\n"
        "extras = {'flwr', 'flwr_datasets', 'datasets', 'sklearn', 'matplotlib', 'PIL',\n"
        "    'prometheus_client', 'safetensors', 'typer', 'rich', 'pydantic', 'polars',\n"
        "    'accelerate', 'lightning', 'peft', 'transformers'}\n"
        "assert not extras & set(sys.modules), extras & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_table_of_algorithms_shows_each_with_its_traffic():
    printed = listing(1000).splitlines()
    for name, algorithm in fedlada.ALGORITHMS.items():
        (line,) = (row for row in printed if row.split()[:1] == [name])
        size = algorithm.traffic.bytes(4000)
        assert line.split()[-2:] == [f"{size.down:,}", f"{size.up:,}"]


def test_the_table_of_algorithms_says_in_groups_what_each_is_for():
    printed = listing(1000).splitlines()
    names = []
    for group, known in CATALOGUE.items():
        begin = printed.index(f"{group}:")
        for i, (name, named) in enumerate(known.items()):
            row, sentence = printed[begin + 1 + 2 * i : begin + 3 + 2 * i]
            assert row.split()[0] == name
            assert sentence.strip() == named.purpose
            assert named.purpose.endswith(".")
            names.append(name)
    assert names == [*fedlada.ALGORITHMS]


def test_the_map_in_contributing_names_every_folder_and_top_level_module_and_nothing_else():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"^```text\nsrc/fedlada/\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    entries = [re.fullmatch(r"  (\S+) +(\S.*)", line) for line in block[1].splitlines()]
    assert all(entries), "a line of the map is not a path and what it holds"
    folders = {f"{path.parent.relative_to(PACKAGE)}/" for path in SOURCES} - {"./"}
    modules = {path.name for path in PACKAGE.glob("*.py")}
    assert sorted(entry[1] for entry in entries) == sorted(folders | modules)


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file and the lines of its body, without the docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_function_is_long(path):
    assert {name: n for name, n in functions(path) if n > FUNCTION_LINES} == {}


def test_the_server_loop_is_short():
    (lines,) = (n for path in SOURCES for name, n in functions(path) if name == "federate")
    assert lines < FEDERATE_LINES


def code_lines(path: Path, name: str) -> int:
    """Lines of a class that hold code: no docstrings, comments or blank lines."""
    tree = ast.parse(path.read_text())
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
    first = min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
    quoted = {
        line
        for node in ast.walk(found)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in layout]
    used = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(used & set(range(first, found.end_lineno + 1)) - quoted)


def test_both_halves_of_scaffold_are_short():
    assert (
        0
        < code_lines(PACKAGE / "algorithms" / "corrections" / "scaffold.py", "Scaffold")
        < SCAFFOLD_LINES
    )


def test_code_lines_are_neither_docstrings_nor_comments_nor_blank(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        '@decorated\nclass A:\n    """A\n    docstring."""\n\n    # a comment\n    x = (  # code\n'
        '        1\n    )\n    """About x."""\n\n    def f(self):\n        return """a\n'
        '        b"""\n\n\nclass B:\n    pass\n'
    )
    assert code_lines(file, "A") == 8
