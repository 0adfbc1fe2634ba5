"""Findings: what else a run found, by name, by example and by group; those that are worth a look."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from unflip.data.arrays import Array
from unflip.errors import RunFolderError
from unflip.runs.labels import SCHEMA


class Found(NamedTuple):
    """A finding about an example."""

    name: str
    reason: str
    group: int | None
    """Examples that are nearly the same have the same number."""


class Findings:
    """The flagged findings about ``count`` examples; ``table`` is that of a run, None where nothing was looked for."""

    def __init__(self, table: pa.Table | None, count: int) -> None:
        if table is None:
            table = SCHEMA.empty_table()
        table = table.filter(pa.compute.and_(table["flag"], table["index"].is_valid()))
        self._index: Array = table["index"].to_numpy().astype(np.int64)
        if len(self._index) and not 0 <= self._index.min() <= self._index.max() < count:
            raise RunFolderError(
                f"findings.csv: example {self._index.max()}, but there are {count}; two runs mixed up?"
            )
        kinds = table["finding"].combine_chunks().dictionary_encode()
        self._names: list[str] = kinds.dictionary.to_pylist()
        self._kind: Array = kinds.indices.to_numpy(zero_copy_only=False)
        self._group: Array = table["group"].fill_null(-1).to_numpy().astype(np.int64)
        self._reasons = table["reason"]
        self._by_example = np.argsort(self._index, kind="stable")
        self._sorted = self._index[self._by_example]
        self._lists = {name: self._list(kind) for kind, name in enumerate(self._names)}

    def counts(self) -> list[tuple[str, int]]:
        """Return the names of all findings, in the order of the file, and about how many examples each is."""
        return [(name, len(found)) for name, found in self._lists.items()]

    def examples(self, name: str) -> Array:
        """Return the examples of a finding (m,), in the order of the file; groups stay together."""
        return self._lists[name]

    def _list(self, kind: int) -> Array:
        rows = np.flatnonzero(self._kind == kind)
        groups = self._group[rows]
        alone = groups < 0
        _, first, which = np.unique(groups, return_index=True, return_inverse=True)
        place = np.where(alone, np.arange(len(rows)), first[which])
        found = self._index[rows[np.lexsort((self._index[rows], place))]]
        return found[np.sort(np.unique(found, return_index=True)[1])]  # each once

    def of(self, example: int) -> list[Found]:
        """Return the findings about an example."""
        start, end = np.searchsorted(self._sorted, [example, example + 1])
        return [self._found(row) for row in self._by_example[start:end].tolist()]

    def group(self, example: int) -> list[int]:
        """Return the examples of all groups that an example is in, itself included, in their order in the data."""
        start, end = np.searchsorted(self._sorted, [example, example + 1])
        members: Array = np.zeros(len(self._index), bool)
        for row in self._by_example[start:end].tolist():
            if self._group[row] >= 0:
                members |= (self._kind == self._kind[row]) & (self._group == self._group[row])
        return np.unique(self._index[members]).tolist()  # type: ignore[no-any-return]

    def _found(self, row: int) -> Found:
        group = int(self._group[row])
        return Found(self._names[self._kind[row]], self._reasons[row].as_py(), None if group < 0 else group)
