"""Classes that are hard to tell apart: ambiguous examples, and pairs of classes that are confused; small classes."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc
from scipy.stats import beta

from unflip.data.arrays import Array
from unflip.errors import count_of
from unflip.issues.audit import AuditInput, CheckResult, of_no_example
from unflip.runs.labels import REMOVED, peoples_labels

_MIN_RATIO = 2 / 3  # of an ambiguous example's second to its first probability
_MIN_BOTH = 0.8  # sum of the two
_CONFUSED = 0.05  # fraction of a class that may be confused with another
_TIMES = 1.5  # as often as if a class's confusions were spread evenly over the others
_ALPHA = 0.01  # family-wise error rate over all pairs
_SMALL = 0.1  # of the mean number of examples per class

_Scored = tuple[float, bool, str]  # score, flag, reason


def find_ambiguous(audited: AuditInput) -> CheckResult:
    """Score examples by how close the two most likely classes are, and by how unlikely all others are.

    With p and q the probabilities of the most and second most likely class, the score is (q / p) (p + q): 1 where both
    are one half. An example is flagged if q / p is at least 2/3 and p + q at least 0.8. Reviewed examples and
    those without out-of-sample probabilities are skipped.
    """
    table = audited.table
    scored = table["out_of_sample"].to_numpy() & ~np.isnan(table["label_quality"].to_numpy())
    rows = np.flatnonzero(scored & ~table["reviewed"].to_numpy(zero_copy_only=False))
    first, second = (table[f"prob_{name}"].to_numpy()[rows].astype(float) for name in ("top1", "top2"))
    ratio, both = second / np.maximum(first, 1e-12), first + second
    names = audited.class_names
    pairs = np.stack([table[name].to_numpy()[rows] for name in ("top1", "top2")], 1)

    def reason(at: int) -> str:
        a, b = pairs[at]
        return f"{names[a]} ({first[at]:.2f}) or {names[b]} ({second[at]:.2f}): the two most likely classes"

    return CheckResult(rows, (ratio * both).clip(0, 1), (ratio >= _MIN_RATIO) & (both >= _MIN_BOTH), reason)


def find_class_issues(audited: AuditInput) -> CheckResult:
    """Score pairs of confused classes, and flag small ones; these issues belong to no example.

    *Confused*: of the n_a examples given as a, c_ab are most likely b, out of sample. A pair is flagged if in both
    directions the lower Clopper-Pearson bound of c_ab / n_a (Bonferroni-corrected to 1 % over all ordered pairs that
    occur) is above 5 %, and above 1.5 times the fraction that b would have if all confusions of a were spread evenly
    over the other classes. The score is twice the smaller fraction: 1 where half of each class is taken for the other.
    *Small*: at most a tenth of the mean class size. *Too few*: no label of the class has a quality.
    """
    table = audited.table.filter(pc.not_equal(audited.table["split"], REMOVED))
    table = table.filter(peoples_labels(table) >= 0)
    labels = peoples_labels(table)
    counts = np.bincount(labels, minlength=len(audited.class_names))
    known = np.bincount(labels[~np.isnan(table["label_quality"].to_numpy())], minlength=len(counts)) > 0
    scored = table["out_of_sample"].to_numpy() & ~table["reviewed"].to_numpy(zero_copy_only=False)
    confused = _confused(audited.class_names, labels[scored], table["top1"].to_numpy()[scored])
    return of_no_example([*confused, *_small(audited.class_names, counts, ~known & (counts > 0))])


def _confused(names: Sequence[str], given: Array, top1: Array) -> Iterator[_Scored]:
    sizes = np.bincount(given, minlength=len(names))
    wrong = given != top1
    errors = np.bincount(given[wrong], minlength=len(names))
    pairs, counts = np.unique(given[wrong] * len(names) + top1[wrong], return_counts=True)
    a, b = pairs // len(names), pairs % len(names)
    evenly = errors[a] / sizes[a] / max(1, len(names) - 1)
    lower = beta.ppf(_ALPHA / max(1, len(pairs)), counts, sizes[a] - counts + 1)
    beyond = lower > np.maximum(_CONFUSED, _TIMES * evenly)
    place = {pair: at for at, pair in enumerate(pairs.tolist())}
    for at in np.flatnonzero(a < b).tolist():
        back = place.get(int(b[at] * len(names) + a[at]))
        if back is None:
            continue
        forth, reverse = counts[at] / sizes[a[at]], counts[back] / sizes[b[at]]
        one, other = names[a[at]], names[b[at]]
        flag = bool(beyond[at] and beyond[back])
        reason = f"{one} and {other}: {forth:.0%} of {one} look like {other}, {reverse:.0%} of {other} like {one}"
        advice = "; merge them or clarify the guideline" if flag else ""
        yield min(1.0, 2 * min(forth, reverse)), flag, reason + advice


def _small(names: Sequence[str], counts: Array, unscored: Array) -> Iterator[_Scored]:
    mean = counts.sum() / max(1, (counts > 0).sum())
    for at in np.flatnonzero(unscored | ((counts > 0) & (counts <= _SMALL * mean))).tolist():
        size = f"{names[at]}: {count_of(counts[at], 'example')}"
        if unscored[at]:
            yield 1.0, True, f"{size}, too few to score; add some or merge it"
        else:
            score = float(1 - counts[at] / mean)
            yield score, True, f"{size}, where a class has {mean:,.0f} on average; add some or merge it"
