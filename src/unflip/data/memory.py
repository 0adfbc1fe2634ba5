"""Data in memory: frames, Arrow tables, Hugging Face data sets, arrays, texts, images, paths; as files and back.

Neither pandas, polars nor `datasets` is imported: a caller who has their objects has imported them.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import ArrayLike

from unflip.data.annotations import ANNOTATOR
from unflip.data.arrays import Array, write_npz
from unflip.data.columns import TEXT, Table, without_views
from unflip.data.files import is_image, to_upright_rgb
from unflip.data.labels import LABEL, declare_classes, find_label_column
from unflip.data.options import DataOptions
from unflip.data.rewrite import NewLabels, new_cells
from unflip.errors import InputError, UnflipError, one_line, unknown
from unflip.files import PARTIAL, write_atomically, write_json

_ABOUT = "columns.json"  # beside the data
_MAX_DENSE = 2**34  # bytes of a sparse matrix in full
_VECTORS = ("List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D", "Array5D")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val"}


class InMemory(NamedTuple):
    """Data in memory, and where its labels are."""

    data: Any
    labels: Any = None
    """Where they are not part of the data (n,)."""
    label_column: str | None = None
    """By default ``label``."""
    ignore: Sequence[str] = ()
    """Columns to drop."""
    annotations: Any = None
    """Labels by several annotators; the data may then have no others."""
    labeled: bool = True
    """Whether there must be labels; else a column of labels is dropped."""


def in_memory(data: Any, label_column: str | None = None) -> InMemory | None:
    """Return data in memory, also a pair of examples and labels; None for a path or the name of a data set."""
    if data is None or isinstance(data, str | Path):
        return None
    if isinstance(data, InMemory):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return InMemory(*data)
    return InMemory(data, None, None if label_column is None else str(label_column))


def take_memory(data: Any, options: dict[str, Any]) -> InMemory | None:
    """Return data in memory, with the options that concern it, which are removed; None for a path."""
    memory = in_memory(data)
    own = ("labels", "label_column", "ignore", "annotations")
    taken = {name: options.pop(name) for name in own if memory and name in options}
    if memory is None:
        return None
    if taken.get("label_column") is not None:  # columns of pandas may be called by numbers
        taken["label_column"] = str(taken["label_column"])
    if ignore := taken.get("ignore"):
        taken["ignore"] = ignore = [ignore] if isinstance(ignore, str) else [str(name) for name in ignore]
        header = next(iter(memory.data.values()), ()) if isinstance(memory.data, dict) else memory.data
        names = [str(name) for name in getattr(header, "column_names", getattr(header, "columns", ()))]
        if wrong := next((name for name in ignore if name not in names), None):
            raise InputError(f"ignore: {unknown('column', wrong, names)}")
    return memory._replace(**taken)


def _is_hugging_face(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "datasets"


def _in_order(splits: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return splits in the order of ``Dataset.parts``: training, test sets, validation."""
    return dict(sorted(splits.items(), key=lambda item: (_SPLITS.get(item[0], "").find("val"), item[0] != "train")))


class _Part(NamedTuple):
    """The examples of a split: rows of a table or of numbers, or images or paths of images; and their labels."""

    content: pa.Table | Array | Iterable[Any]
    labels: Any


def write_data(memory: InMemory, folder: Path) -> Path:
    """Write data to ``folder`` as a file that a loader reads; return the file.

    Tables become ``data.parquet``, with the labels in the column ``label``; arrays ``data.npz``; images PNG files named
    by their content, listed in ``manifest.parquet``; paths of images the list alone. Several splits are one file with a
    column ``split``. Each file declares the classes of a ``ClassLabel`` of Hugging Face, in its order.
    """
    try:
        parts, classes = (
            _hugging_face_parts(memory)
            if _is_hugging_face(memory.data) and memory.labels is None and memory.labeled
            else ({"train": _read(memory)}, [])
        )
    except ValueError as error:
        raise InputError(str(error).replace("X: ", "data: ", 1)) from error
    classes = classes or ordered_classes(memory)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _ABOUT, {"label_column": memory.label_column, "ignore": [*memory.ignore]})
    if isinstance(parts["train"].content, np.ndarray):
        arrays = {"class_names": np.array(classes, np.str_)} if classes else {}
        arrays |= {split: np.asarray(part.content) for split, part in parts.items()}
        labels = {f"{split}_labels": part.labels for split, part in parts.items() if part.labels is not None}
        write_npz(folder / "data.npz", arrays | labels)
        return folder / "data.npz"
    path, tables = folder / "data.parquet", []
    for split, (content, labels) in parts.items():
        if not isinstance(content, pa.Table):
            path, inner = folder / "manifest.parquet", f"{split}/" if len(parts) > 1 else ""
            content = pa.table({"path": [*_paths(content, folder, inner)]})
        labels = labels if isinstance(labels, pa.ChunkedArray | None) else pa.array(labels)
        table = content if labels is None else content.append_column(LABEL, labels)
        tables.append(table.append_column("split", pa.array([split] * len(table))) if len(parts) > 1 else table)
    whole = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(None)
    whole = declare_classes(whole, [LABEL], classes) if classes else whole
    write_atomically(path, lambda temporary: pa.parquet.write_table(whole, temporary))
    return path


def own_annotations(annotations: Any, folder: Path) -> str:
    """Write labels by several annotators to a file in ``folder``, in long form, unless they are a path; return it.

    They are an array or a data frame (n, annotators) with gaps, or a data frame in long form already.
    """
    if isinstance(annotations, str | Path):
        return str(annotations)
    path, table = folder / "annotations.parquet", annotation_table(annotations)
    if not is_long(table):
        parts = [
            pa.table({"index": rows, ANNOTATOR: [name] * len(rows), LABEL: column.drop_null().cast(pa.string())})
            for name, column in zip(table.column_names, table.columns, strict=True)
            for rows in [np.flatnonzero(column.is_valid())]
        ]
        table = pa.concat_tables(parts)
    write_atomically(path, lambda temporary: pa.parquet.write_table(table, temporary))
    return str(path)


def ordered_classes(memory: InMemory) -> list[str]:
    """Return the classes of labels that are an ordered categorical of pandas, in order; none for others."""
    labels = memory.labels
    if labels is None and hasattr(memory.data, "iloc"):
        labels = memory.data.get(memory.label_column or LABEL)
    kind = getattr(labels, "dtype", None)
    return [str(name) for name in kind.categories] if kind is not None and getattr(kind, "ordered", False) else []


def annotation_table(annotations: Any) -> pa.Table:
    """Return annotations in memory, wide or long, as a table."""
    frame = as_table(annotations, always=True)
    if frame is not None:
        return frame.table
    values = np.asarray(annotations)
    if values.ndim != 2:
        raise InputError(f"annotations: shape {values.shape}; must be (examples, annotators), or in long form")
    return pa.table({str(place): pa.array(column, from_pandas=True) for place, column in enumerate(values.T)})


def is_long(table: pa.Table) -> bool:
    """Whether a table of annotations has a row per label, with the columns ``annotator`` and ``label``."""
    return {ANNOTATOR, LABEL} <= {name.lower() for name in table.column_names}


@contextmanager
def written(memory: InMemory, folder: Path) -> Iterator[Path]:
    """Write data as :func:`write_data`, and use it; after an error, which names no file, ``folder`` is as before."""
    with TemporaryDirectory(prefix=PARTIAL, dir=folder.parent, ignore_cleanup_errors=True) as aside:
        before = Path(aside) / folder.name
        if folder.exists():
            shutil.copytree(folder, before)
        try:
            yield write_data(memory, folder)
        except Exception as error:
            shutil.rmtree(folder, ignore_errors=True)
            if before.exists():
                before.rename(folder)
            if isinstance(error, UnflipError):
                files = "(data )?" + re.escape(f"{folder}{os.sep}") + r"(data|manifest)\.(parquet|npz)"
                error.args = (re.sub(files, "data", str(error)),)
            raise


def _read(memory: InMemory) -> _Part:
    """Return the examples and labels of data that is not a data set of Hugging Face with its own labels."""
    content = _content(memory.data)
    if not memory.labeled and isinstance(content, pa.Table):
        dropped = {*memory.ignore, memory.label_column or LABEL}
        return _Part(content.drop_columns([name for name in content.column_names if name in dropped]), None)
    given = None if memory.labels is None else plain_column(memory.labels, "labels")
    if given is None and memory.annotations is None and memory.labeled and not isinstance(content, pa.Table):
        raise ValueError("labels: none given; give the label of each example")
    if given is not None and len(given) != len(content):
        raise ValueError(f"labels: {len(given)} labels for {len(content)} examples")
    check_order(memory.data, memory.labels)
    if not isinstance(content, pa.Table):
        return _Part(content, given)
    if given is None and not _has_annotations_only(memory):
        column = label_column_of(memory)
        given, content = content[column], content.drop_columns([column])
    return _Part(_features(content, memory), given)


def _features(table: pa.Table, memory: InMemory) -> pa.Table:
    """Return a table without ignored columns; its labels are apart."""
    table = table.drop_columns([name for name in memory.ignore if name in table.column_names])
    roles = (LABEL,) if memory.labels is None else (LABEL, "split")  # rows would not be in the order of the labels
    if (taken := next((name for name in table.column_names if name.lower() in roles), None)) is not None:
        raise InputError(f"data: column '{taken}' besides the labels; rename it, or ignore=['{taken}']")
    return table


def _hugging_face_parts(memory: InMemory) -> tuple[dict[str, _Part], list[str]]:
    """Return the splits of a ``Dataset`` (all for training) or a ``DatasetDict``, and the classes of a ``ClassLabel``.

    A column of images, or else one of vectors, is the example; otherwise all columns are.
    """
    data = memory.data
    if "Iterable" in type(data).__name__:
        raise InputError("data: a streamed data set; load it without streaming")
    splits = data if isinstance(data, Mapping) else {"train": data}
    named = _in_order({str(name): part for name, part in splits.items()})
    if other := next((name for name in named if name not in _SPLITS and not name.startswith("test")), None):
        raise InputError(f"data: split '{other}' is not train, validation or test; remove it from the DatasetDict")
    parts = {_SPLITS.get(name, name): part.with_format(None) for name, part in named.items()}  # all columns
    if "train" not in parts:
        raise InputError(f"data: no split 'train' among {', '.join(named)}")
    label = label_column_of(memory._replace(data=parts["train"]))
    types = {name: type(kind).__name__ for name, kind in parts["train"].features.items()}
    features = [name for name in types if name != label and name not in memory.ignore]
    if not features:
        raise InputError(f"data: no column of features besides '{label}'")
    images = [name for name in features if types[name] == "Image"]
    chosen = images or [name for name in features if types[name] in _VECTORS]
    if len(chosen) > 1:
        raise InputError(f"data: several columns of images or vectors ({', '.join(chosen)}); ignore={chosen[1:]!r}?")
    declared = (getattr(parts[split].features[label], "names", None) for split in sorted(parts, key="train".__ne__))
    classes = list(dict.fromkeys(name for names in declared for name in names or ()))

    def content(split: str, part: Any) -> Any:
        if images:
            return (row[images[0]] for row in part.select_columns(images))
        if not chosen:
            return _features(part.with_format("arrow")[:].select(features), memory)
        try:
            return np.asarray(part.with_format("numpy")[chosen[0]][:]).astype(np.float32)
        except ValueError as error:
            raise InputError(f"data, split '{split}': vectors of different lengths in '{chosen[0]}'") from error

    return {
        split: _Part(content(split, part), _class_names(part, label, classes)) for split, part in parts.items()
    }, classes


def _class_names(part: Any, column: str, classes: Sequence[str]) -> Array:
    """Return class names where a split, or else another one (``classes``), has any; otherwise the labels themselves.

    None is no label, nor is the class number -1, which Hugging Face's library writes for one.
    """
    cells = list(part[column][:])
    names = getattr(part.features[column], "names", None)
    if names is None and classes and all(isinstance(cell, int | None) for cell in cells):
        names = classes
    if names is None:
        return plain_column(cells, "labels")
    wrong = next((i for i, cell in enumerate(cells) if cell is not None and not -1 <= cell < len(names)), None)
    if wrong is not None:
        raise InputError(f"data, row {wrong}: label {cells[wrong]} is not a class; drop that row")
    return np.array(["" if cell is None or cell < 0 else names[cell] for cell in cells], np.str_)


def _paths(images: Iterable[Any], folder: Path, inner: str) -> Iterator[str]:
    """Save images under names that depend on their content only, and yield these; yield paths of files as they are."""
    names: Counter[str] = Counter()
    (folder / inner).mkdir(exist_ok=True)
    for row, image in enumerate(images):
        if isinstance(image, str):
            yield image
            continue
        if image is None:
            raise InputError(f"data, row {row}: no image; drop that row")
        upright = to_upright_rgb(image)
        name = blake2b(repr(upright.size).encode() + upright.tobytes(), digest_size=8).hexdigest()
        names[name] += 1
        path = f"{inner}{name}.png" if names[name] == 1 else f"{inner}{name}-{names[name]}.png"
        upright.save(folder / path)
        yield path


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
    if rows.dtype.kind in "bO":  # as a frame of several types gives numbers
        with suppress(TypeError, ValueError):
            rows = rows.astype(np.float64)
    if rows.ndim < 2 or rows.dtype.kind not in "biuf":
        known = "a data frame, a data set of Hugging Face, numbers (n, columns), texts, images or paths of images"
        raise ValueError(f"data: cannot read a {type(data).__name__}; must be a path, a name, {known}")
    return Table.of_array(rows, column_titles(rows.shape[1]), "data").table if has_gaps(rows) else rows


def new_labels(memory: InMemory, new: NewLabels, classes: Sequence[str], *, as_cells: bool = False) -> Array:
    """Return the labels (n,) of data in memory after a change: numbers or names, or ``as_cells`` of the data."""
    if memory.labels is not None:
        return new_cells(plain_column(memory.labels, "labels"), new, classes)
    if _has_annotations_only(memory):
        return np.array([*classes, ""], np.str_)[new.new]
    data, cells = memory.data, _label_cells(memory)
    names = getattr(data.features[label_column_of(memory)], "names", None) if _is_hugging_face(data) else None
    values = [names.index(name) if names and name in names else name for name in classes]
    if as_cells or _is_hugging_face(data):
        return new_cells(np.fromiter(cells, object, len(cells)) if as_cells else np.array(cells), new, values)
    return new_cells(plain_column(cells, "labels"), new, values)


def _label_cells(memory: InMemory) -> list[Any]:
    """Return the cells of the label column (n,)."""
    data, column = memory.data, label_column_of(memory)
    if hasattr(data, "iloc"):
        return list(data.iloc[:, _place(data, column)])
    cells = (data.with_format(None) if _is_hugging_face(data) else data)[column]
    return cells.to_pylist() if isinstance(data, pa.Table | pa.RecordBatch) else list(cells)


def _has_annotations_only(memory: InMemory) -> bool:
    """Whether the data has annotations, and no labels besides."""
    names = getattr(memory.data, "column_names", getattr(memory.data, "columns", ()))
    without = memory.labels is None and memory.label_column is None and LABEL not in [str(name) for name in names]
    return memory.annotations is not None and without


def label_column_of(memory: InMemory) -> str:
    """Return the label column: the chosen one, ``label``, or of Hugging Face ``labels`` or the only ``ClassLabel``."""
    data = memory.data
    types: Mapping[str, Any] = data.features if _is_hugging_face(data) else {}
    names = [str(name) for name in getattr(data, "column_names", getattr(data, "columns", ()))]
    typed = [name for name, kind in types.items() if type(kind).__name__ == "ClassLabel"]
    others = ["labels"] if "labels" in types else typed
    column = find_label_column("data", names, memory.label_column) or (others[0] if len(others) == 1 else None)
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
        for name, part in _in_order(data).items():
            own = NewLabels(*(column[start : start + len(part)] for column in new))
            fixed[name] = relabeled(memory._replace(data=part), own, classes, keep_given_as)
            start += len(part)
        return type(data)({name: fixed[name] for name in data})
    labels = new_labels(memory, new, classes, as_cells=True)
    if keep_given_as in [str(name) for name in getattr(data, "column_names", getattr(data, "columns", ()))]:
        raise InputError(f"keep_given_as: the data has a column '{keep_given_as}'; choose another name")
    if memory.labels is not None or _has_annotations_only(memory):
        kept = [data[row] for row in rows.tolist()] if isinstance(data, list | tuple) else _take(data, rows)
        return kept, labels[rows]
    column = label_column_of(memory)
    if _is_hugging_face(data):
        feature, names = data.features[column], data.column_names
        copy = data.remove_columns([column]).add_column(column, labels.tolist(), feature=feature).select_columns(names)
        if keep_given_as is not None:
            copy = copy.add_column(keep_given_as, list(data.with_format(None)[column]), feature=feature)
        return copy.select(rows)
    if hasattr(data, "iloc"):
        copy, place = data.copy(), _place(data, column)
        given = data.iloc[:, place]
        fixed = given.astype(object)  # not every type takes single cells
        fixed.iloc[new.changed] = labels[new.changed]
        known = fixed.isin(getattr(given.dtype, "categories", fixed))
        if (lost := np.flatnonzero(new.changed & ~known)).size:
            raise InputError(f"data, row {lost[0]}: '{labels[lost[0]]}' is no category of '{column}'; add it")
        copy.isetitem(place, fixed.astype(given.dtype))
        if keep_given_as is not None:
            copy[keep_given_as] = given
        return copy.iloc[rows]
    table = pa.table(data if isinstance(data, pa.Table | pa.RecordBatch) else data.to_arrow())
    place = table.column_names.index(column)
    copy = table.set_column(place, column, pa.array(labels.tolist(), table.schema.field(place).type))
    if keep_given_as is not None:
        copy = copy.append_column(keep_given_as, table[column])
    copy = _take(copy, rows)
    return copy if isinstance(data, pa.Table | pa.RecordBatch) else type(data)(copy).cast(dict(data.schema))


def _place(frame: Any, column: str) -> int:
    """Return the place of a column in a data frame of pandas, whose names may be other than strings."""
    return [str(name) for name in frame.columns].index(column)


def _take(data: Any, rows: Array) -> Any:
    """Return rows of a frame, a table, a data set of Hugging Face or an array."""
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if _is_hugging_face(data):
        return data.select(rows)
    if isinstance(data, pa.Table):
        return without_views(data).take(pa.array(rows)).cast(data.schema)
    if type(data).__module__.startswith("pyarrow."):
        return data.take(pa.array(rows))
    return data.tocsr()[rows] if hasattr(data, "tocsr") else data[rows]


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
    """Return labels (n,) as an array of numbers, booleans or strings, NaN or "" for gaps; refuse several types."""
    given = complete_column(labels, name) if isinstance(labels, np.ma.MaskedArray) else np.asarray(labels)
    if isinstance(labels, list | tuple) and given.dtype.kind == "U":
        given = np.asarray(labels, object)  # NaN is not the name of a class
    given = given.astype(object if given.dtype.kind == "T" else given.dtype.newbyteorder("="))  # what Arrow knows
    missing = np.array([_is_missing(cell) for cell in given.tolist()], bool) if given.dtype.kind in "Of" else np.bool_()
    if not missing.any() or given.ndim != 1 or missing.all():
        given = complete_column(given, name)
        return np.array(given.tolist()) if given.dtype == object else given
    present = np.array(complete_column(given[~missing], name).tolist())
    result: Array = np.full(len(given), "" if present.dtype.kind == "U" else np.nan, object)
    result[~missing] = present
    return np.array(result.tolist())


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
        own = str(getattr(getattr(kind, "categories", None), "dtype", kind))
        if own.startswith(("interval", "period")):  # pandas.cut gives intervals
            frame, column = frame.copy(deep=False), frame.iloc[:, place]
            is_period = str(kind).startswith("period")
            frame.isetitem(place, column.dt.to_timestamp() if is_period else column.astype("string"))
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
    """Return a masked array with NaN where it is masked, and a tensor without its graph; anything else as it is."""
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor  # which NumPy does not have
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not values.mask.any():
        return values.data
    return np.ma.filled(values.astype(np.result_type(values.dtype, np.float32)), np.nan)


def dense_rows(features: Any) -> Array:
    """Return rows that torch can read, which must be writable; sparse ones in full."""
    if hasattr(features, "toarray"):
        rows, columns = features.shape
        needed = rows * columns * features.dtype.itemsize
        if needed > _MAX_DENSE:
            told = f"{rows:,} x {columns:,} takes {needed / 2**30:,.0f} GiB in full, which networks need"
            how = "reduce its columns first, for instance by TruncatedSVD"
            raise ValueError(f"X: a sparse matrix of {told}; {how}")
        features = features.toarray()
    return np.require(features, requirements="W")


def check_order(data: Any, labels: Any) -> None:
    """Refuse labels of pandas that have the index of the data in another order; rows are matched by position."""
    if not (hasattr(data, "iloc") and hasattr(labels, "iloc")) or data.index.equals(labels.index):
        return
    if Counter(data.index) == Counter(labels.index):
        raise ValueError("labels: their index is in another order than that of the data; sort both by it")


def complete_column(column: ArrayLike, name: str) -> Array:
    """Return labels or groups (n,) as an array; refuse gaps and several types."""
    from sklearn.utils import column_or_1d

    array: Array = np.asarray(column)
    array = column_or_1d(array.astype(object) if array.dtype.kind == "T" else column, warn=True)
    try:
        missing = pa.array(array, from_pandas=True).is_null().to_numpy(zero_copy_only=False)
        if isinstance(column, np.ma.MaskedArray):
            missing = missing | np.ma.getmaskarray(column).ravel()
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"{name}: must be all numbers or all names ({one_line(str(error))})") from error
    if missing.any():
        raise ValueError(f"{name}: example {missing.argmax()} has none; every example needs one")
    return array
