"""Data in memory: frames, Arrow tables, Hugging Face data sets, arrays, texts, images, paths; written as files.

Neither pandas, polars nor `datasets` is imported: a caller who has their objects has imported them.
"""

import json
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import column_or_1d

from unflip.data.arrays import Array, write_npz
from unflip.data.columns import TEXT, Table, without_views
from unflip.data.files import is_image
from unflip.data.hugging_face import find_label, save_pictures, write_dataset, write_parquet
from unflip.data.labels import LABEL, find_label_column
from unflip.data.options import DataOptions
from unflip.data.rewrite import NewLabels, new_cells
from unflip.errors import InputError, one_line
from unflip.files import write_json

_ABOUT = "columns.json"  # beside the data
_MAX_DENSE = 2**34  # bytes of a sparse matrix in full


class InMemory(NamedTuple):
    """Data in memory, and where its labels are."""

    data: Any
    labels: Any = None
    """Where they are not part of the data (n,)."""
    label_column: str | None = None
    """By default ``label``."""
    ignore: Sequence[str] = ()
    """Columns to drop."""


def in_memory(data: Any, label_column: str | None = None) -> InMemory | None:
    """Return data in memory, also a pair of examples and labels; None for a path or the name of a data set."""
    if data is None or isinstance(data, str | Path):
        return None
    if isinstance(data, InMemory):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return InMemory(*data)
    return InMemory(data, None, label_column)


def take_memory(data: Any, options: dict[str, Any]) -> InMemory | None:
    """Return data in memory, with the options that concern it, which are removed; None for a path."""
    memory = in_memory(data)
    taken = {name: options.pop(name) for name in ("labels", "label_column", "ignore") if memory and name in options}
    return memory and memory._replace(**taken)


def _is_hugging_face(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "datasets"


def write_data(memory: InMemory, folder: Path) -> Path:
    """Write data to ``folder`` as a file that a loader reads; return the file.

    Tables become ``data.parquet``, with the labels in the column ``label``; arrays ``data.npz``; images PNG files named
    by their content, listed in ``manifest.parquet``; paths of images the list alone.
    """
    data, labels = memory.data, memory.labels
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _ABOUT, {"label_column": memory.label_column, "ignore": [*memory.ignore]})
    if _is_hugging_face(data):
        if labels is not None:
            raise InputError("labels: a data set of Hugging Face has its own; choose the column with label_column")
        return write_dataset(data, folder, label_column=memory.label_column, ignore=memory.ignore)
    try:
        content = _content(data)
        given = None if labels is None else plain_column(labels, "labels")
        if given is None and not isinstance(content, pa.Table):
            raise ValueError("labels: none given; give the label of each example")
        if given is not None and len(given) != len(content):
            raise ValueError(f"labels: {len(given)} labels for {len(content)} examples")
    except ValueError as error:
        raise InputError(str(error).replace("X: ", "data: ", 1)) from error
    if isinstance(content, pa.Table):
        return write_parquet(_labeled(content, given, memory), (), folder / "data.parquet")
    if isinstance(content, np.ndarray):
        write_npz(folder / "data.npz", {"train": content, "train_labels": given})  # type: ignore[dict-item]
        return folder / "data.npz"
    paths = content if isinstance(content[0], str) else save_pictures(content, folder)
    return write_parquet(pa.table({"path": paths, LABEL: given}), (), folder / "manifest.parquet")


def with_columns_of(memory: InMemory, folder: Path, options: DataOptions) -> InMemory:
    """Return data with the label column and the ignored columns of earlier data, where it has none of its own.

    Args:
        memory: the data.
        folder: to which the earlier data was written, if it was in memory.
        options: with which it was loaded, if it was not.
    """
    about: dict[str, Any] = {"label_column": options.label_column, "ignore": options.ignore}
    if (folder / _ABOUT).is_file():
        about = json.loads((folder / _ABOUT).read_text("utf-8"))
    column, ignore = memory.label_column or about["label_column"], memory.ignore or about["ignore"] or ()
    return memory._replace(label_column=column, ignore=tuple(ignore))


def _content(data: Any) -> pa.Table | Array | list[Any]:
    """Return rows of a table or of numbers, PIL images, or absolute paths of images."""
    if isinstance(data, list | tuple) and data:
        if all(hasattr(item, "getexif") for item in data):
            return [*data]
        if all(isinstance(item, str | Path) and is_image(str(item)) for item in data):
            return [str(Path(item).absolute()) for item in data]
    if (table := as_table(data, always=True)) is not None:
        return table.table
    rows = np.asarray(dense_rows(unmasked(data)))
    if rows.ndim < 2 or rows.dtype.kind not in "biuf":
        known = "a data frame, a data set of Hugging Face, numbers (n, columns), texts, images or paths of images"
        raise ValueError(f"data: cannot read a {type(data).__name__}; must be a path, a name, {known}")
    return Table.of_array(rows, column_titles(rows.shape[1]), "data").table if has_gaps(rows) else rows


def _labeled(table: pa.Table, given: Array | None, memory: InMemory) -> pa.Table:
    """Return a table without ignored columns, with the labels in the column ``label``."""
    table = table.drop_columns([name for name in memory.ignore if name in table.column_names])
    if given is None:
        own = label_column_of(memory)
        given, table = table[own], table.drop_columns([own])
    if (taken := next((name for name in table.column_names if name.lower() == LABEL), None)) is not None:
        raise InputError(f"data: column '{taken}' besides the labels; rename it, or ignore=['{taken}']")
    return table.append_column(LABEL, given if isinstance(given, pa.ChunkedArray) else pa.array(given))


def new_labels(memory: InMemory, new: NewLabels, classes: Sequence[str]) -> Array:
    """Return the labels (n,) of data in memory after a change, as the data has them."""
    if memory.labels is not None:
        return new_cells(plain_column(memory.labels, "labels"), new, classes)
    data, column = memory.data, label_column_of(memory)
    if not _is_hugging_face(data):
        cells = data[column]
        cells = cells.to_pylist() if isinstance(data, pa.Table | pa.RecordBatch) else list(cells)
        return new_cells(plain_column(cells, "labels"), new, classes)
    names = getattr(data.features[column], "names", None)
    values = [names.index(name) for name in classes] if names else classes
    return new_cells(np.array(list(data[column])), new, values)


def label_column_of(memory: InMemory) -> str:
    """Return the name of the label column."""
    data = memory.data
    if _is_hugging_face(data):
        return find_label(data.features, memory.label_column)
    names = [str(name) for name in getattr(data, "column_names", getattr(data, "columns", ()))]
    column = find_label_column("data", names, memory.label_column)
    if column is None:
        raise InputError(f"data: no column 'label' among {', '.join(names)}; choose one with label_column")
    return column


def relabeled(memory: InMemory, new: NewLabels, classes: Sequence[str], keep_given_as: str | None = None) -> Any:
    """Return a copy of data in memory with other labels and fewer examples; of its own type.

    Where labels were not part of the data, it is a pair: the examples and their labels.

    Args:
        memory: the data.
        new: the labels of its rows, those of a ``DatasetDict`` one split after the other.
        classes: the names of the classes.
        keep_given_as: a further column for the original labels.
    """
    data, rows = memory.data, np.flatnonzero(new.keep)
    if isinstance(data, dict):  # a DatasetDict
        fixed, start = {}, 0
        for name, part in data.items():
            own = NewLabels(*(column[start : start + len(part)] for column in new))
            fixed[name] = relabeled(memory._replace(data=part), own, classes, keep_given_as)
            start += len(part)
        return type(data)(fixed)
    labels = new_labels(memory, new, classes)
    if memory.labels is not None:
        kept = [data[row] for row in rows.tolist()] if isinstance(data, list | tuple) else _take(data, rows)
        return kept, labels[rows]
    column = label_column_of(memory)
    if _is_hugging_face(data):
        feature, names = data.features[column], data.column_names
        copy = data.remove_columns([column]).add_column(column, labels.tolist(), feature=feature).select_columns(names)
        if keep_given_as is not None:
            copy = copy.add_column(keep_given_as, list(data[column]), feature=feature)
        return copy.select(rows)
    if hasattr(data, "iloc"):
        copy = data.copy()
        copy.iloc[new.changed, [*data.columns].index(column)] = labels[new.changed]
        if keep_given_as is not None:
            copy[keep_given_as] = data[column]
        return copy.iloc[rows]
    table = pa.table(data if isinstance(data, pa.Table | pa.RecordBatch) else data.to_arrow())
    place = table.column_names.index(column)
    copy = table.set_column(place, column, pa.array(labels.tolist(), table.schema.field(place).type))
    if keep_given_as is not None:
        copy = copy.append_column(keep_given_as, table[column])
    copy = _take(copy, rows)
    return copy if isinstance(data, pa.Table | pa.RecordBatch) else type(data)(copy)


def _take(data: Any, rows: Array) -> Any:
    """Return rows of a frame, a table or an array."""
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    return data.take(pa.array(rows)) if isinstance(data, pa.Table) else data[rows]


def as_frame(table: pa.Table, memory: InMemory | None) -> Any:
    """Return a table as a frame of the kind that data came in; otherwise of pandas where it is installed."""
    data = None if memory is None else memory.data
    if isinstance(data, pa.Table | pa.RecordBatch):
        return table
    if data is not None and type(data).__module__.split(".")[0] == "polars":
        return type(data)(table)
    return table.to_pandas() if find_spec("pandas") else table


def column_titles(count: int) -> list[str]:
    """Return the names of columns that have none: x0, x1, ..."""
    return [f"x{place}" for place in range(count)]


def has_gaps(features: Array) -> bool:
    """Whether there are NaN among numbers."""
    return features.dtype.kind == "f" and bool(np.isnan(features.min(initial=0)))


def plain_column(labels: Any, name: str) -> Array:
    """Return labels (n,) as an array of numbers, booleans or strings; refuse gaps and several types."""
    given = complete_column(labels, name) if isinstance(labels, np.ma.MaskedArray) else np.asarray(labels)
    given = given.astype(object if given.dtype.kind == "T" else given.dtype.newbyteorder("="))  # what Arrow knows
    given = complete_column(given, name)
    return np.array(given.tolist()) if given.dtype == object else given


def as_table(X: Any, *, always: bool = False) -> Table | None:  # noqa: N803 - scikit-learn's name
    """Return a data frame with other than numbers, or texts, as cells to be encoded; None for anything else.

    A data frame of numbers without gaps is used as it is, unless it is ``always`` to be encoded.
    """
    if type(X).__name__ == "LazyFrame":
        raise ValueError("X: a LazyFrame of polars; give its .collect()")
    if hasattr(X, "with_format"):
        X = hugging_face_table(X)
    if isinstance(X, pa.RecordBatch):
        X = pa.table(X)
    if isinstance(X, pa.Table):
        return Table(without_views(X))
    if hasattr(X, "columns") and hasattr(X, "dtypes"):  # pandas and what is like it
        table = _pandas_table(X) if hasattr(X, "iloc") else without_views(X.to_arrow())
        numbers = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in table.schema.types)
        plain = numbers and not any(column.null_count for column in table.columns)
        sparse = any(str(kind).startswith("Sparse") for kind in X.dtypes)
        return None if plain and not always and not sparse else Table(table)
    texts = X.to_pylist() if isinstance(X, pa.Array | pa.ChunkedArray) else X
    texts = texts.to_numpy() if hasattr(texts, "to_numpy") else texts
    texts = list(texts) if isinstance(texts, Sequence) and not isinstance(texts, str) else texts
    if isinstance(texts, np.ndarray):
        texts = texts.tolist() if texts.ndim == 1 and texts.dtype.kind in "OUT" else []
    if isinstance(texts, list) and any(isinstance(text, str) for text in texts):
        found = [None if _is_missing(text) else text for text in texts]
        if all(text is None or isinstance(text, str) for text in found):  # half a surrogate pair is no text
            whole = [None if text is None else text.encode(errors="replace").decode() for text in found]
            return Table(pa.table({TEXT: pa.array(whole, pa.large_string())}))
    return None


def hugging_face_table(data: Any) -> pa.Table:
    """Return a data set of Hugging Face as a table."""
    if not isinstance(data.column_names, list):
        raise ValueError(f"X: several splits; use one of them, such as X['{next(iter(data.column_names), 'train')}']")
    if not hasattr(data, "__len__"):
        raise ValueError("X: a streamed data set; load it without streaming")
    return data.with_format("arrow")[:]


def _pandas_table(frame: Any) -> pa.Table:
    """Return a data frame of pandas as a table; sparse columns are filled."""
    if any(str(kind).startswith("Sparse") for kind in frame.dtypes):
        frame = frame.apply(lambda column: column.sparse.to_dense() if hasattr(column, "sparse") else column)
    if not frame.shape[1]:
        raise ValueError("X: no columns; at least one is needed")
    for place, kind in enumerate(frame.dtypes):
        if "interval" in str(getattr(getattr(kind, "categories", None), "dtype", kind)):  # as pandas.cut gives them
            frame = frame.copy(deep=False)
            frame.isetitem(place, frame.iloc[:, place].astype("string"))
    names = Counter(map(str, frame.columns))
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise ValueError(f"X: two columns are called '{twice}'; rename one of them")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"X: cannot be read; make each column all numbers or all text ({error})") from error


def _is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN or pandas' NA."""
    return cell is None or type(cell).__name__ == "NAType" or (isinstance(cell, float) and cell != cell)


def unmasked(values: Any) -> Any:
    """Return a masked array with NaN where it is masked; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not values.mask.any():
        return values.data
    return np.ma.filled(values.astype(np.result_type(values.dtype, np.float32)), np.nan)


def dense_rows(features: Any) -> Array:
    """Return rows that torch can read, which must be writable; sparse ones in full."""
    if issparse(features):
        rows, columns = features.shape
        needed = rows * columns * features.dtype.itemsize
        if needed > _MAX_DENSE:
            raise ValueError(
                f"X: a sparse matrix of {rows:,} x {columns:,} takes {needed / 2**30:,.0f} GiB in full, which networks "
                "need; reduce its columns first, for instance by TruncatedSVD"
            )
        features = features.toarray()
    return np.require(features, requirements="W")


def complete_column(column: ArrayLike, name: str) -> Array:
    """Return labels or groups (n,) as an array; refuse gaps and several types."""
    array: Array = np.asarray(column)
    array = column_or_1d(array.astype(object) if array.dtype.kind == "T" else column, warn=True)
    try:
        missing = pa.array(array, from_pandas=True).is_null().to_numpy(zero_copy_only=False)
        if isinstance(column, np.ma.MaskedArray):
            missing = missing | np.ma.getmaskarray(column).ravel()
    except pa.ArrowException as error:
        raise ValueError(f"{name}: must be all numbers or all names ({one_line(str(error))})") from error
    if missing.any():
        raise ValueError(f"{name}: example {missing.argmax()} has none; every example needs one")
    return array
