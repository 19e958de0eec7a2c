"""The package as a whole: what it exports, its version, its command."""

import re
import subprocess
import sys
from pathlib import Path

import fedlada
from fedlada.cli import main

ROOT = Path(__file__).parent.parent


def test_everything_exported_exists_and_is_sorted():
    assert all(hasattr(fedlada, name) for name in fedlada.__all__)
    assert len(set(fedlada.__all__)) == len(fedlada.__all__)


def test_the_version_is_the_changelogs_newest():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == fedlada.__version__


def test_importing_the_library_imports_torch_alone():
    code = (
        "import sys, fedlada, fedlada.models\n"
        "extras = {'flwr', 'flwr_datasets', 'datasets', 'sklearn', 'matplotlib', 'PIL',\n"
        "    'safetensors', 'typer', 'rich', 'pydantic', 'polars'}\n"
        "assert not extras & set(sys.modules), extras & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_table_of_algorithms_shows_each_with_its_traffic(capsys):
    main(["algorithms", "--parameters", "1000"])
    printed = capsys.readouterr().out
    for name, algorithm in fedlada.ALGORITHMS.items():
        (line,) = (row for row in printed.splitlines() if row.split()[0] == name)
        size = algorithm.traffic.bytes(4000)
        assert line.split()[-2:] == [f"{size.down:,}", f"{size.up:,}"]
