"""Encode what a loader found: cells of a table become rows of features; all else is that already, or pixels."""

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
from unflip.encoders.table import TableEncoder, text_columns
from unflip.errors import InputError
from unflip.progress import Track, untracked


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
        parts = {name: _encoded(part, encoder, track) for name, part in raw.parts().items()}
    except InputError as error:
        raise InputError(f"{options.path}: {error}") from error
    train, val = parts.pop("train"), parts.pop("val", None)
    return replace(raw, train=train, val=val, tests=parts, encoding=encoder.encoding())


def fit_table(cells: Cells, options: DataOptions) -> TableEncoder:
    """Return an encoder for a table, with what a person said of its columns."""
    choices = ColumnChoices(numeric=options.numeric, categorical=options.categorical, text_column=options.text_column)
    return TableEncoder.fit(cells, choices, options.text_encoder)


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
