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
)
from unflip.data.dataset import Dataset, Split
from unflip.data.files import ImageFiles, as_names
from unflip.data.images import IMAGENET
from unflip.data.labels import numbers_or_names
from unflip.data.loaders import FOR_IMAGE_FILES, Loader
from unflip.data.options import DataOptions
from unflip.errors import InputError
from unflip.options import Options


class Manifest(Loader):
    """Without ``split`` all images train; without ``label`` they can only be predicted."""

    general = True
    uses = FOR_IMAGE_FILES | {"label_column"}

    def recognizes(self, path: Path) -> bool:
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
        table, header = read_columns(path, ("path", "split", wanted or "label", by_group), str(path))
        label = find_label_column(path, [name.lower() for name in header], wanted)
        unlabeled = f"no column 'label' in it; it has {', '.join(header)}: say which with --label-column"
        cells = None if label is None else label_cells(table.pop(label))
        if cells and set(cells) == {""}:
            cells, unlabeled = None, f"the column '{label}' is empty"
        check_filled(path, table)
        names = as_names([str(name) for name in table["path"]])
        whole = Split(
            ImageFiles(path.parent, names, path, np.arange(len(names))),
            None if cells is None else numbers_or_names([str(cell) for cell in cells], options.class_names),
            ids=names,
            groups=np.array(table[by_group], np.str_) if by_group in table else None,
        )
        splits = rows_by_split(path, table.get("split", ["train"] * len(names)))
        return Dataset(whole, normalization=IMAGENET, unlabeled=unlabeled, label_column=label).with_parts(
            {split: whole[rows] for split, rows in splits.items()}
        )


manifest = Manifest()
