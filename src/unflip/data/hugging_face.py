"""Data sets of Hugging Face's library `datasets`, written as files that the loaders read.

The library is never imported here: a caller who has its objects has imported it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from unflip.data.arrays import Array, write_npz
from unflip.data.files import to_upright_rgb
from unflip.data.labels import declare_classes
from unflip.errors import InputError, unknown
from unflip.files import write_atomically

_LABELS = ("label", "labels")
_VECTORS = ("List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D", "Array5D")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val"}


def write_dataset(data: Any, folder: Path, *, label_column: str | None = None, ignore: Collection[str] = ()) -> Path:
    """Write a ``Dataset`` (all for training) or a ``DatasetDict`` into ``folder``.

    A column of images becomes ``manifest.parquet`` and PNG files, a column of vectors ``data.npz``; otherwise all
    columns become ``data.parquet``. Each file declares the classes of a ``ClassLabel``, in its order.

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
        allowed = "must be a path, a name, or a data set without streaming"
        raise InputError(f"data: cannot read a {kind.__name__}; {allowed}")
    parts = {_split(str(name)): part for name, part in (data if isinstance(data, Mapping) else {"train": data}).items()}
    if "train" not in parts:
        raise InputError(f"data: no split 'train' among {', '.join(map(str, data))}")
    types = parts["train"].features
    label = find_label(types, label_column)
    features = {name: type(kind).__name__ for name, kind in types.items() if name != label and name not in ignore}
    if not features:
        raise InputError(f"data: no column of features besides '{label}'")
    images = [name for name, kind in features.items() if kind == "Image"]
    vectors = [name for name, kind in features.items() if kind in _VECTORS]
    chosen = images or vectors
    if len(chosen) > 1:
        raise InputError(f"data: several columns of images or vectors ({', '.join(chosen)}); ignore={chosen[1:]!r}?")
    classes = _classes(parts, label)
    labels = {split: _labels(part, label, classes) for split, part in parts.items()}
    if images:
        paths = {split: _save_images(part, images[0], split, folder) for split, part in parts.items()}
        names = {split: own.astype(np.str_) for split, own in labels.items()}
        return _write_table(paths, names, classes, folder / "manifest.parquet")
    if vectors:
        return _write_vectors(parts, vectors[0], labels, classes, folder)
    if (taken := next((name for name in features if name.lower() in ("label", "split")), None)) is not None:
        raise InputError(f"data: column name '{taken}' is reserved; rename it")
    cells = {split: part.with_format("arrow")[:].select([*features]) for split, part in parts.items()}
    return _write_table(cells, labels, classes, folder / "data.parquet")


def _split(name: str) -> str:
    if name.startswith("test"):
        return name
    if name not in _SPLITS:
        raise InputError(f"data: split '{name}' is not train, validation or test; remove it from the DatasetDict")
    return _SPLITS[name]


def find_label(types: Mapping[str, Any], name: str | None) -> str:
    """Return the label column: ``name``, else ``label`` or ``labels``, else the only one of type ``ClassLabel``."""
    if name is not None and name not in types:
        raise InputError(f"data: label_column: {unknown('column', name, types)}")
    typed = [column for column, kind in types.items() if type(kind).__name__ == "ClassLabel"]
    label = name or next((column for column in _LABELS if column in types), typed[0] if len(typed) == 1 else None)
    if label is None:
        raise InputError(f"data: no column 'label' among {', '.join(types)}; choose one with label_column")
    return label


def _labels(part: Any, column: str, classes: Sequence[str]) -> Array:
    """Return class names where a split, or else another one (``classes``), has any; otherwise the labels themselves."""
    cells = list(part[column][:])
    names = getattr(part.features[column], "names", None)
    if names is None and classes and all(isinstance(cell, int) for cell in cells):
        names = classes
    wrong = next((i for i, cell in enumerate(cells) if cell is None or (names and not 0 <= cell < len(names))), None)
    if wrong is not None:
        raise InputError(f"data, row {wrong}: label {cells[wrong]} is not a class; drop that row")
    labels: Array = np.asarray(cells)
    return labels if names is None else np.array(names, np.str_)[labels]


def _classes(parts: Mapping[str, Any], column: str) -> list[str]:
    """Return the classes of a ``ClassLabel`` in order, then those that only other splits have; none without names."""
    declared = (getattr(parts[split].features[column], "names", None) for split in sorted(parts, key="train".__ne__))
    return list(dict.fromkeys(name for names in declared for name in names or ()))


def _save_images(part: Any, column: str, split: str, folder: Path) -> pa.Table:
    (folder / split).mkdir(parents=True, exist_ok=True)
    names = save_pictures(_pictures(part, column, split), folder / split)
    return pa.table({"path": [f"{split}/{name}" for name in names]})


def _pictures(part: Any, column: str, split: str) -> Iterator[Any]:
    for row in range(len(part)):
        picture = part[row][column]
        if picture is None:
            raise InputError(f"data, split '{split}', row {row}: no image; drop that row")
        yield picture


def save_pictures(pictures: Iterable[Any], folder: Path) -> list[str]:
    """Save images under names that depend on their content only; return the names."""
    names: dict[str, int] = {}
    paths = []
    for picture in pictures:
        upright = to_upright_rgb(picture)
        name = blake2b(repr(upright.size).encode() + upright.tobytes(), digest_size=8).hexdigest()
        names[name] = names.get(name, 0) + 1
        paths.append(f"{name}.png" if names[name] == 1 else f"{name}-{names[name]}.png")
        upright.save(folder / paths[-1])
    return paths


def _write_table(
    cells: Mapping[str, pa.Table], labels: Mapping[str, Array], classes: Sequence[str], path: Path
) -> Path:
    """Write cells by split, with the labels as ``label`` and the split of each row as ``split``."""
    tables = []
    for split, table in cells.items():
        labeled = table.append_column("label", pa.array(labels[split]))
        tables.append(labeled.append_column("split", pa.array([split] * len(table))))
    whole = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(None)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_parquet(whole, classes, path)


def write_parquet(table: pa.Table, classes: Sequence[str], path: Path) -> Path:
    """Write a table whose column ``label`` has these classes, if any are declared; return the path."""
    declared = declare_classes(table, ["label"], classes) if classes else table
    write_atomically(path, lambda temporary: pa.parquet.write_table(declared, temporary))
    return path


def _write_vectors(
    parts: Mapping[str, Any], column: str, labels: Mapping[str, Array], classes: Sequence[str], folder: Path
) -> Path:
    arrays = {f"{split}_labels": own for split, own in labels.items()}
    if classes:
        arrays["class_names"] = np.array(classes, np.str_)
    for split, part in parts.items():
        try:
            arrays[split] = np.asarray(part.with_format("numpy")[column][:]).astype(np.float32)
        except ValueError as error:
            raise InputError(f"data, split '{split}': vectors of different lengths in '{column}'") from error
    folder.mkdir(parents=True, exist_ok=True)
    write_npz(folder / "data.npz", arrays)
    return folder / "data.npz"
