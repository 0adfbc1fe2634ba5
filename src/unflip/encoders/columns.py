"""Columns of a table: what each one is, and the features that scikit-learn's transformers make of it.

What a column is follows from the training cells alone, never from labels, or from what a person says
(:class:`ColumnChoices`). :func:`decide` returns one of the classes below, which holds the fitted values as plain data
and rebuilds its transformers from them, so that a loaded run encodes new rows bit for bit as training did.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unflip.data.arrays import Array
from unflip.encoders.base import TextEncoder, choose_text_encoder
from unflip.encoders.reading import kind_of, measures, names, parses, plain, shown_moment, words
from unflip.errors import InputError, UnflipWarning, one_line, unknown
from unflip.progress import Track

_MOST = 50  # names of a column that have a feature of their own
_SHARE = 0.05  # of the filled cells that these names must have, else a column says too little
_WORDS = 3.0  # from this number on average, strings that mostly differ are texts
_LOOKED_AT = 20_000  # rows, evenly spaced, that tell texts from names
_TEXTS = 1 << 15  # texts that are encoded at a time
_RUNNING = 10  # fewest rows in which consecutive numbers are no coincidence
_DENSE = 50  # fewest rows in which distinct whole numbers that fill half of their range are none
_ID_NAME = re.compile(r"(?i:(?:^|[\W_])(?:id|idx|index|key|guid|uuid)$)|[a-z](?:Id|ID)$")  # not `paid`
_LOCAL = r"^[^\w\s]{0,2}\s?(\d[\d.,' ]*|\d{1,4}[./-]\s?\w{1,9}[./-]\s?\d{1,4}\b.*)\s?([%\p{Sc}]|[A-Z]{3})?$"
_HALF, _NEARLY_ALL = 0.5, 0.9  # of names that look like numbers: told in the description; told in a warning
_SEVERAL = 5  # fewest names that may be meant as numbers
_LISTED, _SHOWN = 4, 20  # names that a description lists, and most characters of each
_EXACT = 2.0**53  # up to here float64 tells whole numbers apart
_FAR = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ColumnChoices:
    """What a person says of columns, by their names; the others are decided from their cells."""

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text_column: tuple[str, ...] = ()

    def of(self, name: str) -> str | None:
        """Return which of them names a column."""
        return next((field.name for field in fields(self) if name in getattr(self, field.name)), None)

    def check(self, columns: Iterable[str]) -> None:
        """Refuse names of columns that are not there, and a column that two choices name."""
        columns, chosen = list(columns), dict[str, str]()
        for field in fields(self):
            flag = f"--{field.name.replace('_', '-')}"
            for name in getattr(self, field.name):
                if name not in columns:
                    raise InputError(f"{flag}: {unknown('column', name, columns)}")
                if chosen.setdefault(name, flag) != flag:
                    raise InputError(f"column '{name}' is named by {chosen[name]} and {flag}; name it once")


@dataclass(frozen=True)
class Column:
    """A column of the training examples: what it was taken for, and why, in words.

    This class itself stands for a column that is left out; the classes below become features.
    """

    name: str
    kind: str
    why: str

    @property
    def width(self) -> int:
        """The number of features it becomes."""
        return 0

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Return the features (n, width) of cells from :func:`~unflip.encoders.reading.plain`.

        The counter says what came besides what the training examples held: kinds of cells, and how many.
        """
        return np.empty((len(cells), 0)), Counter()

    def settings(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def arrays(self) -> Mapping[str, Array]:
        """Return what JSON would hold badly."""
        return {}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Return the column that :meth:`settings` and :meth:`arrays` described."""
        return cls(**settings)


@dataclass(frozen=True)
class Measured(Column):
    """Numbers, booleans (0 and 1), dates and times, standardized; and whether a cell was empty.

    Attributes:
        center: mean of the training cells (``mean_`` of scikit-learn's ``StandardScaler``); 0 for a boolean.
        scale: their standard deviation (``scale_``); 1 for a boolean.
        fill: what an empty cell counts as: the median, or the more frequent one of 0 and 1.
        gaps: whether the training cells had gaps; if so, a second feature is 1 where a cell is empty.
    """

    center: float
    scale: float
    fill: float
    gaps: bool

    @property
    def width(self) -> int:
        """One, and one for gaps."""
        return 1 + self.gaps

    @cached_property
    def _transformers(self) -> tuple[Any, Any]:
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler()
        scaler.mean_, scaler.scale_ = np.array([self.center]), np.array([self.scale])
        fill = (self.fill - self.center) / self.scale
        imputer = SimpleImputer(strategy="constant", fill_value=fill, add_indicator=self.gaps)
        return scaler, imputer.fit([[0.0], [np.nan]])

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Return the measures, computed in float64; what is beyond the range of float32 stays finite."""
        values = measures(cells, self.kind, self.name)
        scaler, imputer = self._transformers
        features = imputer.transform(scaler.transform(np.clip(values, -_FAR, _FAR)[:, None]))
        empty = 0 if self.gaps else int(np.isnan(values).sum())
        return np.clip(features, -_FAR, _FAR), Counter({"empty cell": empty})


@dataclass(frozen=True)
class Category(Column):
    """Names: a feature of 0 and 1 for each frequent one, then one for all others (scikit-learn's ``OneHotEncoder``).

    Attributes:
        values: the frequent names, sorted; an empty cell has the empty name.
        rare: one of the training examples' rare names, which share a feature with names that are not known; None if
            there were none, so that an unknown name has zeros.
        gaps: whether the training cells had gaps.
    """

    values: list[str]
    rare: str | None
    gaps: bool

    @property
    def width(self) -> int:
        """One for each frequent name, and one for rare ones."""
        return len(self.values) + (self.rare is not None)

    @cached_property
    def _encoder(self) -> Any:
        from sklearn.preprocessing import OneHotEncoder

        seen = [*self.values, *self.values, *([] if self.rare is None else [self.rare])]
        encoder = OneHotEncoder(
            handle_unknown="infrequent_if_exist", min_frequency=2, sparse_output=False, dtype=np.float32
        )
        return encoder.fit(np.array(seen, object)[:, None])

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Return 1 where a cell has a feature's name."""
        found = _filled(names(cells))
        if pa.types.is_boolean(cells.type):  # a .csv with `True` alone is read as booleans
            spelling = {value.lower(): value for value in self.values}
            found = np.array([spelling.get(name, name) for name in found], object)
        features: Array = self._encoder.transform(found[:, None])
        empty = found == ""
        unknown_names = ~features.any(1) & ~empty
        gaps = 0 if self.gaps else int(empty.sum())
        return features, Counter({"empty cell": gaps, "unknown value": int(unknown_names.sum())})


@dataclass(frozen=True)
class Text(Column):
    """Texts, by a text encoder."""

    encoder: TextEncoder
    encoder_name: str
    gaps: bool

    @property
    def width(self) -> int:
        """As many as the text encoder gives."""
        return self.encoder.width

    def encode(self, cells: pa.Array, track: Track) -> tuple[Array, Counter[str]]:
        """Return what the text encoder makes of the texts; an empty cell is an empty text."""
        found = names(cells)
        features = np.empty((len(found), self.width), np.float32)
        for start in range(0, len(found), _TEXTS):
            texts = found.slice(start, _TEXTS).fill_null("").to_pylist()
            features[start : start + _TEXTS] = self.encoder.encode(texts, track)
        return features, Counter({"empty cell": 0 if self.gaps else found.null_count})

    def settings(self) -> dict[str, Any]:
        """Return it with the settings of its encoder."""
        return {**super().settings(), "encoder": dict(self.encoder.state()[0])}

    def arrays(self) -> Mapping[str, Array]:
        """Return the arrays of its encoder."""
        return self.encoder.state()[1]

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Return the column with its encoder."""
        _, encoder = choose_text_encoder(settings["encoder_name"])
        return cls(**{**settings, "encoder": encoder.restore(settings["encoder"], arrays)})


def restore_column(settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Column:
    """Return the column that its settings and arrays describe."""
    kinds: dict[str, type[Column]] = {"category": Category, "text": Text, "left out": Column}
    return kinds.get(settings["kind"], Measured).restore(settings, arrays)


def decide(name: str, column: pa.ChunkedArray, choice: str | None, text_encoder: str | None) -> Column:
    """Return what a column is, and how it is encoded.

    Args:
        name: the column's name; one that ends in `id` or the like may make distinct numbers an identifier.
        column: the training cells.
        choice: the field of :class:`ColumnChoices` that names it.
        text_encoder: which one encodes texts; None for the default.
    """
    cells = plain(column)
    kind = kind_of(cells.type, name)
    if choice == "categorical":
        return _category(name, cells, asked=True)
    if choice == "text_column" or (kind == "text" and choice is None and _are_texts(cells)):
        return _text(name, cells, text_encoder)
    if kind == "text":
        values = cells.unique()
        found = next((kind for kind in ("number", "date", "time") if parses(values, kind)), None)
        if found is None and choice is None:
            return _category(name, cells, asked=False)
        kind = found or "number"
    return _measured(name, cells, kind, asked=choice == "numeric")


def _left_out(name: str, why: str) -> Column:
    return Column(name, "left out", why)


def _measured(name: str, cells: pa.Array, kind: str, *, asked: bool) -> Column:
    """Return a column of measures; numbers that were ``asked`` for are never taken for booleans or identifiers."""
    from sklearn.preprocessing import StandardScaler

    values = measures(cells, kind, name)
    filled = values[~np.isnan(values)]
    gaps = len(values) - len(filled)
    if not len(filled):
        return _left_out(name, "all cells are empty")
    low, high = float(filled.min()), float(filled.max())
    if low == high and not gaps:
        return _left_out(name, f"always {_shown(low, kind)}")
    if kind == "number" and not asked:
        if bool(((filled == 0) | (filled == 1)).all()):
            fill = float(2 * filled.sum() > len(filled))
            why = f"{_count(gaps, 'empty cell')} count{'s' * (gaps == 1)} as {fill:.0f}" if gaps else "only 0 and 1"
            return Measured(name, "boolean", why, center=0.0, scale=1.0, fill=fill, gaps=gaps > 0)
        if not gaps and (reason := _identifier(name, filled, low, high)) is not None:
            return _left_out(name, reason)
    scaler = StandardScaler().fit(np.clip(filled, -_FAR, _FAR)[:, None])
    median = float(np.clip(np.median(np.clip(filled, -_FAR, _FAR)), low, high))
    why = f"{_shown(low, kind)} to {_shown(high, kind)}"
    if gaps:
        why = f"{_count(gaps, 'empty cell')} get{'s' * (gaps == 1)} the median, {_shown(median, kind)}"
    center, scale = float(scaler.mean_[0]), float(scaler.scale_[0])
    return Measured(name, kind, why, center=center, scale=scale, fill=median, gaps=gaps > 0)


def _identifier(name: str, values: Array, low: float, high: float) -> str | None:
    """Say why distinct whole numbers number the rows rather than measure something, if they do."""
    count, span = len(values), high - low + 1
    whole = span < _EXACT and (values == np.floor(values)).all()
    if count < 2 or not whole or len(np.unique(values)) < count:
        return None
    if count >= _RUNNING and span == count:
        return f"looks like an index: consecutive numbers from {low:.0f} to {high:.0f}"
    if count >= _DENSE and span <= 2 * count:
        return f"looks like an index: {count:,} distinct numbers from {low:.0f} to {high:.0f}"
    if count >= _RUNNING and (steps := np.diff(values))[0] > 0 and bool((steps == steps[0]).all()):
        return f"looks like an index: it grows by {steps[0]:.0f} in each row"
    if _ID_NAME.search(name):
        return f"looks like an identifier, by its name and {count:,} distinct numbers"
    return None


def _category(name: str, cells: pa.Array, *, asked: bool) -> Column:
    """Return a column of names, unless too few cells have a name that is frequent."""
    from sklearn.preprocessing import OneHotEncoder

    found = _filled(names(cells))
    sizes = Counter(found.tolist())
    gaps = sizes.pop("", 0)
    count, distinct = len(found) - gaps, len(sizes)
    if not distinct:
        return _left_out(name, "all cells are empty")
    if distinct == 1 and not gaps:
        return _left_out(name, f"always {_cell(found[0])}")
    fewest = max(2, min(10, count // 100), count // 10_000)  # 2 of up to 200 cells, then 1 %, at most 10, but 0.01 %
    for min_frequency in (fewest, 1) if asked else (fewest,):
        encoder = OneHotEncoder(min_frequency=min_frequency, max_categories=_MOST + 1).fit(found[:, None])
        rare = [] if encoder.infrequent_categories_[0] is None else encoder.infrequent_categories_[0].tolist()
        values = sorted({*sizes, *([""] if gaps else [])} - {*rare})
        if any(values):
            break
    kept = [value for value in values if value]
    share = sum(sizes[value] for value in kept) / count
    numeric = 0.0 if asked else _share_of_numbers(sizes)
    hint = f"{numeric:.0%} of them look like numbers or dates: write these as 1234.5 or 2024-12-31, empty the others"
    if not asked and (distinct == count > 1 or share < _SHARE):
        if numeric >= _HALF:
            return _left_out(name, f"{distinct:,} distinct names; {hint}")
        if distinct == count:
            return _left_out(name, f"looks like an identifier: {_count(distinct, 'distinct name')}")
        frequent = f"the {len(kept)} most frequent in only {share:.1%} of the cells" if kept else "none is frequent"
        return _left_out(name, f"{distinct:,} distinct names, {frequent}; --categorical {name} to use it")
    why = f"{_count(distinct, 'value')}: {', '.join(map(_cell, kept[:_LISTED]))}{', ...' * (distinct > _LISTED)}"
    if distinct - len(kept) > 1:
        why += f"; the {distinct - len(kept):,} rarest are one feature"
    why += f"; {_count(gaps, 'empty cell')}" if gaps else ""
    why += f"; {hint}" if numeric >= _HALF else ""
    if numeric >= _NEARLY_ALL and distinct >= _SEVERAL:
        told = f"column '{name}': {distinct:,} values are taken for names; {hint}, or say --categorical {name}"
        warnings.warn(told, UnflipWarning, stacklevel=2)
    return Category(name, "category", why, values=values, rare=rare[0] if rare else None, gaps=gaps > 0)


def _share_of_numbers(found: Iterable[str]) -> float:
    """Return the share of names that look like numbers or dates in a local spelling."""
    return float(np.mean(pc.match_substring_regex(pa.array(found), _LOCAL).to_numpy(zero_copy_only=False)))


def _are_texts(cells: pa.Array) -> bool:
    """Whether strings have several words and mostly differ."""
    sample = _sample(cells)
    return words(sample) >= _WORDS and 2 * len(sample.unique()) >= len(sample)


def _sample(cells: pa.Array) -> pa.Array:
    """Return the filled ones of cells that are evenly spaced, as texts."""
    if len(cells) > _LOOKED_AT:
        cells = cells.take(np.linspace(0, len(cells) - 1, _LOOKED_AT).astype(np.int64))
    return names(cells).drop_null()


def _text(name: str, cells: pa.Array, text_encoder: str | None) -> Column:
    """Return a column of texts with an encoder that was fitted to them."""
    found = names(cells)
    empty = found.null_count
    if empty == len(found):
        return _left_out(name, "all cells are empty")
    if len(found.unique()) == 1:
        return _left_out(name, f"always {_cell(found[0].as_py())}")
    encoder_name, kind = choose_text_encoder(text_encoder)
    encoder = kind.fit(found.fill_null("").to_pylist())
    length = words(_sample(cells))
    why = f"{length:.0f} words on average" if length >= 1.5 else "about one word each"
    why += f"; {encoder.width} features by {encoder_name}" + (f"; {_count(empty, 'empty cell')}" if empty else "")
    return Text(name, "text", why, encoder=encoder, encoder_name=encoder_name, gaps=empty > 0)


def _filled(found: pa.Array) -> Array:
    """Return names as an array of Python's strings, the empty one for empty cells."""
    filled: Array = found.fill_null("").to_numpy(zero_copy_only=False)
    return filled


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shown(measure: float, kind: str) -> str:
    return f"{measure:,.6g}" if kind == "number" else shown_moment(measure, kind)


def _cell(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 3]}..."
