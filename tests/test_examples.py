"""The notebooks in examples/ run, and what is stored in them is of their code, small and about no machine."""

import re
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from run_notebooks import execute, fingerprint, notebooks

ROOT = Path(__file__).parents[1]
QUICK = "table"
"""The one that every test run executes; the others take longer."""
NEEDS = {"lightning": "lightning", "trainer": "accelerate"}
"""Packages of extras, without which a notebook cannot run."""
LARGEST = 300_000  # bytes


def texts(output: nbformat.NotebookNode) -> list[str]:
    """Return what an output says in words; pictures are none."""
    if output.output_type == "stream":
        return [output.text]
    return [str(text) for kind, text in output.get("data", {}).items() if kind.startswith("text/")]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_stored_outputs_are_of_the_code_that_is_there(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata["unflip"]["code"] == fingerprint(notebook), "run examples/run_notebooks.py"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert [output for output in outputs if "image/png" in output.get("data", {})], "no picture"
    assert path.stat().st_size < LARGEST
    for text in [*(text for output in outputs for text in texts(output)), *(cell.source for cell in notebook.cells)]:
        assert not re.search(r"(?<![\w.:/])/(?:home|root|tmp|work|usr|Users)\b|[A-Z]:\\\\", text), text


def test_links_of_notebooks_lead_somewhere() -> None:
    for path in notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            for link in re.findall(r"\]\(([^)#]+)", cell.source) if cell.cell_type == "markdown" else []:
                if link.startswith("https://colab.research.google.com/github/"):
                    assert link.endswith(f"/unflip/unflip/blob/main/examples/{path.name}")
                elif not link.startswith("https://"):
                    assert (path.parent / link).exists(), (path.name, link)


def test_every_notebook_is_on_the_page() -> None:
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert {path.name for path in notebooks()} == set(re.findall(r"examples/([\w-]+\.ipynb)\)", page))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem == QUICK else pytest.mark.soak, id=path.stem) for path in notebooks()],
)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    if path.stem in NEEDS and find_spec(NEEDS[path.stem]) is None:
        pytest.skip(f"{NEEDS[path.stem]} is not installed")
    done = execute(path, tmp_path)
    assert [
        output for cell in done.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
