"""clean: from data as it is to a list of labels that look wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from unflip.api.embed import EMBEDDING_USES, EmbedPlan, check_images_only, plan_embedding
from unflip.api.options import CLEAN, AuditOptions, EmbeddingOptions, choose_size, option_tree
from unflip.api.report import report_finished
from unflip.data.arrays import Array
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Inputs
from unflip.data.files import ImageFiles, Skipped
from unflip.data.labeling import choose_labels, label_data
from unflip.data.loaders import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.encoders.base import restore
from unflip.encoders.table import encode_raw, text_columns
from unflip.engine.run import train_run
from unflip.errors import InputError, RunFolderError, Stopped, UnflipError
from unflip.files import write_atomically
from unflip.issues.audit import AuditInput, check_names, run_checks
from unflip.issues.duplicates import DuplicateIndex, find_duplicates
from unflip.progress import make_reporter
from unflip.runs import layout
from unflip.runs.config import RunConfig, Tree, check_section, make_layers
from unflip.runs.folder import Run
from unflip.runs.labels import (
    REMOVED,
    ExpectedErrors,
    expect_errors,
    label_issue_mask,
    lowest_quality_first,
    names_of,
    without_removed,
)
from unflip.runs.options import Execution

SURE = 0.05
"""A label of lower quality than this counts as surely wrong."""


class Before(NamedTuple):
    """The run that people looked at, compared with a later one."""

    folder: Path
    changed: int
    """How many labels that nobody decided about are other ones now."""
    wrong: float
    """How many labels were to be expected wrong then."""


class Decided(NamedTuple):
    """What ``--reviewed`` said."""

    labels: int
    changed: int
    """How many of these labels are not the given ones."""
    removed: int
    before: Before | None
    """Known where the file lies in the folder of a run on the same examples, where ``clean`` proposes to put it."""


@dataclass(frozen=True)
class CleanResult:
    """A finished run, and what it says about the labels."""

    run: Run
    data: str
    """What trained: the features, where images came."""
    of_images: bool
    count: int
    """Examples that train or validate."""
    label_issues: pa.Table
    """``index, path`` (or ``id``), ``given, suggested, quality``: labels that look wrong, the most doubtful first."""
    sure: int
    """How many of them have a quality below :data:`SURE`."""
    expected: ExpectedErrors
    """How many of all labels are wrong, by their qualities."""
    unscored: int
    """Labels without a quality: those of classes with too few examples."""
    decided: Decided
    """What people had decided (``--reviewed``), and what that changed."""
    pairs: Sequence[tuple[str, str, int]]
    """Given and suggested class, and how many label issues; the most frequent first."""
    issues: pa.Table
    """What else was found: see :mod:`unflip.runs.labels`."""
    skipped: Sequence[Skipped]


@dataclass(frozen=True)
class CleanPlan:
    """What is going to be done."""

    run: Run
    config: RunConfig
    execution: Execution
    raw: Dataset
    embedding: EmbedPlan | None
    """Images only: how they become features."""
    force: bool
    what: str
    """What came, in a few words."""
    audit: AuditOptions
    """What else to look for."""
    came: Mapping[str, Inputs] = field(default_factory=dict)
    """The examples of each part as they came, where they are no images."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tables only: columns of texts, which the list of label issues shows."""

    def details(self) -> list[str]:
        """Say what becomes of the examples before they are learned from, line by line; nothing of features."""
        encoding = self.raw.encoding if self.embedding is None else self.embedding.origin.encoding
        return restore(encoding).describe() if encoding is not None else []

    def left_out(self) -> list[str]:
        """Say which columns of a table are not learned from, and why, line by line."""
        return [line for line in self.details() if " dropped " in line] if self.embedding is None else []

    def line(self) -> str:
        """Say it in one line."""
        common = self.config.common
        steps = [f"train {common.method} for {common.epochs} epochs"]
        if self.embedding is not None:
            done = " (there already)" if self.embedding.is_done else ""
            steps.insert(0, f"{self.embedding.encoder.describe()[0]}{done}")
        return f"{self.what}: {', then '.join(steps)}"

    def execute(self) -> CleanResult:
        """Do it: write the run, its report, the list of label issues and the other issues."""
        raw, came = self.raw, self.came
        if self.embedding is not None:
            self.run.begin()
            self.run.own(layout.EMBEDDED)
            made = self.embedding.run(make_reporter(self.execution.quiet))
            raw, came = made.features, made.examples
        raw, duplicates = self._find_duplicates(raw, came)
        try:
            train_run(self.run, self.config, self.execution, raw=raw, force=self.force)
        except Stopped as stop:
            kept = "the features are kept: " if self.embedding else ""
            raise Stopped(f"stopped; {kept}begin again with --force", stop.signal) from stop
        cleaned = self._find(raw, duplicates)
        report_finished(self.run)
        return cleaned

    def _find_duplicates(self, raw: Dataset, came: Mapping[str, Inputs]) -> tuple[Dataset, DuplicateIndex | None]:
        """Find examples that are nearly the same, before training: they must share a fold."""
        skip = self.audit.skip_check
        if "near_duplicate" in skip and "leakage" in skip:
            return raw, None
        duplicates = find_duplicates(raw, came, make_reporter(self.execution.quiet).track)
        data = self.config.common.data
        if data.reviewed is not None:
            duplicates = duplicates.without(label_data(replace(raw, tests={}), data).removed.numpy())
        if "near_duplicate" not in skip:
            raw = duplicates.mark_groups(raw)
        return raw if "leakage" in skip else duplicates.mark_leakage(raw), duplicates

    def _find(self, raw: Dataset, duplicates: DuplicateIndex | None) -> CleanResult:
        """Write the labels that look wrong, and what else is found."""
        run, table = self.run, self.run.labels()
        of_images = raw.encoding is not None and raw.encoding.encoder == "images"
        label_issues = _list_label_issues(
            table, "path" if of_images and raw.train.ids is not None else "id", self.texts
        )
        write_atomically(run.own(layout.LABEL_ISSUES), lambda path: pa.csv.write_csv(label_issues, path))
        track = make_reporter(self.execution.quiet).track
        issues = run_checks(AuditInput(table, run.class_names, raw, duplicates), self.audit.skip_check, track)
        issues = without_removed(issues, table)
        write_atomically(run.own(layout.ISSUES), lambda path: pa.csv.write_csv(issues, path))
        left = table.filter(pa.compute.not_equal(table["split"], REMOVED))
        pairs = Counter(
            zip(label_issues["given_label"].to_pylist(), label_issues["suggested_label"].to_pylist(), strict=True)
        )
        return CleanResult(
            run=run,
            data=self.config.common.data.path,
            of_images=of_images,
            count=len(left),
            label_issues=label_issues,
            sure=int((label_issues["label_quality"].to_numpy() < SURE).sum()),
            expected=expect_errors(table["label_quality"].to_numpy()),
            unscored=left["label_quality"].null_count,
            decided=compare_decided(run, self.config.common.data.reviewed),
            pairs=[(str(given), str(suggested), count) for (given, suggested), count in pairs.most_common()],
            issues=issues,
            skipped=raw.skipped,
        )


def clean(
    data: str | Path,
    out: str | Path,
    *,
    method: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    force: bool = False,
    **options: Any,
) -> CleanResult:
    """Find the labels that look wrong; write a run folder with a list of them and a report.

    Does what ``unflip clean`` does. Images become features first, which are kept in ``out`` as ``embedded.npz`` and
    used again by the next call.

    Args:
        data: images, a table or feature arrays, as ``unflip clean --help`` lists them.
        out: the run's folder.
        method: how to learn: see ``unflip list methods``; by default ``unflip``.
        epochs: passes over the data; by default as many as suit the number of examples.
        seed: the random seed.
        force: replace the run in ``out``; its features are kept.
        options: those of ``unflip.api.options.CLEAN``; ``unflip clean --help`` describes them.
    """
    chosen = {"method": method, "epochs": epochs, "seed": seed}
    return plan_cleaning(data, out, force=force, **chosen, **options).execute()


def plan_cleaning(data: str | Path, out: str | Path, *, force: bool = False, **options: Any) -> CleanPlan:
    """Read the data and choose what to do with it; nothing is written.

    The arguments are those of ``clean``.
    """
    run = Run(Path(out))
    if run.exists and not force:
        raise RunFolderError(f"{run.folder}: already holds a run; name another folder, or replace it with --force")
    run.check_free(resume=False, force=force)
    tree = option_tree(CLEAN, options)
    execution = check_section(Execution, tree.pop("execution", {}))
    typed_data, typed_embedding = tree.pop("data", {}), tree.pop("embedding", {})
    audit = check_section(AuditOptions, tree.pop("audit", {}))
    check_names(audit.skip_check)
    backbone = check_section(EmbeddingOptions, typed_embedding)
    data_options = check_section(DataOptions, {"path": str(Path(data)), **typed_data}, "data.")
    raw = load_raw(data_options)
    check_used(data_options, typed_data, EMBEDDING_USES if raw.holds_images else ())
    if not raw.holds_images:
        check_images_only({"embedding": typed_embedding}, data)
    if raw.train.labels is None and data_options.labels is None:
        raise InputError(
            f"{data_options.path}: {raw.unlabeled}; every example needs its label (in another file: --labels)"
        )
    examples, which = choose_labels(raw, data_options)
    assert examples.labels is not None
    classes = len(np.unique(examples.labels))
    if classes < 2:
        raise InputError(f"{which}: {classes} class among {len(examples.labels)} labels; at least two are needed")
    count = len(examples.inputs) + (len(raw.val.inputs) if raw.val else 0)
    if raw.holds_images:
        embedding = plan_embedding(
            raw, run.folder / layout.EMBEDDED, data_options, backbone, execution,
            track=make_reporter(execution.quiet).track,
        )  # fmt: skip
        _check_labels(embedding, data_options)
        config = _configure(
            {"path": str(embedding.out), "labels": data_options.labels, "reviewed": data_options.reviewed},
            count,
            tree,
            of_columns=False,
        )
        what = f"{raw.name}: {count:,} images in {classes} classes"
        return CleanPlan(run, config, execution, raw, embedding, force, what, audit)
    own = data_options.model_dump(mode="json", exclude_defaults=True)
    config = _configure(own, count, tree, of_columns=isinstance(raw.train.inputs, Table))
    encoded = encode_raw(raw, data_options)
    width = int(np.prod(encoded.train.inputs.shape[1:]))
    what = f"{raw.name}: {count:,} examples of {width} features in {classes} classes"
    came = _pictures(raw) or {name: part.inputs for name, part in raw.parts().items()}
    return CleanPlan(run, config, execution, encoded, None, force, what, audit, came, _texts(raw, encoded))


def _configure(data: Tree, count: int, tree: Tree, *, of_columns: bool) -> RunConfig:
    """Return the preset `features` with sizes that suit ``count`` examples, and with what a person asked for."""
    method = tree.get("method", "unflip")
    size = choose_size(method, count)
    settings = {
        "optimizer.batch_size": size.batch_size,
        "optimizer.lr": size.lr,
        "mlp.hidden": list(size.hidden),
    }
    if method == "unflip":
        settings["data.standardize"] = "auto"
    elif of_columns:  # which have units of their own
        settings["data.standardize"] = "per-feature"
    given = {key: value for key, value in data.items() if value is not None}
    flags = {"method": method, "epochs": size.epochs, "seed": 0, "select": "last"} | tree | {"data": given}
    return make_layers(flags, preset="features", settings=settings).resolve()


def _check_labels(embedding: EmbedPlan, options: DataOptions) -> None:
    """Refuse labels that training would refuse, before features are computed, which may take long.

    Where images may be left out, it is not known yet which rows people's decisions are about.
    """
    reviewed = None if options.skip_broken else options.reviewed
    own = DataOptions(path=options.path, labels=options.labels, reviewed=reviewed, standardize="off")
    sets = {
        name: replace(part, inputs=np.arange(len(part.inputs), dtype=np.float32)[:, None])
        for name, part in embedding.sets.items()
    }
    label_data(replace(embedding.raw.with_parts(sets), normalization=None), own)


def _pictures(features: Dataset) -> dict[str, Inputs]:
    """Return the image files that features were computed from, by part; none where they are not there any more."""
    found: dict[str, Inputs] = {}
    try:
        images = load_raw(DataOptions(path=features.images_path)).parts() if features.images_path else {}
    except InputError:
        return {}
    for name, part in features.parts().items():
        files = images[name].inputs if name in images else None
        if not isinstance(files, ImageFiles) or part.ids is None:
            return {}
        place = {str(called): row for row, called in enumerate(files.names.tolist())}
        rows = [place.get(str(called), -1) for called in part.ids.tolist()]
        if min(rows, default=0) < 0:
            return {}
        found[name] = files[np.array(rows)]
    return found


def _texts(raw: Dataset, encoded: Dataset) -> dict[str, list[str]]:
    """Return the columns of texts in a table, for all examples that train or validate."""
    found: dict[str, list[str]] = {}
    names = text_columns(encoded.encoding) if encoded.encoding is not None else ()
    for part in (raw.train, raw.val):
        if part is not None and isinstance(part.inputs, Table):
            for name in names:
                found.setdefault(name, []).extend(part.inputs.table[name].to_pylist())
    return found


def _list_label_issues(table: pa.Table, called: str, texts: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the labels that look wrong, the most doubtful first; examples are ``called`` path or id."""
    columns = {"index": table["index"], called: table["id"], "given_label": names_of(table, "given_label")}
    order = lowest_quality_first(table)
    label_issues = pa.table(
        columns | {"suggested_label": names_of(table, "suggested_label"), "label_quality": table["label_quality"]}
    )
    for name, cells in texts.items():
        label_issues = label_issues.append_column(
            name if name not in label_issues.column_names else f"{name}_", pa.array(cells)
        )
    return label_issues.take(order[label_issue_mask(table)[order]])


def compare_decided(run: Run, reviewed: str | None) -> Decided:
    """Return what people had decided about a run's examples in the file ``reviewed``."""
    table = run.labels()
    about, changed = (table[name].to_numpy() for name in ("reviewed", "changed"))
    removed = np.array(table["split"].to_pylist()) == REMOVED
    labels = about & ~removed
    folder = run.folder if reviewed is None else Path(reviewed).parent
    before = None if folder.resolve() == run.folder.resolve() else _before(folder, table, ~about)
    return Decided(int(labels.sum()), int((labels & changed).sum()), int(removed.sum()), before)


def _before(folder: Path, table: pa.Table, undecided: Array) -> Before | None:
    try:
        run = Run(folder)
        if not run.is_finished:
            return None
        earlier = run.labels()
    except UnflipError:  # whatever it is, people need not know
        return None
    if not all(earlier[name].equals(table[name]) for name in ("id", "given_label")):
        return None
    differs = earlier["current_label"].to_numpy() != table["current_label"].to_numpy()
    return Before(folder, int((differs & undecided).sum()), expect_errors(earlier["label_quality"].to_numpy()).total)
