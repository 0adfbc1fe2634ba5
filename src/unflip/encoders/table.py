"""Encoder of tables; :mod:`unflip.encoders.columns` infers the kind of each column and encodes it."""

import warnings
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Self

import numpy as np
import pyarrow as pa

from unflip.data.arrays import Array
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Split
from unflip.data.options import DataOptions
from unflip.data.split import content_hash, row_hashes
from unflip.encoders.base import Encoded, Encoder
from unflip.encoders.columns import Column, ColumnChoices, fit_column, restore_column
from unflip.encoders.reading import kind_of, normalize_cells
from unflip.errors import InputError, UnflipWarning, count_of, one_line, shorten
from unflip.progress import Track, untracked

_MAX_LISTED = 20  # columns in an error message
_MIN_EXAMPLES = 20  # below which a column may repeat the labels by chance
_PER_VALUE = 20  # examples, on average, of each value of a column that gives the label away
_FIRST_ROWS = 1000  # which suffice to tell most columns from labels
_INFER_ALL = ColumnChoices()


class TableEncoder(Encoder):
    """Encodes each column of a table by its kind, in the order of the columns.

    - Numbers, dates and times (in microseconds) are standardized by the mean and the standard deviation of the
      training column. An empty cell gets the median; if the training column had empty cells, a second feature is 1
      where a cell is empty.
    - Booleans, and columns of 0 and 1, stay 0 or 1; an empty cell gets the more frequent value.
    - Categories are one-hot encoded in alphabetical order, and rare ones share a feature. Empty cells are a category.
    - Texts are encoded by the text encoder.

    A table of numbers without empty cells has one feature per column.
    """

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns

    @classmethod
    def fit(cls, cells: Table, choices: ColumnChoices = _INFER_ALL, text_encoder: str | None = None) -> Self:
        """Infer the kinds of the columns that ``choices`` does not declare, and fit their encodings."""
        header = cells.table.column_names
        declared = choices.by_column(header)
        columns = tuple(fit_column(name, cells.table[name], declared.get(name), text_encoder) for name in header)
        if not any(column.width for column in columns):
            reasons = ", ".join(f"{column.name} ({column.why})" for column in columns[:_MAX_LISTED])
            told = f"no usable column: {reasons or 'the table is empty'}"
            raise InputError(f"{told}; use --numeric, --categorical or --text-column")
        return cls(columns)

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(column.width for column in self.columns)

    def encode(self, inputs: Table, track: Track = untracked) -> Encoded:
        """Encode a table; columns are matched by name, and additional columns are ignored."""
        header = inputs.table.column_names
        features = np.empty((len(inputs), self.width), np.float32)
        remarks, end = [], 0
        for column in self.columns:
            if not column.width or not len(inputs):
                continue
            if column.name not in header:
                names = ", ".join(header[:_MAX_LISTED]) + (", ..." if len(header) > _MAX_LISTED else "")
                raise InputError(f"no column '{column.name}'; it has {names}")
            cells = normalize_cells(inputs.table[column.name])
            kind_of(cells.type, column.name)
            features[:, end : end + column.width], unseen = column.encode(cells, track)
            end += column.width
            remarks += [f"{one_line(column.name)}: {count_of(n, what)}" for what, n in unseen.items() if n]
        return Encoded(features, tuple(remarks))

    def encoding(self) -> Encoding:
        """Return the state of the columns; the names of arrays begin with the position of their column."""
        arrays: dict[str, Array] = {}
        for place, column in enumerate(self.columns):
            arrays |= {f"{place}/{key}": array for key, array in column.arrays().items()}
        return Encoding("table", {"columns": [column.settings() for column in self.columns]}, arrays)

    @classmethod
    def restore(cls, encoding: Encoding) -> Self:
        """Rebuild the encoder."""
        arrays: list[dict[str, Array]] = [{} for _ in encoding.settings["columns"]]
        for key, array in encoding.arrays.items():
            place, _, name = key.partition("/")
            arrays[int(place)][name] = array
        return cls(tuple(map(restore_column, encoding.settings["columns"], arrays)))

    def describe(self) -> list[str]:
        """Return the kind of each column, and the reason."""
        widest = max((len(shorten(column.name, 40)) for column in self.columns), default=0)
        return [f"{shorten(column.name, 40):<{widest}}  {column.kind:<9}  {column.why}" for column in self.columns]


def columns_of(encoding: Encoding) -> tuple[str, ...]:
    """Return the columns that a fitted table encoder needs."""
    return tuple(column["name"] for column in encoding.settings["columns"] if column["kind"] != "dropped")


def text_columns(encoding: Encoding, kind: str = "text") -> tuple[str, ...]:
    """Return the text columns, or those of another kind, of an encoding; none if it is not one of a table."""
    columns = encoding.settings["columns"] if encoding.encoder == "table" else []
    return tuple(column["name"] for column in columns if column["kind"] == kind)


def example_texts(raw: Dataset, encoding: Encoding | None) -> dict[str, list[str]]:
    """Return the text columns of a table, for all training and validation examples."""
    names = text_columns(encoding) if encoding is not None else ()
    tables = [part.inputs.table for part in (raw.train, raw.val) if part and isinstance(part.inputs, Table)]
    return {name: [text for table in tables for text in table[name].to_pylist()] for name in names if tables}


def encode_raw(raw: Dataset, options: DataOptions, track: Track = untracked) -> Dataset:
    """Replace the tables of a data set by features; the encoder is fitted to the training rows.

    Data without a table, that is features or images, is returned unchanged.
    """
    if not isinstance(raw.train.inputs, Table):
        return raw
    raw.check_trainable(options.path)
    choices = ColumnChoices(numeric=options.numeric, categorical=options.categorical, text_column=options.text_column)
    try:
        encoder = TableEncoder.fit(raw.train.inputs, choices, options.text_encoder)
        _warn_of_label_copies(raw.train, encoder, options.path)
        parts = {name: _encoded(part, encoder, track) for name, part in raw.parts().items()}
    except InputError as error:
        raise InputError(f"{options.path}: {error}") from error
    return replace(raw.with_parts(parts), encoding=encoder.encoding(), content_kind=_kind(raw.train.inputs))


def _kind(cells: Table) -> str:
    """Return what the contents of rows are hashes of: cells of these columns."""
    names = "\n".join(sorted(cells.table.column_names))
    return f"cells-{blake2b(names.encode(errors='replace'), digest_size=4).hexdigest()}"


def with_contents(raw: Dataset) -> Dataset:
    """Return data with the hashes of its tables' rows; other data unchanged."""
    parts = {
        name: replace(part, contents=_contents(part.inputs)) if isinstance(part.inputs, Table) else part
        for name, part in raw.parts().items()
    }
    inputs = raw.train.inputs
    return replace(raw.with_parts(parts), content_kind=_kind(inputs) if isinstance(inputs, Table) else "")


def _warn_of_label_copies(train: Split, encoder: TableEncoder, path: str) -> None:
    """Warn of columns of which each value occurs with one class: a model that sees them cannot find label issues."""
    assert isinstance(train.inputs, Table)
    if train.labels is None:
        return
    labels = np.unique(train.labels, return_inverse=True)[1]
    for name in (column.name for column in encoder.columns if column.kind not in ("dropped", "text")):
        column = train.inputs.table[name]
        if len(column.slice(0, _FIRST_ROWS).unique()) > max(_FIRST_ROWS // _PER_VALUE, labels.max(initial=0) + 1):
            continue
        codes = normalize_cells(column).dictionary_encode().indices.fill_null(-1).to_numpy()
        if gives_label_away(codes, labels):
            text = f"{path}: each value of the column '{name}' occurs with one class only, so no label contradicts it; "
            text += f"drop it with --ignore {name} if it was derived from the label"
            warnings.warn(text, UnflipWarning, stacklevel=3)


def gives_label_away(values: Array, labels: Array) -> bool:
    """Whether a column (n,), numbers or codes of categories, determines the class (n,) of every example.

    No value occurs with two classes, and there are at most as many values as classes, or a twentieth of the examples;
    or, of fractions, at most two ranges of values for each class.
    """
    classes = len(np.unique(labels))
    if len(labels) < _MIN_EXAMPLES or classes < 2:
        return False
    order = np.argsort(values, kind="stable")
    new_value, new_class = np.diff(values[order]) != 0, np.diff(labels[order]) != 0
    if (new_class & ~new_value).any():
        return False
    few = 1 + new_value.sum() <= max(classes, len(labels) // _PER_VALUE)
    return bool(few or (values.dtype.kind == "f" and 1 + new_class.sum() <= 2 * classes))


def _encoded(part: Split, encoder: TableEncoder, track: Track) -> Split:
    assert isinstance(part.inputs, Table)
    features = encoder.encode(part.inputs, track).features
    digests = part.digests
    if names := text_columns(encoder.encoding()):  # different texts may have equal features
        texts = ([str(text or "") for text in part.inputs.table[name].to_pylist()] for name in names)
        hashes = [[content_hash(text.encode(errors="replace")) for text in column] for column in texts]
        digests = row_hashes(np.column_stack([row_hashes(features), *np.array(hashes, np.uint64)]))
    return replace(part, inputs=features, digests=digests, contents=_contents(part.inputs))


def _contents(cells: Table) -> Array:
    """Return a hash per row (n,) of its cells, by column name."""
    table = cells.table
    hashes = [_cell_hashes(table[name].combine_chunks()) for name in sorted(table.column_names)]
    return row_hashes(np.column_stack(hashes)) if hashes else np.zeros(len(cells), np.uint64)


def _cell_hashes(cells: pa.Array) -> Array:
    """Return a hash per cell (n,); numbers have the same as integers, as fractions and as text."""
    if pa.types.is_nested(cells.type):
        cells = pa.array(map(str, cells.to_pylist()))
    codes = cells.dictionary_encode()
    texts = [str(value) for value in codes.dictionary.to_pylist()]
    hashes = np.array([_hash(text) for text in texts] + [0], np.uint64)
    return np.asarray(hashes[codes.indices.fill_null(len(texts)).to_numpy()])


def _hash(text: str) -> int:
    with suppress(ValueError):
        text = repr(float(text) + 0.0)  # no negative zero
    return content_hash(text.encode(errors="replace"))
