"""Kinds of columns: what each makes of its cells, and how it travels; a kind is one class."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from unflip.data.arrays import Array
from unflip.encoders.base import TextEncoder
from unflip.encoders.columns.reading import Misfit, can_be_read, is_text, measures, names
from unflip.errors import InputError
from unflip.progress import Track

if TYPE_CHECKING:
    import pyarrow as pa

Seen = Counter[str]
"""What came besides what the training examples held: kinds of cells, and how many."""
_FAR = float(np.finfo(np.float32).max)
_WANTED = {"number": "a number", "boolean": "true or false", "date": "a date such as 2024-12-31", "time": "a time"}


@dataclass(frozen=True)
class Column(ABC):
    """A column of the training examples: what it was taken for, and why, in words."""

    name: str
    kind: str
    why: str

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of features it becomes."""

    @abstractmethod
    def encode(self, cells: "pa.Array", out: Array, seen: Seen, track: Track) -> None:
        """Write the features of a block of cells into ``out`` (rows, width), which may hold anything before.

        Raise :class:`Misfit` at a cell that is of another kind.
        """

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


class LeftOut(Column):
    """A column that becomes no feature."""

    @property
    def width(self) -> int:
        """None."""
        return 0

    def encode(self, cells: "pa.Array", out: Array, seen: Seen, track: Track) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Measured(Column):
    """Numbers, booleans (0 and 1), dates and times: (x - center) / scale, and whether a cell was empty."""

    center: float
    scale: float
    fill: float
    """What an empty cell counts as."""
    gaps: bool
    """Whether the training cells had gaps; if so, a second feature is 1 where a cell is empty."""

    @property
    def width(self) -> int:
        """One, and one for gaps."""
        return 1 + self.gaps

    def encode(self, cells: "pa.Array", out: Array, seen: Seen, track: Track) -> None:
        """Write the measures, computed in float64."""
        values = finite(cells, self.kind, self.name)
        empty = np.isnan(values)
        with np.errstate(over="ignore"):  # what is beyond float32 stays finite
            values = (np.where(empty, self.fill, values) - self.center) / self.scale
            np.clip(values, -_FAR, _FAR, out=out[:, 0], casting="same_kind")
        if self.gaps:
            out[:, 1] = empty
        else:
            seen["empty cell"] += int(empty.sum())
        if self.kind == "boolean":
            seen["unknown value"] += int(((values != 0) & (values != 1)).sum())


@dataclass(frozen=True)
class Category(Column):
    """Names: one feature for each that is frequent, then one for all others, then one for empty cells; 0 or 1."""

    values: tuple[str, ...]
    of: str
    """What the training cells were read as: `text`, or if a person wanted categories of them `number`, `date`, ..."""
    other: bool
    """Whether the training cells had rare names; only then is there a feature for others."""
    gaps: bool

    @property
    def width(self) -> int:
        """One for each feature that :class:`Category` names."""
        return len(self.values) + self.other + self.gaps

    def encode(self, cells: "pa.Array", out: Array, seen: Seen, track: Track) -> None:
        """Write 1 where a cell has a feature's name."""
        import pyarrow as pa
        import pyarrow.compute as pc

        place, values = numbered(cells, self.name)
        if pa.types.is_boolean(values.type) and self.of == "text":  # a .csv with `True` alone is read as booleans
            spelling = {value.lower(): value for value in self.values}
            values = pc.if_else(values, spelling.get("true", "true"), spelling.get("false", "false"))
        found = names(values, self.of)
        known = pc.index_in(found, value_set=pa.array(self.values, found.type))
        nowhere, others = -1, len(self.values)
        column = pc.fill_null(known, others if self.other else nowhere).to_numpy(zero_copy_only=False)
        column = np.append(column, 0)  # the last place is that of empty cells
        empty = np.append(found.is_null().to_numpy(zero_copy_only=False), True)
        column[empty] = others + self.other if self.gaps else nowhere
        column, empty = column[place], empty[place]
        out[:] = 0
        rows = np.flatnonzero(column != nowhere)
        out[rows, column[rows]] = 1
        seen["empty cell"] += 0 if self.gaps else int(empty.sum())
        seen["unknown value"] += 0 if self.other else int((column == nowhere)[~empty].sum())

    def settings(self) -> dict[str, Any]:
        """Return it with its names as a list, since JSON knows no tuples."""
        return {**super().settings(), "values": list(self.values)}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Return the column with its names."""
        return cls(**{**settings, "values": tuple(settings["values"])})


@dataclass(frozen=True)
class Text(Column):
    """Texts, by a text encoder."""

    encoder: TextEncoder
    encoder_name: str
    features: int
    gaps: bool

    inner: ClassVar[str] = "encoder_settings"

    @property
    def width(self) -> int:
        """As many as the text encoder gives."""
        return self.features

    def encode(self, cells: "pa.Array", out: Array, seen: Seen, track: Track) -> None:
        """Write what the text encoder makes of the texts; an empty cell is an empty text."""
        found = texts(cells, self.name)
        if not self.gaps:
            seen["empty cell"] += found.null_count
        out[:] = self.encoder.encode(found.fill_null("").to_pylist(), track)

    def settings(self) -> dict[str, Any]:
        """Return it with the settings of its encoder."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "encoder"}
        return {**own, self.inner: dict(self.encoder.state()[0])}

    def arrays(self) -> Mapping[str, Array]:
        """Return the arrays of its encoder."""
        return self.encoder.state()[1]

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Return the column with its encoder."""
        from unflip.encoders import text_encoders

        own = {key: value for key, value in settings.items() if key != cls.inner}
        encoder = text_encoders.load(own["encoder_name"]).restore(settings[cls.inner], arrays)
        return cls(**own, encoder=encoder)


KINDS: dict[str, type[Column]] = {
    "number": Measured,
    "boolean": Measured,
    "date": Measured,
    "time": Measured,
    "category": Category,
    "text": Text,
    "left out": LeftOut,
}


def check_type(kind: "pa.DataType", name: str) -> None:
    """Refuse a column of lists, structs, bytes and the like."""
    if not can_be_read(kind):
        arrays = "; save embeddings as arrays, .npz with `train` and `train_labels`" if "list<" in str(kind) else ""
        raise InputError(
            f"column '{name}' holds {kind}, which cannot be encoded; leave it out with --ignore {name}{arrays}"
        )


def refusal(misfit: Misfit, name: str, kind: str, start: int) -> InputError:
    """Return the error for a cell of a block that begins at row ``start``; ``kind`` is what it should be."""
    wanted = "finite" if misfit.cell in ("inf", "-inf") else _WANTED[kind]
    return InputError(
        f"column '{name}', row {start + misfit.row}: '{misfit.cell}' is not {wanted}; correct or empty the cell"
    )


def finite(cells: "pa.Array", kind: str, name: str) -> Array:
    """Return cells as measures, NaN where they are empty; raise :class:`Misfit` also at infinite ones."""
    check_type(cells.type, name)
    values = measures(cells, kind)
    if (wrong := np.isinf(values)).any():
        row = int(wrong.argmax())
        raise Misfit(row, values[row])
    return values


def numbered(cells: "pa.Array", name: str) -> tuple[Array, "pa.Array"]:
    """Return for each cell its place among the values that it and others have, and these; empty cells come last."""
    import pyarrow as pa
    import pyarrow.types as types

    check_type(cells.type, name)
    if types.is_null(cells.type):
        return np.zeros(len(cells), np.int64), pa.array([], pa.string())
    if types.is_dictionary(cells.type) and len(cells.dictionary) > len(cells):
        cells = cells.dictionary_decode()
    if not types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    places: Array = cells.indices.cast(pa.int64()).fill_null(len(cells.dictionary)).to_numpy(zero_copy_only=False)
    return places, cells.dictionary


def texts(cells: "pa.Array", name: str) -> "pa.Array":
    """Return cells as texts, null where they are empty."""
    import pyarrow as pa
    import pyarrow.types as types

    check_type(cells.type, name)
    cells = names(cells.dictionary_decode() if types.is_dictionary(cells.type) else cells, "text")
    return cells if is_text(cells.type) else cells.cast(pa.string())
