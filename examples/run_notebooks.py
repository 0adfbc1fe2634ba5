"""Execute the notebooks in a temporary folder and store their outputs: python examples/run_notebooks.py [NAME...]"""

import hashlib
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
LONGEST = 600  # seconds that a cell may take on a busy machine


def notebooks() -> list[Path]:
    return sorted(HERE.glob("*.ipynb"))


def fingerprint(notebook: nbformat.NotebookNode) -> str:
    """Return a hash of the code, which tells whether the stored outputs are of this code."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with new outputs; an error in a cell is raised."""
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "unflip": {"code": fingerprint(notebook)},
    }
    return notebook


def main(names: list[str]) -> None:
    for path in [HERE / f"{name}.ipynb" for name in names] or notebooks():
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
