"""The notebooks run from top to bottom, and draw."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_runs_and_draws(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [output for cell in code for output in cell.outputs]
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    warnings = [output.text for output in outputs if output.get("name") == "stderr"]
    # A library of the data sets would like a progress bar that draws itself.
    assert not [text for text in warnings if "IProgress not found" not in text]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 2
