"""clean: find label issues and other issues in a data set."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from unflip.api.embed import EMBEDDING_USES, EmbedPlan, check_images_only, plan_embedding
from unflip.api.options import CLEAN, AuditOptions, EmbeddingOptions, choose_size, option_tree
from unflip.api.report import report_finished
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Inputs
from unflip.data.files import ImageFiles, Skipped
from unflip.data.labeling import choose_labels, label_data
from unflip.data.loaders import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.encoders.base import restore
from unflip.encoders.table import encode_raw, text_columns
from unflip.engine.run import train_run
from unflip.errors import InputError, Stopped
from unflip.files import write_atomically
from unflip.issues.audit import AuditInput, check_names, run_checks
from unflip.issues.duplicates import DuplicateIndex, find_duplicates
from unflip.parallel import find_device
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
"""Labels of lower quality are almost certainly wrong."""


@dataclass(frozen=True)
class CleanResult:
    """A finished run and its label issues."""

    run: Run
    data: str
    """The training data; for images, their features."""
    of_images: bool
    count: int
    """Number of training and validation examples."""
    label_issues: pa.Table
    """``index``, ``path`` or ``id``, ``given_label``, ``suggested_label``, ``label_quality``; lowest quality first."""
    sure: int
    """Number of label issues with a quality below :data:`SURE`."""
    expected: ExpectedErrors
    """Estimated number of label errors."""
    unscored: int
    """Labels without a quality: their classes have too few examples."""
    out_of_sample: bool
    """Whether all scores come from models that were not trained on the label."""
    reviewed: int
    """Number of labels in ``--reviewed``."""
    corrected: int
    """How many of them differ from the given labels."""
    removed: int
    """Number of examples that reviewers removed."""
    issues: pa.Table
    """Other issues in the data: see :mod:`unflip.runs.labels`."""
    skipped: Sequence[Skipped]

    def pairs(self) -> list[tuple[tuple[str, str], int]]:
        """Return how many label issues each pair of given and suggested class has, most frequent first."""
        columns = (map(str, self.label_issues[name].to_pylist()) for name in ("given_label", "suggested_label"))
        return Counter(zip(*columns, strict=True)).most_common()


@dataclass(frozen=True)
class CleanPlan:
    """What :func:`clean` is about to do."""

    run: Run
    config: RunConfig
    execution: Execution
    raw: Dataset
    embedding: EmbedPlan | None
    """Images only: how they become features."""
    force: bool
    what: str
    """The data, in a few words."""
    audit: AuditOptions
    examples: Mapping[str, Inputs] = field(default_factory=dict)
    """The original examples of each part, unless they are images."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tables only: text columns, which the list of label issues shows."""

    def details(self) -> list[str]:
        """Describe the encoding, line by line; empty for features."""
        encoding = self.raw.encoding if self.embedding is None else self.embedding.origin.encoding
        return restore(encoding).describe() if encoding is not None else []

    def ignored_columns(self) -> list[str]:
        """Describe the columns of a table that are not used, line by line."""
        return [line for line in self.details() if " dropped " in line] if self.embedding is None else []

    def line(self) -> str:
        """Describe the plan in one line."""
        common = self.config.common
        steps = [f"train {common.method} for {common.epochs} epochs"]
        if self.embedding is not None:
            done = " (cached)" if self.embedding.is_done else ""
            steps.insert(0, f"{self.embedding.encoder.describe()[0]}{done}")
        return f"{self.what}: {', then '.join(steps)}"

    def execute(self) -> CleanResult:
        """Train, and write the run, its report, the label issues and the other issues."""
        raw, examples = self.raw, self.examples
        if self.embedding is not None:
            self.run.begin()
            self.run.own(layout.EMBEDDED)
            embedded = self.embedding.run(make_reporter(self.execution.quiet))
            raw, examples = embedded.features, embedded.examples
        raw, duplicates = self._find_duplicates(raw, examples)
        try:
            train_run(self.run, self.config, self.execution, raw=raw, force=self.force)
        except Stopped as stop:
            cached = "the features are cached: " if self.embedding else ""
            raise Stopped(f"stopped; {cached}start again with --force", stop.signal) from stop
        result = self._find_issues(raw, duplicates)
        report_finished(self.run)
        return result

    def _find_duplicates(self, raw: Dataset, examples: Mapping[str, Inputs]) -> tuple[Dataset, DuplicateIndex | None]:
        """Find near-duplicates before training: they must share a fold."""
        skip = self.audit.skip_check
        if "near_duplicate" in skip and "leakage" in skip:
            return raw, None
        duplicates = find_duplicates(raw, examples, make_reporter(self.execution.quiet).track)
        data = self.config.common.data
        if data.reviewed is not None:
            duplicates = duplicates.without(label_data(replace(raw, tests={}), data).removed.numpy())
        if "near_duplicate" not in skip:
            raw = duplicates.mark_groups(raw)
        return raw if "leakage" in skip else duplicates.mark_leakage(raw), duplicates

    def _find_issues(self, raw: Dataset, duplicates: DuplicateIndex | None) -> CleanResult:
        """Write the label issues and the other issues."""
        run, table = self.run, self.run.labels()
        of_images = raw.encoding is not None and raw.encoding.encoder == "images"
        id_name = "path" if of_images and raw.train.ids is not None else "id"
        label_issues = _list_label_issues(table, id_name, self.texts)
        write_atomically(run.own(layout.LABEL_ISSUES), lambda path: pa.csv.write_csv(label_issues, path))
        track = make_reporter(self.execution.quiet).track
        issues = run_checks(AuditInput(table, run.class_names, raw, duplicates), self.audit.skip_check, track)
        issues = without_removed(issues, table)
        write_atomically(run.own(layout.ISSUES), lambda path: pa.csv.write_csv(issues, path))
        removed = pa.compute.equal(table["split"], REMOVED)
        remaining = table.filter(pa.compute.invert(removed))
        reviewed = remaining.filter(remaining["reviewed"])
        scored = remaining.filter(pa.compute.invert(remaining["reviewed"]))
        return CleanResult(
            run=run,
            data=self.config.common.data.path,
            of_images=of_images,
            count=len(remaining),
            label_issues=label_issues,
            sure=int((label_issues["label_quality"].to_numpy() < SURE).sum()),
            expected=expect_errors(table["label_quality"].to_numpy()),
            unscored=remaining["label_quality"].null_count,
            out_of_sample=bool(scored["out_of_sample"].to_numpy().all()),
            reviewed=len(reviewed),
            corrected=int(reviewed["changed"].to_numpy().sum()),
            removed=len(table) - len(remaining),
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
    """Find label issues and other issues; write a run folder with the lists and a report.

    Same as ``unflip clean``. Images are embedded first; the features are cached in ``out`` as ``embedded.npz``.

    Args:
        data: images, texts, a table or feature arrays; see ``unflip clean --help``.
        out: the run folder.
        method: the training method; see ``unflip list methods``. Default: ``unflip``.
        epochs: passes over the data; chosen by the number of examples by default.
        seed: random seed.
        force: replace the run in ``out``, but keep its features.
        options: see ``unflip.api.options.CLEAN`` and ``unflip clean --help``.

    Returns:
        The finished run, its label issues and a summary of them.
    """
    chosen = {"method": method, "epochs": epochs, "seed": seed}
    return plan_cleaning(data, out, force=force, **chosen, **options).execute()


def plan_cleaning(data: str | Path, out: str | Path, *, force: bool = False, **options: Any) -> CleanPlan:
    """Read the data and plan the run; write nothing.

    The arguments are those of :func:`clean`.
    """
    run = Run(Path(out))
    run.check_free(resume=False, force=force)
    tree = option_tree(CLEAN, options)
    execution = check_section(Execution, tree.pop("execution", {}))
    typed_data, typed_embedding = tree.pop("data", {}), tree.pop("embedding", {})
    audit = check_section(AuditOptions, tree.pop("audit", {}))
    check_names(audit.skip_check)
    find_device(execution.device)
    backbone = check_section(EmbeddingOptions, typed_embedding)
    data_options = check_section(DataOptions, {"path": str(Path(data)), **typed_data}, "data.")
    raw = load_raw(data_options)
    check_used(data_options, typed_data, EMBEDDING_USES if raw.holds_images else ())
    if not raw.holds_images:
        check_images_only({"embedding": typed_embedding}, data)
    if raw.train.labels is None and data_options.labels is None:
        raise InputError(f"{data_options.path}: {raw.unlabeled}; add a label column, or a file of labels with --labels")
    examples, source = choose_labels(raw, data_options)
    assert examples.labels is not None
    classes = len(np.unique(examples.labels))
    if classes < 2:
        raise InputError(f"{source}: {classes} class among {len(examples.labels)} labels; at least two are needed")
    count = len(examples.inputs) + (len(raw.val.inputs) if raw.val else 0)
    if raw.holds_images:
        track = make_reporter(execution.quiet).track
        embedding = plan_embedding(
            raw, run.folder / layout.EMBEDDED, data_options, backbone, execution, track=track
        )  # fmt: skip
        _check_labels(embedding, data_options)
        own = {"path": str(embedding.out), "labels": data_options.labels, "reviewed": data_options.reviewed}
        config = _configure(own, count, tree, of_columns=False)
        what = f"{raw.name}: {count:,} images in {classes} classes"
        return CleanPlan(run, config, execution, raw, embedding, force, what, audit)
    own = data_options.model_dump(mode="json", exclude_defaults=True)
    config = _configure(own, count, tree, of_columns=isinstance(raw.train.inputs, Table))
    encoded = encode_raw(raw, data_options)
    if data_options.reviewed is not None:  # fail before the plan is printed
        label_data(replace(encoded, tests={}), data_options)
    width = int(np.prod(encoded.train.inputs.shape[1:]))
    what = f"{raw.name}: {count:,} examples with {width} features in {classes} classes"
    originals = _pictures(raw) or {name: part.inputs for name, part in raw.parts().items()}
    return CleanPlan(run, config, execution, encoded, None, force, what, audit, originals, _texts(raw, encoded))


def _configure(data: Tree, count: int, tree: Tree, *, of_columns: bool) -> RunConfig:
    """Return the preset ``features`` with sizes for ``count`` examples, overridden by the options in ``tree``."""
    method = tree.get("method", "unflip")
    size = choose_size(method, count)
    settings = {"optimizer.batch_size": size.batch_size, "optimizer.lr": size.lr, "mlp.hidden": list(size.hidden)}
    if method == "unflip":
        settings["data.standardize"] = "auto"
    elif of_columns:  # which have units of their own
        settings["data.standardize"] = "per-feature"
    given = {key: value for key, value in data.items() if value is not None}
    flags = {"method": method, "epochs": size.epochs, "seed": 0, "select": "last"} | tree | {"data": given}
    config = make_layers(flags, preset="features", settings=settings).resolve()
    config.check()
    return config


def _check_labels(embedding: EmbedPlan, options: DataOptions) -> None:
    """Check the labels before images are embedded, which may take long.

    With ``skip_broken``, the rows that reviewed labels refer to are not known yet.
    """
    reviewed = None if options.skip_broken else options.reviewed
    own = DataOptions(path=options.path, labels=options.labels, reviewed=reviewed, standardize="off")
    sets = {
        name: replace(part, inputs=np.arange(len(part.inputs), dtype=np.float32)[:, None])
        for name, part in embedding.sets.items()
    }
    label_data(replace(embedding.raw.with_parts(sets), normalization=None), own)


def _pictures(features: Dataset) -> dict[str, Inputs]:
    """Return the image files that features were computed from, by part; empty if any of them is gone."""
    pictures: dict[str, Inputs] = {}
    try:
        images = load_raw(DataOptions(path=features.images_path)).parts() if features.images_path else {}
    except InputError:
        return {}
    for name, part in features.parts().items():
        files = images[name].inputs if name in images else None
        if not isinstance(files, ImageFiles) or part.ids is None:
            return {}
        row_of = {str(file): row for row, file in enumerate(files.names.tolist())}
        rows = [row_of.get(str(file), -1) for file in part.ids.tolist()]
        if min(rows, default=0) < 0:
            return {}
        pictures[name] = files[np.array(rows)]
    return pictures


def _texts(raw: Dataset, encoded: Dataset) -> dict[str, list[str]]:
    """Return the text columns of a table, for all training and validation examples."""
    names = text_columns(encoded.encoding) if encoded.encoding is not None else ()
    tables = [part.inputs.table for part in (raw.train, raw.val) if part and isinstance(part.inputs, Table)]
    return {name: [text for table in tables for text in table[name].to_pylist()] for name in names}


def _list_label_issues(table: pa.Table, id_name: str, texts: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the label issues, lowest quality first, with the examples' texts."""
    columns = {
        "index": table["index"],
        id_name: table["id"],
        "given_label": names_of(table, "given_label"),
        "suggested_label": names_of(table, "suggested_label"),
        "label_quality": table["label_quality"],
    }
    columns |= {f"{name}_" if name in columns else name: pa.array(cells) for name, cells in texts.items()}
    order = lowest_quality_first(table)
    return pa.table(columns).take(order[label_issue_mask(table)[order]])
