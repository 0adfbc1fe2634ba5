"""apply: a run's data with corrected labels, as files in its own format or as an object in memory."""

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from unflip.api.options import ApplyOptions
from unflip.data.arrays import Array
from unflip.data.dataset import Dataset, joined_names
from unflip.data.files import is_image
from unflip.data.labeling import content_kind, contents_of
from unflip.data.labels import LABEL, LISTED, REMOVE, REVIEWED, before_apply, read_reviewed
from unflip.data.loaders import load_raw, target_suffixes
from unflip.data.matching import Keys, Matcher
from unflip.data.memory import InMemory, as_table, in_memory, new_labels, relabeled, with_columns_of, write_data
from unflip.data.options import DataOptions
from unflip.data.rewrite import CHANGES, MARKER, NewLabels, by_row, class_numbers, find_changes, new_cells, rewrite
from unflip.encoders.table import with_contents
from unflip.errors import ConfigError, InputError, UnflipWarning, count_of
from unflip.files import OwnedFolder
from unflip.review.examples import Examples
from unflip.review.review import finished_run, saved_decisions, settled
from unflip.runs import layout
from unflip.runs.config import check_section
from unflip.runs.folder import Run
from unflip.runs.labels import label_issue_mask, write_table
from unflip.runs.layout import check_output

_REASONS = (REVIEWED, LISTED, "label issue", "suggested label")  # of a change
_REVIEWED, _LISTED, _ISSUE, _FILLED = range(len(_REASONS))


@dataclass(frozen=True)
class Applied:
    """Corrected data."""

    data: Any = field(repr=False)
    """The file or folder that was written, or the corrected copy of data in memory."""
    changes: pa.Table = field(repr=False)
    """One row per change or review decision, with the columns ``index``, ``path`` or ``id``, ``given_label``,
    ``label``, ``decision`` (``label`` or ``remove``), ``reason``, ``label_quality`` and ``digest``; also written as
    changes.csv."""
    relabeled: int
    """Number of labels that changed."""
    dropped: int
    """Number of examples that were dropped."""
    missing: int
    """Number of the run's changes for which the data has no example, for example because they were applied before."""
    listed: Path | None = None
    """The file that lists the changes, if one was written."""


def apply(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    data: Any = None,
    label_column: str | None = None,
    force: bool = False,
    **options: Any,
) -> Applied:
    """Write a corrected copy of the data of a run; the original data is never changed.

    Review decisions take precedence: chosen labels are set, and removed examples are dropped. All other label issues
    get the suggested label. Examples are matched by path, id or content, so the data may have grown or been reordered.

    Args:
        run: a finished run, or its folder.
        out: the file to write, in the format of the data (.csv, .parquet, .jsonl or .npz), or a new folder for class
            folders and Hugging Face data sets. Not needed for data in memory.
        data: the current location of the data, if it has moved; or the data itself, which is a data frame, an Arrow
            table, a Hugging Face data set, or a pair of examples and labels. In this case, a corrected copy is
            returned.
        label_column: label column of data in memory; by default ``label``.
        force: replace the output of an earlier call.
        options: see ``unflip.api.options.ApplyOptions`` and ``unflip apply --help``.
    """
    run, chosen = finished_run(Path(run)) if isinstance(run, str | Path) else run, check_section(ApplyOptions, options)
    fixes, memory = corrections(run, chosen), memory_for(run, data, label_column)
    with _opened(run, data, memory) as (raw, place):
        new, changes, missing = _place(run, raw, place.path, fixes)
        relabeled_count = sum(int((part.changed & part.keep).sum()) for part in new.values())
        dropped = sum(int((~part.keep).sum()) for part in new.values())
        fixed: Any = out
        listed: Path | None = None
        if memory is not None:
            fixed = relabeled(memory, by_row(raw, new, run.class_names), run.class_names, chosen.keep_given_as)
        if out is not None and hasattr(fixed, "save_to_disk"):
            OwnedFolder(Path(out), MARKER).check()
            fixed.save_to_disk(str(out))
        elif out is not None:
            fixed = Path(out)
            changes, listed = _write(raw, place, fixed, new, changes, run.class_names, chosen, force=force)
        elif memory is None:
            raise ConfigError("out: name the file or folder to write")
    return Applied(fixed, changes, relabeled_count, dropped, missing, listed)


def _write(
    raw: Dataset,
    place: DataOptions,
    out: Path,
    new: Mapping[str, NewLabels],
    changes: pa.Table,
    classes: Sequence[str],
    chosen: ApplyOptions,
    *,
    force: bool,
) -> tuple[pa.Table, Path]:
    """Write the data and its changes; return these, with the new paths of files that have moved, and their file."""
    suffixes, folder = target_suffixes(place), OwnedFolder(out, MARKER)
    listed = out.with_suffix(f".{CHANGES}") if suffixes else out / CHANGES
    if suffixes:
        for path, kinds in ((out, suffixes), (listed, ())):
            check_output(path, kinds, force=force, inputs=[place.path])
    else:
        folder.check()
        if folder.is_marked and not force:
            raise ConfigError(f"--out {out}: already holds corrected data; replace it with --force")
        if folder.is_marked:
            folder.check_all_ours()
    moved = rewrite(raw, place, out, new, classes, keep_given_as=chosen.keep_given_as, copy=chosen.copy_files)
    if moved or not suffixes:
        changes = changes.append_column("new_path", pa.array([moved.get(name) for name in changes[1].to_pylist()]))
    write_table(listed, changes)
    return changes, listed


@dataclass(frozen=True)
class Corrections:
    """What becomes of the n examples of a run.

    Attributes:
        keys: what identifies them, with their given labels.
        labels: their new labels (n,); the given ones where nothing changes.
        keep: mask of the examples to keep (n,).
        reasons: index of the reason of a change (n,), -1 without one.
        quality: label quality (n,).
    """

    keys: Keys
    labels: Array
    keep: Array
    reasons: Array
    quality: Array

    @property
    def changed(self) -> Array:
        """Mask of the examples that are relabeled or dropped (n,)."""
        return np.asarray(~self.keep | (self.labels != self.keys.given))


def corrections(run: Run, chosen: ApplyOptions) -> Corrections:
    """Return the new labels of a run's examples: listed or reviewed ones, then suggested ones."""
    table, examples = run.labels(), Examples(run)
    given, quality = examples.given.copy(), table["label_quality"].to_numpy()
    labels, keep, reasons = given.copy(), np.ones(len(given), bool), np.full(len(given), -1)
    if chosen.labels is not None:
        if isinstance(chosen.labels, str | Path):
            listed = read_reviewed(Path(chosen.labels), examples.keys, f"labels {chosen.labels}")
        elif (frame := as_table(chosen.labels, always=True)) is not None:
            listed = read_reviewed(frame.table, examples.keys, "labels")
        else:
            raise InputError("labels: give a table with the columns index, path or id, and label")
        found, removed = listed.labels.numpy(), listed.removed.numpy()
        labels, keep = np.where(found >= 0, found, given), ~removed
        reasons[(found >= 0) | removed] = _LISTED
        return Corrections(examples.keys, labels, keep, reasons, quality)
    with saved_decisions(run.folder, examples.keys) as decisions:
        reviewed = settled(examples, decisions)
    for index, label in reviewed.items():
        labels[index], keep[index] = (given[index], False) if label is None else (label, True)
        reasons[index] = _REVIEWED
    if chosen.only is None:
        issues = label_issue_mask(table) & (reasons < 0)
        if chosen.min_confidence is not None:  # labels without a quality stay
            issues &= 1 - quality >= chosen.min_confidence
        reasons[issues] = _ISSUE
        if chosen.drop == "label-issues":
            keep[issues] = False
        else:
            labels[issues] = examples.suggested[issues]
        if chosen.fill_above is not None:
            likely = table["prob_suggested"].to_numpy() >= chosen.fill_above
            filled = likely & (given < 0) & (reasons < 0)
            labels[filled], reasons[filled] = examples.suggested[filled], _FILLED
    return Corrections(examples.keys, labels, keep, reasons, quality)


def memory_for(run: Run, data: Any, label_column: str | None = None) -> InMemory | None:
    """Return data in memory, with the label column and the ignored columns of a run's own; None for a path."""
    memory = in_memory(data, label_column)
    return memory and with_columns_of(memory, run.folder / layout.DATA, run.config.common.data)


@contextmanager
def _opened(run: Run, data: Any, memory: InMemory | None) -> Iterator[tuple[Dataset, DataOptions]]:
    """Read the data that a run is applied to; data in memory is written to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="unflip-", ignore_cleanup_errors=True) as folder:
        options = run.own_data(data) if memory is None else DataOptions(path=str(write_data(memory, Path(folder))))
        yield load_raw(options), options


def _place(run: Run, raw: Dataset, path: str, fixes: Corrections) -> tuple[dict[str, NewLabels], pa.Table, int]:
    """Find a run's examples in data; return the new labels of each split, the changes, and how many are missing."""
    keys = keys_of(raw, run.class_names)
    own = keys.given
    if run.config.common.data.changes is not None and (changes := find_changes(path)) is not None:
        keys = keys._replace(given=before_apply(changes, keys)[0].numpy())
    new, source, missing = _match(run, keys, fixes, own)
    cut = len(raw.train.inputs)
    splits = {"train": NewLabels(*(column[:cut] for column in new))}
    if raw.val is not None:
        splits["val"] = NewLabels(*(column[cut:] for column in new))
    return splits, _list_changes(run, keys, new, fixes, source), missing


def _match(run: Run, keys: Keys, fixes: Corrections, own: Array) -> tuple[NewLabels, Array, int]:
    """Return the new labels of examples (n,), the row of each in the run (n,), -1 where nothing changes, and how many
    of the run's changes concern examples that are not in the data, or that several may be.

    Where the data's own labels (n,) are earlier suggestions, the given ones take their place. A suggested label does
    not replace one that has changed since the run. Where the run's labels came from another file or are those of a
    majority, all of them are written.
    """
    elsewhere = run.config.common.data.labels is not None or layout.ANNOTATORS in run.owned()
    new = NewLabels(own, np.where(keys.given == own, -1, keys.given), np.ones(len(own), bool))
    rows = np.flatnonzero(fixes.changed | (fixes.reasons == _REVIEWED) | elsewhere)
    matcher, source, missing = Matcher(keys), np.full(len(keys.given), -1), 0
    for row in rows.tolist():
        place = matcher.find(fixes.keys.reference(row))
        if place is None:
            missing += int(fixes.changed[row])
            continue
        unchanged = elsewhere or keys.given[place] in (-1, fixes.keys.given[row])
        if unchanged or fixes.reasons[row] < _ISSUE:
            new.new[place], new.keep[place], source[place] = fixes.labels[row], fixes.keep[row], row
    return new, source, missing


def keys_of(raw: Dataset, classes: Sequence[str]) -> Keys:
    """Return what identifies the training and validation examples of data; given labels of other classes are -1."""
    raw = with_contents(raw)
    parts = [part for part in (raw.train, raw.val) if part is not None]
    given = [class_numbers(part.labels, len(part.inputs), classes, raw.class_names) for part in parts]
    contents = [found for part in parts if (found := contents_of(part)) is not None]
    kind = content_kind(raw, raw.train) if len(contents) == len(parts) else ""
    digests = [f"{kind}-{value:016x}" for value in np.concatenate(contents).tolist()] if kind else None
    return Keys(joined_names(raw.train, raw.val), digests, np.concatenate(given), [*classes, ""])


def _list_changes(run: Run, keys: Keys, new: NewLabels, fixes: Corrections, source: Array) -> pa.Table:
    """Return the list of changes and decisions, in the order of the data."""
    labels, is_reviewed = np.where(new.new < 0, new.own, new.new), fixes.reasons[source] == _REVIEWED
    rows = np.flatnonzero((source >= 0) & ((labels != keys.given) | ~new.keep | is_reviewed))
    names, origin = pa.array([*run.class_names, None], pa.string()), source[rows]
    dropped = ~new.keep[rows]
    ids = [str(row) for row in rows.tolist()] if keys.ids is None else [keys.ids[row] for row in rows.tolist()]
    digests = fixes.keys.digests
    columns = {
        "index": rows,
        "path" if ids and is_image(ids[0]) else "id": pa.array(ids, pa.string()),
        "given_label": names.take(pa.array(np.where(keys.given[rows] < 0, len(names) - 1, keys.given[rows]))),
        "label": names.take(pa.array(np.where(dropped, len(names) - 1, labels[rows]))),
        "decision": pa.array(np.where(dropped, REMOVE, LABEL).tolist(), pa.string()),
        "reason": pa.array([_REASONS[reason] for reason in fixes.reasons[origin].tolist()], pa.string()),
        "label_quality": pa.array(fixes.quality[origin], from_pandas=True),
        "digest": pa.array([None if digests is None else digests[row] for row in origin.tolist()], pa.string()),
    }
    return pa.table(columns)


def labels_for(run: Run, dataset: Any, *, label_column: str | None = None, **options: Any) -> Array:
    """Return the corrected labels of a data set, in its own order and class numbers.

    Args:
        run: a finished run.
        dataset: a PyTorch data set with ``samples`` or ``targets``, as those of torchvision, a ``TensorDataset``, or a
            ``Subset`` of one; a data set of Hugging Face; a data frame or an Arrow table; a pair of examples and
            labels.
        label_column: of frames and Hugging Face data sets; by default ``label``.
        options: as for :func:`apply`.

    Returns:
        Labels (n,) as the data set has them; -1, or None for names, where the example is to be dropped.
    """
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # torch's Subset
        whole = labels_for(run, dataset.dataset, label_column=label_column, **options)
        return whole[np.asarray(dataset.indices)]  # type: ignore[no-any-return]
    fixes, classes = corrections(run, check_section(ApplyOptions, options)), run.class_names
    if isinstance(dataset, dict):  # a DatasetDict
        raise InputError(f"dataset: several splits; give one of them, such as dataset['{next(iter(dataset))}']")
    if hasattr(dataset, "tensors"):
        dataset = tuple(tensor.detach().cpu() for tensor in dataset.tensors[:2])
    if hasattr(dataset, "targets") or hasattr(dataset, "samples"):
        files = getattr(dataset, "samples", [])
        targets = np.asarray([target for _, target in files] if files else dataset.targets)
        own = [str(name) for name in getattr(dataset, "classes", classes)]
        if targets.dtype.kind not in "iu" or not -1 <= targets.min(initial=0) <= targets.max(initial=0) < len(own):
            raise InputError(f"dataset: its targets must be class numbers from 0 to {len(own) - 1}, or -1 for no label")
        if not {*own} & {*classes}:
            raise InputError(f"dataset: none of its classes, such as {own[0]}, is one of the run, such as {classes[0]}")
        numbers = np.array([classes.index(name) if name in classes else -1 for name in [*own, ""]])
        ids = _relative([path for path, _ in files], run.own_data().path, getattr(dataset, "root", ".")) or None
        new, _, missing = _match(run, Keys(ids, None, numbers[targets], [*classes, ""]), fixes, numbers[targets])
        cells = new_cells(targets, new, [own.index(name) if name in own else -1 for name in classes])
    elif (memory := memory_for(run, dataset, label_column)) is not None:
        with _opened(run, None, memory) as (raw, place):
            placed, _, missing = _place(run, raw, place.path, fixes)
            new = by_row(raw, placed, classes)
        cells = new_labels(memory, new, classes)
    else:
        raise InputError(f"dataset: a {type(dataset).__name__}; give the data set itself, not where it is")
    if 0 < fixes.changed.sum() <= missing:
        text = f"none of the run's {count_of(missing, 'changed label')} is of an example in it; is it the same data?"
        warnings.warn(f"dataset: {text}", UnflipWarning, stacklevel=3)
    if cells.dtype.kind in "biuf":
        return np.where(new.keep, cells, -1)
    return np.where(new.keep, cells.astype(object), None)  # type: ignore[call-overload, no-any-return]


def _relative(paths: Sequence[str], *roots: str) -> list[str]:
    """Return paths relative to the first of the folders that they are in."""
    bases = [Path(root).absolute() for root in roots]
    files = [Path(path).absolute() for path in paths]
    inside = [[file.relative_to(base).as_posix() for base in bases if file.is_relative_to(base)] for file in files]
    return [names[0] if names else str(file) for names, file in zip(inside, files, strict=True)]
