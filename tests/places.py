"""Where the tests find the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
