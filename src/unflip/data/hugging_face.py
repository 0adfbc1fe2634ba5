"""Data sets of Hugging Face's library `datasets`, written as files that the loaders read.

The library is never imported here: a caller who has its objects has imported it.
"""

import csv
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.arrays import Array, write_npz
from unflip.data.decoding import to_upright_rgb
from unflip.errors import InputError, unknown
from unflip.files import write_atomically

_LABELS = ("label", "labels")
_VECTORS = ("List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D", "Array5D")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val"}


def write_dataset(data: Any, folder: Path, *, label_column: str | None = None, ignore: Collection[str] = ()) -> Path:
    """Write a ``Dataset`` (all for training) or a ``DatasetDict`` into ``folder``.

    A column of images becomes ``manifest.csv`` and PNG files, a column of vectors ``data.npz``; otherwise all columns
    become ``data.parquet``.

    Args:
        data: the data set, not streamed.
        folder: where to write it.
        label_column: by default ``label`` or ``labels``, else the only column of type ``ClassLabel``.
        ignore: columns to drop.

    Returns:
        The file to train with.
    """
    kind = type(data)
    if kind.__module__.split(".")[0] != "datasets" or "Iterable" in kind.__name__:
        raise InputError(
            f"data: cannot read a {kind.__name__}; must be a path, a name, or a data set without streaming"
        )
    parts = {_split(str(name)): part for name, part in (data if isinstance(data, Mapping) else {"train": data}).items()}
    if "train" not in parts:
        raise InputError(f"data: no split 'train' among {', '.join(map(str, data))}")
    types = parts["train"].features
    label = _find_label(types, label_column)
    features = {name: type(kind).__name__ for name, kind in types.items() if name != label and name not in ignore}
    if not features:
        raise InputError(f"data: no column of features besides '{label}'")
    images = [name for name, kind in features.items() if kind == "Image"]
    vectors = [name for name, kind in features.items() if kind in _VECTORS]
    chosen = images or vectors
    if len(chosen) > 1:
        raise InputError(f"data: several columns of images or vectors ({', '.join(chosen)}); ignore={chosen[1:]!r}?")
    if images:
        return _write_images(parts, images[0], label, folder)
    if vectors:
        return _write_vectors(parts, vectors[0], label, folder)
    return _write_table(parts, list(features), label, folder)


def _split(name: str) -> str:
    if name.startswith("test"):
        return name
    if name not in _SPLITS:
        raise InputError(f"data: split '{name}' is not train, validation or test; remove it from the DatasetDict")
    return _SPLITS[name]


def _find_label(types: Mapping[str, Any], name: str | None) -> str:
    if name is not None and name not in types:
        raise InputError(f"data: label_column: {unknown('column', name, types)}")
    typed = [column for column, kind in types.items() if type(kind).__name__ == "ClassLabel"]
    label = name or next((column for column in _LABELS if column in types), typed[0] if len(typed) == 1 else None)
    if label is None:
        raise InputError(f"data: no column 'label' among {', '.join(types)}; choose one with label_column")
    return label


def _labels(part: Any, column: str) -> Array:
    """Return class names where they are known, else the labels themselves."""
    cells = list(part[column][:])
    names = getattr(part.features[column], "names", None)
    wrong = next((i for i, cell in enumerate(cells) if cell is None or (names and not 0 <= cell < len(names))), None)
    if wrong is not None:
        raise InputError(f"data, row {wrong}: label {cells[wrong]} is not a class; drop that row")
    labels: Array = np.asarray(cells)
    return labels if names is None else np.array(names, np.str_)[labels]


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


def _write_table(parts: Mapping[str, Any], columns: list[str], label: str, folder: Path) -> Path:
    """Write the columns of features, with the labels as ``label`` and the split of each row as ``split``."""
    import pyarrow as pa
    import pyarrow.parquet

    if (taken := next((name for name in columns if name.lower() in ("label", "split")), None)) is not None:
        raise InputError(f"data: column name '{taken}' is reserved; rename it")
    tables = []
    for split, part in parts.items():
        labels = pa.array(_labels(part, label))
        cells = part.with_format("arrow")[:].select(columns)
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
    folder.mkdir(parents=True, exist_ok=True)
    write_npz(folder / "data.npz", arrays)
    return folder / "data.npz"
