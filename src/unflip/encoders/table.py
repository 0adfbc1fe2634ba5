"""Tables: columns as features, whatever they hold; :mod:`unflip.encoders.columns` decides what each one is."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Self

import numpy as np

from unflip.data.arrays import Array
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Split
from unflip.data.options import DataOptions
from unflip.data.split import row_hashes
from unflip.encoders.base import Encoded, Encoder
from unflip.encoders.columns import Column, ColumnChoices, decide, restore_column
from unflip.encoders.reading import kind_of, plain
from unflip.errors import InputError, UnflipWarning, one_line
from unflip.progress import Track, untracked

_LISTED = 20  # most columns that an error lists
_LONGEST = 40  # characters of a column's name that a description shows
_NOTHING = ColumnChoices()
_FEWEST = 20  # examples below which a column may repeat the labels by chance
_FIRST = 1000  # rows that tell most columns from labels


class TableEncoder(Encoder):
    """Makes features of columns, in the table's order; what a column is was decided when it was fitted.

    - A number x becomes (x - mean) / standard deviation of the training column, computed in float64. An empty cell
      gets the median; if the training examples had empty cells, a second feature is 1 where a cell is empty. Dates and
      times likewise, in microseconds.
    - A boolean, also a column of 0 and 1, stays 0 or 1; an empty cell gets the more frequent one; as above otherwise.
    - A category becomes a feature of 0 and 1 for each frequent name, in the order of the names; then one for all other
      names if the training examples had rare ones. An empty cell is a name, too.
    - A text becomes the features that the text encoder gives.

    So a table of numbers without empty cells has one feature for each column.
    """

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns

    @classmethod
    def fit(cls, cells: Table, choices: ColumnChoices = _NOTHING, text_encoder: str | None = None) -> Self:
        """Decide what the columns of the training examples are, as far as ``choices`` do not say."""
        header = cells.table.column_names
        choices.check(header)
        columns = tuple(decide(name, cells.table[name], choices.of(name), text_encoder) for name in header)
        if not any(column.width for column in columns):
            reasons = ", ".join(f"{column.name} ({column.why})" for column in columns[:_LISTED])
            raise InputError(
                f"no column is left to learn from: {reasons or 'there is none'}; say what a column is with --numeric, "
                "--categorical or --text-column"
            )
        return cls(columns)

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(column.width for column in self.columns)

    def encode(self, inputs: Table, track: Track = untracked) -> Encoded:
        """Return the features of cells; columns are found by name, so their order and others do not matter."""
        header = inputs.table.column_names
        features = np.empty((len(inputs), self.width), np.float32)
        remarks, end = [], 0
        for column in self.columns:
            if not column.width or not len(inputs):
                continue
            if column.name not in header:
                had = ", ".join(header[:_LISTED]) + (", ..." if len(header) > _LISTED else "")
                raise InputError(f"no column '{column.name}', of which the training examples had one; it has {had}")
            cells = plain(inputs.table[column.name])
            kind_of(cells.type, column.name)
            made, found = column.encode(cells, track)
            features[:, end : end + column.width] = made
            end += column.width
            remarks += [
                f"{one_line(column.name)}: {count:,} {what}{'' if count == 1 else 's'}"
                for what, count in found.items()
                if count
            ]
        return Encoded(features, tuple(remarks))

    def encoding(self) -> Encoding:
        """Return the columns as plain data; arrays are called by the column's place."""
        arrays = {
            f"{place}/{key}": array
            for place, column in enumerate(self.columns)
            for key, array in column.arrays().items()
        }
        return Encoding("table", {"columns": [column.settings() for column in self.columns]}, arrays)

    @classmethod
    def restore(cls, encoding: Encoding) -> Self:
        """Return the encoder of these columns."""
        arrays: list[dict[str, Array]] = [{} for _ in encoding.settings["columns"]]
        for key, array in encoding.arrays.items():
            place, _, name = key.partition("/")
            arrays[int(place)][name] = array
        return cls(tuple(map(restore_column, encoding.settings["columns"], arrays)))

    def describe(self) -> list[str]:
        """Say of each column what it was taken for, and why."""
        names = [one_line(column.name) for column in self.columns]
        names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..." for name in names]
        widest = max(map(len, names), default=0)
        return [
            f"{name:<{widest}}  {column.kind:<9}  {column.why}"
            for name, column in zip(names, self.columns, strict=True)
        ]


def columns_of(encoding: Encoding) -> tuple[str, ...]:
    """Return the columns that a fitted encoder needs."""
    return tuple(column["name"] for column in encoding.settings["columns"] if column["kind"] != "left out")


def text_columns(encoding: Encoding) -> tuple[str, ...]:
    """Return the columns of texts that an encoder needs, if it is one for tables."""
    columns = encoding.settings["columns"] if encoding.encoder == "table" else []
    return tuple(column["name"] for column in columns if column["kind"] == "text")


def encode_raw(raw: Dataset, options: DataOptions, track: Track = untracked) -> Dataset:
    """Return data whose tables have become rows of features, by an encoder that was fitted to the training rows.

    Data without a table is returned as it is: it holds rows of features already, or images.
    """
    if not isinstance(raw.train.inputs, Table):
        return raw
    raw.check_trainable(options.path)
    choices = ColumnChoices(numeric=options.numeric, categorical=options.categorical, text_column=options.text_column)
    try:
        encoder = TableEncoder.fit(raw.train.inputs, choices, options.text_encoder)
        short = [column.name for column in encoder.columns if column.kind not in ("left out", "text")]
        _warn_of_labels(raw.train, short, options.path)
        parts = {name: _encoded(part, encoder, track) for name, part in raw.parts().items()}
    except InputError as error:
        raise InputError(f"{options.path}: {error}") from error
    train, val = parts.pop("train"), parts.pop("val", None)
    return replace(raw, train=train, val=val, tests=parts, encoding=encoder.encoding())


def _warn_of_labels(train: Split, columns: Sequence[str], path: str) -> None:
    """Say which columns repeat the labels, so that no label can look wrong."""
    assert isinstance(train.inputs, Table)
    if train.labels is None or len(train.labels) < _FEWEST:
        return
    classes, labels = np.unique(train.labels, return_inverse=True)
    for name in columns:
        column = train.inputs.table[name]
        if len(column.slice(0, _FIRST).unique()) > len(classes):  # most columns of numbers, without a look at all rows
            continue
        values = plain(column).dictionary_encode("encode").indices.to_numpy()  # (n,), an empty cell is a value, too
        pairs = len(np.unique(values.astype(np.int64) * len(classes) + labels))
        if pairs == len(classes) == values.max() + 1 > 1:
            warnings.warn(
                f"{path}: the column '{name}' has one value for each class, so every label agrees with it; leave "
                f"it out with --ignore {name} if it was made from the label",
                UnflipWarning,
                stacklevel=3,
            )


def _encoded(part: Split, encoder: TableEncoder, track: Track) -> Split:
    assert isinstance(part.inputs, Table)
    features = encoder.encode(part.inputs, track).features
    digests = part.digests
    if texts := text_columns(encoder.encoding()):  # different texts may have equal features
        digests = row_hashes(np.column_stack([row_hashes(features), *(_hashes(part.inputs, name) for name in texts)]))
    return replace(part, inputs=features, digests=digests)


def _hashes(cells: Table, column: str) -> Array:
    texts = (str(text or "") for text in cells.table[column].to_pylist())
    found = (int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest()) for text in texts)
    return np.fromiter(found, np.uint64, len(cells))
