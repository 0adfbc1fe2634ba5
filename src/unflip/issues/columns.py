"""Columns of tables: constant or nearly empty ones, copies of others, ones that give the label away; and slices.

A slice is a value of a column, a quarter of its numbers, or, without such columns, a cluster of the features.
"""

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy.stats import hypergeom
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import gen_batches

from unflip.data.arrays import Array
from unflip.data.columns import Table
from unflip.encoders.reading import normalize_cells, to_strings
from unflip.encoders.table import TableEncoder, gives_label_away
from unflip.errors import shorten
from unflip.issues.audit import AuditInput, CheckResult, no_issues, of_no_example
from unflip.runs.labels import REMOVED, peoples_labels

_EMPTY = 0.95  # share of empty cells
_MIN_EXAMPLES = 20
_MIN_SLICE = 30  # scored labels in a slice, and elsewhere
_ALPHA = 0.01  # family-wise error rate over all slices
_TIMES, _MORE = 2.0, 0.05  # how much higher the share of wrong labels must be: the factor, and the difference
_PARTS = 4  # of the numbers of a column
_CLUSTERS, _SAMPLE = 20, 5000  # clusters, and the examples that they are fitted to
_BLOCK = 4096
_WIDTH = 40  # characters of a name or cell to show


class _Column(NamedTuple):
    name: str
    kind: str
    cells: pa.Array  # as strings, null where empty
    numbers: Array | None  # the cells of numbers, dates and times in some unit


def _columns(audited: AuditInput) -> Iterator[_Column]:
    """Yield the columns of a table; none of other data."""
    encoding = audited.data.encoding
    parts = [audited.examples.get(name) for name, part in audited.data.parts().items() if name in ("train", "val")]
    tables = [part.table for part in parts if isinstance(part, Table)]
    if encoding is None or encoding.encoder != "table" or len(tables) < len(parts):
        return
    features, end = np.asarray(audited.features), 0
    for column in TableEncoder.restore(encoding).columns:
        cells = pa.concat_arrays([to_strings(normalize_cells(table[column.name])) for table in tables])
        measured = column.kind in ("number", "date", "time")
        yield _Column(shorten(column.name, _WIDTH), column.kind, cells, features[:, end] if measured else None)
        end += column.width


def find_column_issues(audited: AuditInput) -> CheckResult:
    """Flag columns of a table.

    *Gives the label away*: see :func:`unflip.encoders.table.gives_label_away`. *The same as another*: both have the
    same cells, or the same categories under other names. *Constant*, or *nearly empty*: 95 % of the cells.
    """
    labels, count = peoples_labels(audited.table), len(audited.table)
    labeled = labels >= 0
    issues: list[tuple[float, bool, str]] = []
    first: dict[tuple[bytes, str], str] = {}
    for name, kind, cells, numbers in _columns(audited) if count >= _MIN_EXAMPLES else ():
        encoded, empty = cells.dictionary_encode(), cells.null_count / count
        codes, values = encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary
        # Codes are in order of appearance, so categories under other names have the same; many values must be equal.
        content = codes.tobytes(), str(values.to_pylist()) if len(values) > count / 2 else ""
        if empty >= _EMPTY:
            issues.append((empty, True, f"{name}: {int(100 * empty)} % of the cells are empty; drop the column"))
        elif len(values) == 1 and not empty:
            issues.append((1.0, True, f"{name}: every cell is {shorten(str(values[0]), _WIDTH)}; drop the column"))
        elif first.setdefault(content, name) != name:
            issues.append((1.0, True, f"{name}: the same as {first[content]}; drop one of them"))
        elif kind not in ("dropped", "text") and gives_label_away(
            (codes if numbers is None else numbers)[labeled], labels[labeled]
        ):
            what = "each value occurs" if numbers is None else "ranges of values occur"
            issues.append((1.0, True, f"{name}: {what} with one class only; drop it if it was derived from the label"))
    return of_no_example(issues)


def find_slices(audited: AuditInput) -> CheckResult:
    """Flag slices whose labels are wrong far more often than others, by ``1 - label_quality``.

    Of N labels with an out-of-sample quality, K = Σ (1 - quality) are expected to be wrong; of the n in a slice, k. A
    slice is flagged if the share k / n is at least twice that elsewhere and 5 points higher, and if so many are
    unlikely by chance: P(X >= k) < 1 % / number of slices for hypergeometric X (N, K, n), Fisher's exact test with
    Bonferroni's correction. Slices have at least 30 scored labels. The score is k / n.
    """
    table = audited.table
    quality = table["label_quality"].to_numpy()
    skipped = table["reviewed"].to_numpy(zero_copy_only=False) | (np.array(table["split"].to_pylist()) == REMOVED)
    scored = table["out_of_sample"].to_numpy() & ~np.isnan(quality) & ~skipped
    total = int(scored.sum())
    if total < 2 * _MIN_SLICE:
        return no_issues()
    wrong = np.where(scored, 1 - quality, 0)
    names: list[str] = []
    sizes, sums = [], []
    for codes, called in _slices(audited):
        size = np.bincount(codes[scored], minlength=len(called))
        tested = np.flatnonzero((size >= _MIN_SLICE) & (total - size >= _MIN_SLICE))
        names += [called[code] for code in tested.tolist()]
        sizes.append(size[tested])
        sums.append(np.bincount(codes[scored], wrong[scored], len(called))[tested])
    if not names:
        return no_issues()
    n, k = np.concatenate(sizes), np.concatenate(sums)
    inside, elsewhere = k / n, (wrong.sum() - k) / (total - n)
    chance = hypergeom.sf(np.floor(k) - 1, total, round(wrong.sum()), n)
    flags = (chance < _ALPHA / len(n)) & (inside >= np.maximum(_TIMES * elsewhere, elsewhere + _MORE))
    return of_no_example(
        [
            (inside[at], True, f"{names[at]}: {_percent(inside[at])} of {n[at]:,} labels are expected to be wrong, "
             f"{_percent(elsewhere[at])} elsewhere")
            for at in np.flatnonzero(flags).tolist()
        ]
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def _slices(audited: AuditInput) -> Iterator[tuple[Array, list[str]]]:
    """Yield codes (n,) and the name of each code, for each way to cut the examples into slices."""
    columns = [*_columns(audited)]
    for name, kind, cells, numbers in columns:
        if numbers is not None:
            filled = np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))
            edges = np.unique(np.quantile(numbers[filled], np.arange(1, _PARTS) / _PARTS))
            codes = np.full(len(numbers), len(edges) + 1)
            codes[filled] = np.searchsorted(edges, numbers[filled])
            called = [_range(name, cells, numbers, codes == code) for code in range(len(edges) + 1)]
            called.append(f"{name} = empty")
        elif kind in ("category", "boolean"):
            encoded = cells.fill_null("empty").dictionary_encode()
            codes = encoded.indices.to_numpy()
            called = [f"{name} = {shorten(value, _WIDTH)}" for value in encoded.dictionary.to_pylist()]
        else:
            continue
        yield codes, called
    count = min(_CLUSTERS, len(audited.table) // (2 * _MIN_SLICE))
    if count > 1 and all(column.kind in ("dropped", "text") for column in columns):
        yield _clusters(audited, count)


def _range(name: str, cells: pa.Array, numbers: Array, within: Array) -> str:
    """Return the name of a slice by its smallest and largest cell."""
    rows = np.flatnonzero(within)
    ends = [rows[numbers[rows].argmin()], rows[numbers[rows].argmax()]] if len(rows) else []
    return f"{name} = {' to '.join(dict.fromkeys(shorten(str(cells[int(row)]), _WIDTH) for row in ends))}"


def _clusters(audited: AuditInput, count: int) -> tuple[Array, list[str]]:
    """Return the cluster of each example (n,) by k-means, and their names: the example nearest to the center."""
    features, total = audited.features, len(audited.table)
    sample = np.unique(np.linspace(0, total - 1, min(total, _SAMPLE)).round().astype(np.int64))
    rows = np.asarray(features[sample], np.float32).reshape(len(sample), -1)
    clusters = make_pipeline(StandardScaler(), KMeans(count, n_init=1, random_state=0))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # fewer distinct rows than clusters
        nearest = clusters.fit_transform(rows).argmin(0)
    blocks = (np.asarray(features[places], np.float32) for places in gen_batches(total, _BLOCK))
    codes = np.concatenate([clusters.predict(block.reshape(len(block), -1)) for block in blocks])
    ids = audited.table["id"].take(pa.array(sample[nearest])).to_pylist()
    return codes, [f"examples like {shorten(str(name), _WIDTH)}" for name in ids]
