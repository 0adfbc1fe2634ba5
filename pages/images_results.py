"""What the scripts of docs/results/images.md share: lines of finished cells with their curves, and its tables."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from unflip.reproduce.grid import read_grid

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "images.md"
CURVES = {"test": "test_accuracy", "noisy_val": "val_accuracy", "labels": "label_accuracy"}
KEPT = ("axes", "cell", "test_accuracy", "label_accuracy", "quality_auroc", "seconds")
Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def results_of(name: str) -> Path:
    return ROOT / "docs" / "results" / f"images-{name}.jsonl"


def take_over(sweep: Path, grid: str, results: Path) -> None:
    """Add the finished cells of a sweep to a result file; points of the grid that are in the file only stay."""
    known = read(results) if results.exists() else []
    lines = merged(grid, known, collect(sweep, grid))
    results.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def collect(sweep: Path, grid: str) -> Iterator[Line]:
    """Yield a line for each finished cell of the grid, with its curves."""
    for line in read(sweep / "results.jsonl"):
        if line["grid"] == grid:
            metrics = read(sweep / "cells" / line["cell"] / "metrics.jsonl")
            curves = {name: [round(epoch[key], 4) for epoch in metrics] for name, key in CURVES.items()}
            yield {key: line[key] for key in KEPT} | {"curves": curves}


def merged(grid: str, known: Iterable[Line], new: Iterable[Line]) -> list[Line]:
    """Return one line for each point of the grid, in its order; new lines replace known ones."""
    lines = [*new, *known]
    of_points = ([line for line in lines if line["axes"] == point.axes] for point in read_grid(grid))
    return [found[0] for found in of_points if found]


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
