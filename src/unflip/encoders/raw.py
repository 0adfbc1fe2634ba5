"""Encode what a loader found: cells of a table become rows of features; all else is that already, or pixels."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from unflip.data.cells import Cells
from unflip.data.duplicates import row_hashes
from unflip.data.encoding import Encoding
from unflip.data.files.arrays import Array
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.encoders import encoders
from unflip.encoders.base import Encoder
from unflip.encoders.columns.deciding import ColumnChoices
from unflip.encoders.columns.kinds import numbered
from unflip.encoders.columns.reading import plain
from unflip.encoders.table import TableEncoder, text_columns
from unflip.errors import InputError, UnflipWarning
from unflip.progress import Track, untracked

_FEWEST = 20  # examples below which a column may repeat the labels by chance
_FIRST = 1000  # rows that tell most columns from labels


def restore(encoding: Encoding) -> Encoder:
    """Return the encoder that an encoding describes."""
    kind: type[Encoder] = encoders.load(encoding.encoder)
    return kind.restore(encoding)


def encode_raw(raw: RawData, options: DataOptions, track: Track = untracked) -> RawData:
    """Return data whose tables have become rows of features, by an encoder that learnt from the training rows."""
    if not isinstance(raw.train.inputs, Cells):
        return raw
    raw.check_trainable(options.path)
    try:
        encoder = fit_table(raw.train.inputs, options)
        short = [column.name for column in encoder.columns if column.kind not in ("left out", "text")]
        _warn_of_labels(raw.train, short, options.path)
        parts = {name: _encoded(part, encoder, track) for name, part in raw.parts().items()}
    except InputError as error:
        raise InputError(f"{options.path}: {error}") from error
    train, val = parts.pop("train"), parts.pop("val", None)
    return replace(raw, train=train, val=val, tests=parts, encoding=encoder.encoding())


def fit_table(cells: Cells, options: DataOptions) -> TableEncoder:
    """Return an encoder for a table, with what a person said of its columns."""
    choices = ColumnChoices(numeric=options.numeric, categorical=options.categorical, text_column=options.text_column)
    return TableEncoder.fit(cells, choices, options.text_encoder)


def _warn_of_labels(train: LabelledSet, columns: Sequence[str], path: str) -> None:
    """Say which columns repeat the labels, so that no label can look wrong."""
    assert isinstance(train.inputs, Cells)
    if train.labels is None or len(train.labels) < _FEWEST:
        return
    classes, labels = np.unique(train.labels, return_inverse=True)
    for name in columns:
        column = plain(train.inputs.table[name])
        if len(column.slice(0, _FIRST).unique()) > len(classes):  # most columns of numbers, without a look at all rows
            continue
        places, values = numbered(column.combine_chunks(), name)
        if len(values) <= len(classes):  # an empty cell may be one more
            pairs = np.unique(np.column_stack([places, labels]), axis=0)
            if len(pairs) == len(classes) == len(np.unique(places)) > 1:
                warnings.warn(
                    f"{path}: the column '{name}' has one value for each class, so every label agrees with it; leave "
                    f"it out with --ignore {name} if it was made from the label",
                    UnflipWarning,
                    stacklevel=3,
                )


def _encoded(part: LabelledSet, encoder: TableEncoder, track: Track) -> LabelledSet:
    assert isinstance(part.inputs, Cells)
    features = encoder.encode(part.inputs, track).features
    digests = part.digests
    if texts := text_columns(encoder.encoding()):  # different texts may have equal features
        digests = row_hashes(np.column_stack([row_hashes(features), *(_hashes(part.inputs, name) for name in texts)]))
    return replace(part, inputs=features, digests=digests)


def _hashes(cells: Cells, column: str) -> Array:
    texts = (str(text or "") for text in cells.table[column].to_pylist())
    found = (int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest()) for text in texts)
    return np.fromiter(found, np.uint64, len(cells))
