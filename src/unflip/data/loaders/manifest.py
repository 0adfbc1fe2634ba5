"""A manifest: a CSV or Parquet table ``path,label[,split]`` of images, paths relative to its own folder."""

from pathlib import Path

import numpy as np

from unflip.data.columns import (
    check_filled,
    column_names,
    find_label_column,
    label_cells,
    read_columns,
    rows_by_split,
    why_untrainable,
)
from unflip.data.dataset import Dataset, Split
from unflip.data.files import ImageFiles, as_names
from unflip.data.images import IMAGENET
from unflip.data.labels import numbers_or_names
from unflip.data.loaders import FOR_IMAGE_FILES, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.options import Options

_COLUMNS = ("path", "split")


class Manifest(Loader):
    """Without ``split`` all images train; without ``label`` they can only be predicted."""

    general = True
    uses = FOR_IMAGE_FILES | {"label_column"}

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a CSV or Parquet file with a column ``path``."""
        if path.suffix.lower() not in (".csv", ".parquet") or not path.is_file():
            return False
        try:
            return "path" in column_names(path)
        except InputError:  # which the loader of tables will report
            return False

    def load(self, path: Path, options: DataOptions, own: Options) -> Dataset:
        """Read the table; the images stay where they are."""
        wanted = None if options.label_column is None else options.label_column.lower()
        by_group = (options.groups or "").lower()
        table, header = read_columns(path, (*_COLUMNS, wanted or "label", by_group), str(path))
        if "path" not in table:
            raise InputError(f"{path}: no column 'path'; a manifest has path,label[,split]")
        label = find_label_column(path, [name.lower() for name in header], wanted)
        cells = None if label is None else label_cells(table.pop(label))
        check_filled(path, table)
        names = as_names([str(name) for name in table["path"]])
        blank = bool(cells) and all(cell == "" for cell in cells or ())
        labels = (
            None if cells is None or blank else numbers_or_names([str(cell) for cell in cells], options.class_names)
        )
        groups = None if by_group not in table else np.array(table[by_group], np.str_)
        sets, splits = {}, rows_by_split(path, table.get("split", ["train"] * len(names)))
        for split, rows in splits.items():
            files = ImageFiles(path.parent, names[rows], path, rows)
            sets[split] = Split(
                files,
                None if labels is None else labels[rows],
                ids=files.names,
                groups=None if groups is None else groups[rows],
            )
        return Dataset(
            train=sets.pop("train"),
            val=sets.pop("val", None),
            tests=sets,
            normalisation=IMAGENET,
            unlabelled=f"the column '{label}' is empty"
            if blank
            else f"no column 'label' in it; it has {', '.join(header)}: say which with --label-column",
            label_column=label,
            untrainable=why_untrainable(splits),
        )


manifest = Manifest()
