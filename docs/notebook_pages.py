"""The notebooks as pages of the site: executed when the site is built, with their outputs."""

from __future__ import annotations

import base64
import tempfile
from functools import cache
from pathlib import Path

import nbformat
from nbclient import NotebookClient

__all__ = ["notebook_pages"]

NOTEBOOKS = Path(__file__).resolve().parent.parent / "examples/notebooks"


def notebook_pages() -> dict[str, str | bytes]:
    """Return a page for each notebook, and the images in them, by their addresses."""
    files: dict[str, str | bytes] = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files |= _page(path.stem, path.read_text())
    return files


@cache  # `mkdocs serve` builds the site at every change of a page
def _page(name: str, text: str) -> dict[str, str | bytes]:
    notebook = nbformat.reads(text, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        resources = {"metadata": {"path": directory}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    warnings = [output.text for output in outputs if output.get("name") == "stderr"]
    # A run says what it will do, and a library of the data sets asks for another progress bar.
    expected = ("fedlada: ", "IProgress not found")
    if warnings := [text for text in warnings if not any(word in text for word in expected)]:
        raise RuntimeError(f"the notebook {name} prints a warning: {warnings[0]}")
    files: dict[str, str | bytes] = {}
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed = "".join(o.text for o in cell.outputs if o.get("name") == "stdout")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                image = f"{name}-{len(files) + 1}.png"
                files[f"notebooks/{image}"] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({image})")
            elif output.output_type == "execute_result":
                parts.append(f"```text\n{data['text/plain']}\n```")
    source = f"`examples/notebooks/{name}.ipynb`"
    parts.insert(1, f"This page is {source}, executed when the site was built.")
    return files | {f"notebooks/{name}.md": "\n\n".join(parts) + "\n"}
