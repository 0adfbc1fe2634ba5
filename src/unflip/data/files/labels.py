"""Labels: read from files (.npy, .csv, .txt), and turned into class numbers."""

import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unflip.data.files.arrays import Array, read_array
from unflip.errors import InputError, unknown

_MOST_CLASSES = 1_000_000


def read_labels(path: Path) -> Array:
    """Read labels as they are in a file: numbers or names, one per example."""
    readers = {".npy": read_array, ".csv": _read_csv, ".txt": _read_text}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"labels {path}: cannot read '{path.suffix}'; give .npy, .csv or .txt")
    try:
        return reader(path)
    except UnicodeDecodeError as error:
        raise InputError(f"labels {path}: not a text file in UTF-8 ({error.reason})") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"labels {path}: {getattr(error, 'strerror', None) or error}") from error


def _read_text(path: Path) -> Array:
    lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    return numbers_or_names([line for line in lines if line])


def _read_csv(path: Path) -> Array:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        return np.empty(0, np.int64)
    header = [cell.strip().lower() for cell in rows[0]]
    if "label" in header:
        column, rows = header.index("label"), rows[1:]
    elif len(header) == 1:
        column = 0
    else:
        raise InputError(f"labels {path}: no column 'label' among {', '.join(header)}; rename one to 'label'")
    short = next((i for i, row in enumerate(rows) if len(row) <= column), None)
    if short is not None:
        raise InputError(f"labels {path}, row {short}: has {len(rows[short])} columns, 'label' is number {column + 1}")
    return numbers_or_names([row[column].strip() for row in rows])


def numbers_or_names(cells: list[str]) -> Array:
    """Return numbers if every cell is one, else names."""
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells, dtype=np.str_)


def find_classes(labels: Array, declared: int | tuple[str, ...] | None, what: str) -> tuple[int, list[str] | None]:
    """Return the number of classes, and their names if they have any: as declared, else from the labels."""
    if isinstance(declared, int):
        return declared, None
    if declared is not None:
        return len(declared), list(declared)
    if labels.dtype.kind == "U":
        names = sorted(set(labels.tolist()))
        return len(names), names
    numbers = to_class_numbers(labels, _MOST_CLASSES, None, what)
    return (int(numbers.max()) + 1 if len(numbers) else 0), None


def to_class_numbers(labels: Array, num_classes: int, names: list[str] | None, what: str) -> Tensor:
    """Turn labels into class numbers 0..k-1; an error names the first row with a wrong label."""
    if labels.ndim != 1:
        raise InputError(f"{what}: shape {labels.shape}; labels must be (n,)")
    if labels.dtype.kind == "U":
        return _names_to_numbers(labels, num_classes, names, what)
    if labels.dtype.kind not in "iufb":
        raise InputError(f"{what}: cannot read labels of type {labels.dtype}; give integers or class names")
    values = labels.astype(np.float64) if labels.dtype.kind == "f" else labels.astype(np.int64)
    wrong = ~((values >= 0) & (values < num_classes) & (values == np.floor(values)))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"{what}, row {row}: label {labels[row]} is not an integer from 0 to {num_classes - 1}")
    return torch.from_numpy(values.astype(np.int64))


def _names_to_numbers(labels: Array, num_classes: int, names: list[str] | None, what: str) -> Tensor:
    known = {name: number for number, name in enumerate(names or map(str, range(num_classes)))}
    found, inverse = np.unique(labels, return_inverse=True)
    missing = next((name for name in found.tolist() if name not in known), None)
    if missing is not None:
        row = int((labels == missing).argmax())
        raise InputError(f"{what}, row {row}: {unknown('class', missing, list(known)[:50])}")
    return torch.from_numpy(np.array([known[name] for name in found.tolist()], np.int64)[inverse])
