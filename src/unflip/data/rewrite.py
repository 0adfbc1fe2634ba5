"""Rewriting: a data set with other labels and fewer examples, in its own format; the original is never changed."""

import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from numbers import Number
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from unflip.data.arrays import Array, write_npz
from unflip.data.dataset import Dataset
from unflip.data.files import ImageFiles
from unflip.data.labels import LABEL, are_names, as_names, declared_classes, whole_number
from unflip.data.loaders import ARRAYS, FOLDERS, find_loader
from unflip.data.loaders.arrays import BESIDE, LABELS, read_arrays
from unflip.data.loaders.class_folders import find_parts
from unflip.data.options import DataOptions
from unflip.errors import ConfigError, InputError, RunFolderError
from unflip.files import PARTIAL, OwnedFolder, naming_target, write_atomically, write_text

MARKER, CHANGES = "apply.json", "changes.csv"


class NewLabels(NamedTuple):
    """The labels that n examples get."""

    own: Array
    """Their class numbers in the data (n,), -1 if they have none or one of another class."""
    new: Array
    """Their new class numbers (n,), -1 where the label stays."""
    keep: Array
    """Mask of the examples to keep (n,)."""

    @property
    def changed(self) -> Array:
        """Mask of the labels that change (n,)."""
        return np.asarray((self.new >= 0) & (self.new != self.own))


def find_changes(data: str) -> Path | None:
    """Return the list of changes that ``apply`` wrote with the data, if it did."""
    for path in (Path(data, CHANGES), Path(data).with_suffix(f".{CHANGES}")):
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            if '"given_label","label","decision","reason"' in file.readline():
                return path
    return None


def class_numbers(labels: Array | None, count: int, classes: Sequence[str], declared: Sequence[str] | None) -> Array:
    """Return the class numbers (count,) of labels; -1 without a label, or with one that is none of ``classes``.

    Args:
        labels: names or numbers.
        count: the number of examples.
        classes: the names of the classes.
        declared: the classes that the data declares, if it does: numbers count these from 0.
    """
    if labels is None:
        return np.full(count, -1)
    known = {name: number for number, name in enumerate(classes)}
    values, places = np.unique(labels, return_inverse=True)
    names = np.asarray(as_names(values)).tolist()
    if declared is not None and not are_names(labels):
        names = [declared[value] if 0 <= value < len(declared) else "" for value in map(int, values.tolist())]
    numbers: Array = np.array([known.get(name, -1) for name in names], np.int64)
    return numbers[places]


def rewrite(
    raw: Dataset,
    options: DataOptions,
    out: Path,
    labels: Mapping[str, NewLabels],
    classes: Sequence[str],
    *,
    keep_given_as: str | None = None,
    copy: bool = False,
) -> dict[str, str]:
    """Write the data with other labels to ``out``; splits without new labels are unchanged.

    Args:
        raw: the data, as loaded.
        options: with which it was loaded.
        out: a file or, for class folders, a new or empty folder, or one that an earlier call wrote, which is replaced
            when everything is written.
        labels: by split.
        classes: the names of the classes.
        keep_given_as: tables and arrays: a further column for the data's own labels.
        copy: class folders: copy files instead of linking them.

    Returns:
        The new name of each file that has another one in the new data.
    """
    path, loader = Path(options.path), find_loader(options)
    if loader in FOLDERS:
        if keep_given_as is not None:
            raise ConfigError("--keep-given-as is for tables and arrays; changes.csv has the given labels")
        return _write_folders(raw, path, out, labels, classes, copy=copy)
    if copy:
        raise ConfigError("--copy-files is for folders of images or texts")
    if loader not in ARRAYS:
        return _write_table(raw, path, out, labels, classes, keep_given_as)
    _write_arrays(options, out, labels, classes, keep_given_as)
    return {}


def new_cells(given: Array, labels: NewLabels, values: Sequence[Any]) -> Array:
    """Return labels (n,) after a change: a class is called as in the data, or if it has none, by ``values``."""
    cells, changed = given.astype(object), labels.changed
    if any(isinstance(cell, Number) and cell == cell for cell in cells.tolist()):
        values = [value if (number := whole_number(value)) is None else number for value in values]
    cell_of = dict(enumerate(values)) | dict(zip(labels.own[::-1].tolist(), cells[::-1].tolist(), strict=True))
    cells[changed] = [cell_of[number] for number in labels.new[changed].tolist()]
    if are_names(given):
        return cells.astype(np.str_)
    return cells if any(isinstance(cell, str) for cell in cells[changed]) else cells.astype(given.dtype)


def by_row(raw: Dataset, labels: Mapping[str, NewLabels], classes: Sequence[str]) -> NewLabels:
    """Return the new labels of all splits in the order of the file; those of arrays one split after the other."""
    parts, start = raw.parts(), 0
    count = sum(len(part.inputs) for part in parts.values())
    whole = NewLabels(np.full(count, -1), np.full(count, -1), np.ones(count, bool))
    for name, part in parts.items():
        rows = np.arange(start, start + len(part.inputs)) if part.rows is None else part.rows
        start += len(rows)
        own = class_numbers(part.labels, len(rows), classes, raw.class_names)
        for column, values in zip(whole, labels.get(name, NewLabels(own, own, np.ones(len(own), bool))), strict=True):
            column[rows] = values
    return whole


def _write_table(
    raw: Dataset, path: Path, out: Path, labels: Mapping[str, NewLabels], classes: Sequence[str], given_as: str | None
) -> dict[str, str]:
    """Write a table with other labels, and return the new paths of images; all other cells stay."""
    moved, by_place = _moved_paths(raw, path, out)
    target = _Target(raw.label_column, given_as, by_row(raw, labels, classes), by_place)
    write = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}[path.suffix.lower()]
    write(path, out, target, classes)
    return moved


class _Target(NamedTuple):
    """What changes in a table."""

    column: str | None
    """The label column; None if the table has none, and gets one."""
    given_as: str | None
    """A new column for the original labels."""
    labels: NewLabels
    """The labels of its rows."""
    paths: list[str] | None
    """New cells of the column ``path``."""

    def place_in(self, header: Sequence[str], path: Path) -> int | None:
        """Return the position of the label column."""
        names = [name.strip().lower() for name in header]
        for name in (LABEL if self.column is None else self.column, self.given_as):
            if name is not None and name.strip().lower() in names and name != self.column:
                raise ConfigError(f"{path}: already has a column '{name}'; choose another name with --keep-given-as")
        if self.column is None:
            return None
        return [*header].index(self.column) if self.column in header else names.index(self.column.lower())

    def relabel(self, given: list[Any], values: Sequence[Any], path: Path) -> list[Any]:
        """Return the new cells of the label column; see :func:`new_cells`."""
        if len(given) != len(self.labels.own):
            raise InputError(f"{path}: {len(given)} rows, {len(self.labels.own)} a moment ago; has it changed?")
        return [*new_cells(np.array(given, object), self.labels, values)]


def _moved_paths(raw: Dataset, path: Path, out: Path) -> tuple[dict[str, str], list[str] | None]:
    """Return the paths of a list of images relative to the new file, by their names and by row; None if they stay."""
    files = [part.inputs for part in raw.parts().values() if isinstance(part.inputs, ImageFiles)]
    if not files or path.parent.resolve() == out.parent.resolve():
        return {}, None
    moved, names = {}, {}
    for part in files:
        assert part.rows is not None
        for row, name in zip(part.rows.tolist(), part.names.tolist(), strict=True):
            new = name if os.path.isabs(name) else os.path.relpath(path.parent / name, out.parent)  # noqa: PTH117
            moved[name], names[row] = Path(new).as_posix(), name
    return moved, [moved[names[row]] for row in range(len(names))]


def _write_csv(path: Path, out: Path, target: _Target, classes: Sequence[str]) -> None:
    csv.field_size_limit(2**31 - 1)
    content = path.read_bytes()
    mark, newline = content.startswith(b"\xef\xbb\xbf"), "\r\n" if b"\r\n" in content[:65536] else "\n"
    header, *lines = csv.reader(io.StringIO(content.strip(b"\r\n").decode("utf-8-sig"), newline=""))
    lines = [cells for cells in lines if cells]  # blank lines are no rows
    place = target.place_in(header, path)
    given = ["" if place is None else cells[place] for cells in lines]
    labels = target.relabel(given, classes, path)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=newline)
    new = ([] if place is not None else [LABEL]) + ([] if target.given_as is None else [target.given_as])
    writer.writerow(header + new)
    path_place = next((i for i, name in enumerate(header) if name.strip().lower() == "path"), None)
    for row in np.flatnonzero(target.labels.keep).tolist():
        cells, label = lines[row], labels[row]
        if target.paths is not None and path_place is not None:
            cells[path_place] = target.paths[row]
        if place is not None:
            cells[place] = label
        writer.writerow(cells + ([label] if place is None else []) + ([given[row]] if target.given_as else []))
    write_text(out, ("\ufeff" if mark else "") + text.getvalue())


def _write_jsonl(path: Path, out: Path, target: _Target, classes: Sequence[str]) -> None:
    lines = [line for line in path.read_text("utf-8-sig").split("\n") if line.strip()]
    objects = [json.loads(line) for line in lines]
    header = list(dict.fromkeys(name for row in objects for name in row))
    place = target.place_in(header, path)
    column = LABEL if place is None else header[place]
    given = [row.get(column) for row in objects]
    labels, kept = target.relabel(given, classes, path), np.flatnonzero(target.labels.keep).tolist()
    for row in kept:
        if target.labels.changed[row] or target.given_as is not None:  # other lines stay as they are
            own = {} if target.given_as is None else {target.given_as: given[row]}
            lines[row] = json.dumps(objects[row] | {column: labels[row]} | own, ensure_ascii=False)
    write_text(out, "".join(f"{lines[row]}\n" for row in kept))


def _write_parquet(path: Path, out: Path, target: _Target, classes: Sequence[str]) -> None:
    with pa.parquet.ParquetFile(path) as file:
        table = file.read()
    place = target.place_in(table.column_names, path)
    column = LABEL if place is None else table.column_names[place]
    given = pa.chunked_array([pa.nulls(len(table), pa.string())]) if place is None else table.column(place)
    declared = declared_classes(path, column) or ()
    values = [declared.index(name) if name in declared else name for name in classes]
    try:
        new = pa.array(target.relabel(given.to_pylist(), values, path), given.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"{path}: a class has no row, so its value in column '{column}' is unknown") from error
    table = table.append_column(column, new) if place is None else table.set_column(place, column, new)
    if target.given_as is not None:
        table = table.append_column(target.given_as, given)
    names = [name.strip().lower() for name in table.column_names]
    if target.paths is not None and "path" in names:
        at = names.index("path")
        table = table.set_column(at, table.column_names[at], pa.array(target.paths, table.schema.field(at).type))
    kept = table.filter(pa.array(target.labels.keep))
    write_atomically(out, lambda temporary: pa.parquet.write_table(kept, temporary))


def _write_arrays(
    options: DataOptions, out: Path, labels: Mapping[str, NewLabels], classes: Sequence[str], given_as: str | None
) -> None:
    """Write all arrays to an .npz file, with other labels, and without the rows that are dropped."""
    arrays = read_arrays(Path(options.path), options.mmap_threshold_mb)
    declared = "class_names" in arrays or any(whole_number(name) is None for name in classes)
    numbers = range(len(classes)) if declared else [int(name) for name in classes]
    for part, new in labels.items():
        own = arrays.get(part + LABELS, np.full(len(new.own), ""))
        arrays[part + LABELS] = new_cells(own, new, classes if are_names(own) else numbers)
        if given_as is not None:
            arrays[f"{given_as}_{part}"] = own
        if not new.keep.all():
            per_row = {part, f"{given_as}_{part}", *(part + suffix for suffix in BESIDE)}
            per_row |= {options.groups} if part == "train" and options.groups else set()
            arrays |= {name: arrays[name][new.keep] for name in per_row & arrays.keys()}
    write_npz(out, {name: np.asarray(array) for name, array in arrays.items()})


def _write_folders(
    raw: Dataset, path: Path, out: Path, labels: Mapping[str, NewLabels], classes: Sequence[str], *, copy: bool
) -> dict[str, str]:
    """Link or copy all files into folders of their classes; return the new name of each file that moved."""
    depth, parts = int(bool(find_parts(path))), raw.parts()
    ids = {split: part.names or () for split, part in parts.items()}
    used = {*chain.from_iterable(ids.values())}
    targets: dict[str, str] = {}
    for split, part in parts.items():
        names = ids[split]
        own = class_numbers(part.labels, len(names), classes, raw.class_names)
        new = labels.get(split, NewLabels(own, own, np.ones(len(names), bool)))
        moves = new.changed
        for row in np.flatnonzero(new.keep).tolist():
            name = targets[names[row]] = names[row]
            if moves[row]:
                targets[name] = _free_name(name, depth, part.labels is not None, classes[int(new.new[row])], used)
            elif part.labels is None:
                raise InputError(f"{path / name}: has no label; use all files in a run, and then apply it")
    with naming_target(out):
        out = out.resolve()  # a link to a folder stays
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=PARTIAL, ignore_cleanup_errors=True) as place:
            whole, write = Path(place, "new"), _copy if copy else _link
            for name, target in targets.items():
                (whole / target).parent.mkdir(parents=True, exist_ok=True)
                write((path / name).resolve(), whole / target)
            OwnedFolder(whole, MARKER).record([*targets.values(), CHANGES])
            if OwnedFolder(out, MARKER).is_marked:
                out.rename(old := Path(place, "old"))
                try:
                    OwnedFolder(old, MARKER).check_all_ours()  # again: files may have been added meanwhile
                except RunFolderError as error:
                    old.rename(out)
                    raise RunFolderError(str(error).replace(str(old), str(out))) from None
            elif out.is_dir():
                out.rmdir()  # it is empty
            whole.replace(out)
    return {name: target for name, target in targets.items() if name != target}


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copy2(source, target)
    except PermissionError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError as error:  # Windows allows it to developers only
        raise RunFolderError(f"cannot link {source}: {error.strerror}; copy files with --copy-files") from error


def _free_name(name: str, depth: int, is_labeled: bool, label: str, used: set[str]) -> str:
    """Return the name of a file in the folder of another class: one that no other file has or had.

    Args:
        name: of the file, relative to the data.
        depth: number of folders above those of classes.
        is_labeled: whether the file is in a folder of a class.
        label: the new class.
        used: all names, to which the new one is added.

    >>> _free_name("train/cat/1.png", 1, True, "dog", {"train/cat/1.png", "train/dog/1.png"})
    'train/dog/1-cat.png'
    """
    parts = PurePosixPath(name).parts
    before = parts[depth] if is_labeled else ""
    target = PurePosixPath(*parts[:depth], label, *parts[depth + is_labeled :])
    tries = (target.with_name(f"{target.stem}-{before}{number}{target.suffix}") for number in ("", *range(2, 10**6)))
    found = next(str(place) for place in chain([target], tries) if str(place) not in used)
    used.add(found)
    return found
