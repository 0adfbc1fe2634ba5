"""Data sets of Hugging Face's library `datasets`: written as files that the loaders read.

The library is never imported here: a caller who has its objects has imported it.
"""

import csv
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.arrays import Array
from unflip.data.decoding import to_upright_rgb
from unflip.errors import InputError, unknown
from unflip.files import write_atomically

_LABELS = ("label", "labels")
_VECTORS = ("List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D", "Array5D")
_ROLES = ("label", "split")  # columns of the table that is written
_VALIDATION = ("val", "valid", "validation")


def write_dataset(data: Any, folder: Path, *, label_column: str | None = None, ignore: Collection[str] = ()) -> Path:
    """Write a ``Dataset`` (all for training) or a ``DatasetDict`` into ``folder``; return the file to train with.

    A column of images becomes ``manifest.csv`` and PNG files, a column of vectors ``data.npz``; otherwise all columns
    become ``data.parquet``. The labels are the column ``label_column``, else ``label`` or ``labels``, else the
    only one whose type is ``ClassLabel``. Columns to ``ignore`` are left out.
    """
    kind = type(data)
    if kind.__module__.split(".")[0] != "datasets" or "Iterable" in kind.__name__:
        raise InputError(f"data: cannot read a {kind.__name__}; give a path, a name, or a data set without streaming")
    parts = {_split(name): part for name, part in (data if isinstance(data, Mapping) else {"train": data}).items()}
    if "train" not in parts:
        raise InputError(f"data: no split 'train'; it has {', '.join(map(str, data))}")
    types = parts["train"].features
    label = _find_label(types, label_column)
    others = {name: kind for name, kind in types.items() if name != label and name not in ignore}
    images = [name for name, kind in others.items() if type(kind).__name__ == "Image"]
    vectors = [name for name, kind in others.items() if type(kind).__name__ in _VECTORS]
    for name, found in (("images", images), ("vectors", [] if images else vectors)):
        if len(found) > 1:
            raise InputError(f"data: several columns of {name} ({', '.join(found)}); leave out: ignore={found[1:]!r}")
    if images:
        return _write_images(parts, images[0], label, folder)
    if vectors:
        return _write_vectors(parts, vectors[0], label, folder)
    return _write_table(parts, others, label, folder)


def _split(name: Any) -> str:
    if name == "train" or str(name).startswith("test"):
        return str(name)
    if name in _VALIDATION:
        return "val"
    raise InputError(f"data: split '{name}' is not train, validation or test; remove it from the DatasetDict")


def _find_label(types: Mapping[str, Any], wanted: str | None) -> str:
    if wanted is not None and wanted not in types:
        raise InputError(f"data: label_column: {unknown('column', wanted, types)}")
    typed = [name for name, kind in types.items() if type(kind).__name__ == "ClassLabel"]
    found = wanted or next((name for name in _LABELS if name in types), typed[0] if len(typed) == 1 else None)
    if found is None:
        raise InputError(f"data: no column 'label'; it has {', '.join(types)}: say which with label_column")
    return found


def _labels(part: Any, column: str) -> Array:
    """Return the names of labels where they have names, else the labels as they are."""
    cells = list(part[column][:])
    if None in cells:
        raise InputError(f"data, row {cells.index(None)}: the column '{column}' is empty; drop that row")
    labels: Array = np.asarray(cells)
    names = getattr(part.features[column], "names", None)
    if names is None:
        return labels
    if ((labels < 0) | (labels >= len(names))).any():
        raise InputError(f"data: the column '{column}' holds numbers that are not a class; drop these rows")
    named: Array = np.array(names, np.str_)[labels]
    return named


def _write_images(parts: Mapping[str, Any], image: str, label: str, folder: Path) -> Path:
    labels = {split: _labels(part, label).tolist() for split, part in parts.items()}
    rows: list[tuple[str, str, str]] = []
    for split, part in parts.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(labels[split]):
            path = f"{split}/{number:07d}.png"
            to_upright_rgb(part[number][image]).save(folder / path)
            rows.append((path, str(name), split))

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("path", "label", "split"), *rows])

    write_atomically(folder / "manifest.csv", write)
    return folder / "manifest.csv"


def _write_table(parts: Mapping[str, Any], columns: Collection[str], label: str, folder: Path) -> Path:
    """Write columns as they are, with the labels as ``label`` and the part of each row as ``split``."""
    import pyarrow as pa
    import pyarrow.parquet

    if not columns:
        raise InputError(f"data: no column of features besides '{label}'")
    if (taken := next((name for name in columns if name.lower() in _ROLES), None)) is not None:
        raise InputError(f"data: the column '{taken}' is called like one of unflip's own; rename it")
    tables = []
    for split, part in parts.items():
        cells = part.with_format("arrow")[:].select(list(columns))
        labels = pa.array(_labels(part, label))
        tables.append(cells.append_column("label", labels).append_column("split", pa.array([split] * len(labels))))
    folder.mkdir(parents=True, exist_ok=True)
    whole = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(None)
    write_atomically(folder / "data.parquet", lambda path: pyarrow.parquet.write_table(whole, path))
    return folder / "data.parquet"


def _write_vectors(parts: Mapping[str, Any], column: str, label: str, folder: Path) -> Path:
    arrays: dict[str, Array] = {}
    for split, part in parts.items():
        arrays[f"{split}_labels"] = _labels(part, label)
        try:
            arrays[split] = np.asarray(part.with_format("numpy")[column][:]).astype(np.float32)
        except ValueError as error:
            raise InputError(f"data, split '{split}': vectors of different lengths in '{column}'") from error
    names = getattr(parts["train"].features[label], "names", None)
    if names is not None:
        arrays["class_names"] = np.array(names, np.str_)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "data.npz", write)
    return folder / "data.npz"
