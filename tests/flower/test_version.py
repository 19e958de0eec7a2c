"""The versions of Flower and torch that fedlada accepts are those it was tested with."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from places import ROOT


def accepted(package: str) -> SpecifierSet:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["flower"]):
        if found := re.fullmatch(rf"{package}(\[\w+\])?(.*)", requirement):
            return SpecifierSet(found[2])
    raise AssertionError(f"pyproject.toml does not say which {package}")


@pytest.mark.parametrize("package", ["flwr", "torch"])
def test_the_version_here_is_accepted_and_both_ends_of_the_range_are_in_the_table(package):
    installed = Version(importlib.metadata.version(package))
    assert installed in accepted(package)
    rows = re.findall(rf"^\| {package} ([\d.]+) \|", (ROOT / "docs/versions.md").read_text(), re.M)
    tested = sorted(map(Version, rows))
    lowest = [Version(s.version) for s in accepted(package) if s.operator == ">="]
    assert lowest == [tested[0]] == [min(installed, tested[0])]
    assert tested[-1] in accepted(package), "a version that passed is refused"
