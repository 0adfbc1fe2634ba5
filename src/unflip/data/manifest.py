"""A manifest: a CSV or Parquet table ``path,label[,split]`` of images, paths relative to its own folder."""

from pathlib import Path
from typing import Any

import numpy as np

from unflip.data.column_files import read_columns
from unflip.data.dataset import DataOptions, LabelledSet, Loaded
from unflip.data.image_files import ImageFiles, as_names
from unflip.data.images import IMAGENET
from unflip.data.label_files import numbers_or_names
from unflip.errors import InputError

_COLUMNS = ("path", "label", "split")


class Manifest:
    """The loader. Without ``split`` all images train; without ``label`` they can only be predicted."""

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a CSV or Parquet file."""
        return path.suffix.lower() in (".csv", ".parquet") and path.is_file()

    def __call__(self, path: Path, options: DataOptions) -> Loaded:
        """Read the table; the images stay where they are."""
        table, _ = read_columns(path, _COLUMNS, str(path))
        if "path" not in table:
            raise InputError(f"{path}: no column 'path'; a manifest has path,label[,split]")
        _check_filled(path, table)
        names = as_names([str(name) for name in table["path"]])
        splits = np.array(table.get("split", ["train"] * len(names)), np.str_)
        wrong = ~(np.isin(splits, ("train", "val")) | np.char.startswith(splits, "test"))
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(f"{path}, row {row}: split '{splits[row]}'; it is train, val or test (test2 ... too)")
        labels = numbers_or_names([str(label) for label in table["label"]]) if "label" in table else None
        sets = {}
        for split in sorted(set(splits.tolist())):
            rows = (splits == split).nonzero()[0]
            files = ImageFiles(path.parent, names[rows], path, rows)
            sets[split] = LabelledSet(files, None if labels is None else labels[rows], ids=files.names)
        if "train" not in sets:
            raise InputError(f"{path}: no row {'of split train' if sets else 'in it'}; nothing to train on")
        return Loaded(
            train=sets.pop("train"),
            val=sets.pop("val", None),
            tests=sets,
            normalisation=IMAGENET,
            unlabelled="no column 'label' in it",
        )


def _check_filled(path: Path, table: dict[str, list[Any]]) -> None:
    for name, cells in table.items():
        empty = next((i for i, cell in enumerate(cells) if cell is None or cell == ""), None)
        if empty is not None:
            raise InputError(f"{path}, row {empty}: the column '{name}' is empty")


manifest = Manifest()
