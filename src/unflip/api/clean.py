"""clean: find label issues and other issues in a data set."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from unflip.api.embed import EmbedPlan, plan_embedding, read_data
from unflip.api.options import CLEAN, AuditOptions, SourceOptions, choose_size, option_tree
from unflip.api.result import Result
from unflip.compute import find_device
from unflip.data.columns import Table, column_names
from unflip.data.dataset import Dataset, Inputs
from unflip.data.files import ImageFiles
from unflip.data.labeling import choose_labels, label_data
from unflip.data.loaders import load_raw
from unflip.data.matching import Keys
from unflip.data.memory import ordered_classes, own_annotations, take_memory
from unflip.data.options import DataOptions, ImageOptions
from unflip.data.rewrite import find_changes
from unflip.encoders.base import restore
from unflip.encoders.table import encode_raw, example_texts
from unflip.engine.run import train_run
from unflip.errors import ConfigError, InputError, RunFolderError, Stopped, count_of, unknown
from unflip.files import write_json, write_text
from unflip.issues import checks
from unflip.issues.audit import AuditInput, run_checks
from unflip.issues.duplicates import DuplicateIndex, find_duplicates
from unflip.progress import Track, is_first_process, make_reporter
from unflip.report.run_report import report_finished
from unflip.review.examples import Examples
from unflip.review.review import as_csv, saved_decisions
from unflip.runs import layout
from unflip.runs.config import Layers, RunConfig, Tree, check_section, make_layers, read_preset
from unflip.runs.folder import Claim, Run, as_run
from unflip.runs.labels import label_issue_mask, list_label_issues, list_unlabeled, write_table
from unflip.runs.options import Execution


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
    track: Track
    """Shows progress."""
    examples: Mapping[str, Inputs] = field(default_factory=dict)
    """The original examples of each part, unless they are images."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tables only: text columns, which the list of label issues shows."""
    earlier: "Earlier | None" = None
    """The run that is replaced."""

    def details(self) -> list[str]:
        """Describe the encoding, line by line; empty for features."""
        encoding = self.raw.encoding if self.embedding is None else self.embedding.origin.encoding
        return restore(encoding).describe() if encoding is not None else []

    def doubtful_columns(self) -> list[str]:
        """Describe the columns of a table that are not used, or can be read in several ways, line by line."""
        marks = (" dropped ", "(no cell rules out")
        return [line for line in self.details() if any(map(line.__contains__, marks))] if self.embedding is None else []

    def line(self) -> str:
        """Describe the plan in one line."""
        common = self.config.common
        steps = [f"train {common.method} for {count_of(common.epochs, 'epoch')}"]
        if self.embedding is not None:
            new, count = self.embedding.new, sum(len(part.inputs) for part in self.raw.parts().values())
            done = "" if new == count else f" of {new:,} new images"
            done = done if self.embedding.finished is None else " (cached)"
            steps.insert(0, f"{self.embedding.encoder.describe()[0]}{done}")
        before = f", given labels and decisions from {changes}" if (changes := common.data.changes) else ""
        return f"{self.what}{before}: {', then '.join(steps)}"

    def execute(self) -> Run:
        """Train, and write the run, its report, the label issues and the other issues; return the run."""
        with Claim(self.run, force=self.force) as claim:
            self._with_decisions(claim)._execute(claim)
        return self.run

    def _with_decisions(self, claim: Claim) -> Self:
        """Return the plan to train with the decisions about the earlier run, unless others are given."""
        common = self.config.common
        if self.earlier is None or self.earlier.decisions is None or common.data.reviewed is not None:
            return self
        claim.hold().begin()
        path = self.run.own(layout.KEPT_DECISIONS)
        write_text(path, self.earlier.decisions)
        data = common.data.model_copy(update={"reviewed": str(path)})
        return replace(self, config=replace(self.config, common=common.model_copy(update={"data": data})))

    def _execute(self, claim: Claim) -> None:
        raw, examples = self.raw, self.examples
        if self.embedding is not None:
            claim.hold().begin()
            self.run.own(layout.EMBEDDED)
            embedded = self.embedding.run()
            raw, examples = embedded.features, embedded.examples
        raw, duplicates = self._find_duplicates(raw, examples)
        try:
            data = self.config.load_data(raw, self.track)
            train_run(claim, self.config, self.execution, data=data)
        except Stopped as stop:
            cached = "the features are cached: " if self.embedding else ""
            raise Stopped(f"stopped; {cached}start again with --force", stop.signal) from stop
        self._find_issues(raw, examples, duplicates)
        if is_first_process():
            report_finished(self.run)

    def _find_duplicates(self, raw: Dataset, examples: Mapping[str, Inputs]) -> tuple[Dataset, DuplicateIndex | None]:
        """Find near-duplicates before training: they must share a fold."""
        skip = self.audit.skip_check
        if "near_duplicate" in skip and "leakage" in skip:
            return raw, None
        duplicates = find_duplicates(raw, examples, self.track)
        data = self.config.common.data
        if data.reviewed is not None:
            duplicates = duplicates.without(label_data(replace(raw, tests={}), data).removed.numpy())
        if "near_duplicate" not in skip:
            raw = duplicates.mark_groups(raw)
        return raw if "leakage" in skip else duplicates.mark_leakage(raw), duplicates

    def _find_issues(self, raw: Dataset, examples: Mapping[str, Inputs], duplicates: DuplicateIndex | None) -> None:
        """Write the label issues and the other issues."""
        run, table = self.run, self.run.labels()
        of_images = raw.encoding is not None and raw.encoding.encoder == "images"
        id_name = "path" if of_images and raw.train.ids is not None else "id"
        write_table(run.own(layout.LABEL_ISSUES), list_label_issues(table, id_name, self.texts))
        unlabeled = list_unlabeled(table, id_name, self.texts)
        if len(unlabeled):
            write_table(run.own(layout.UNLABELED), unlabeled)
        audited = AuditInput(table, run.class_names, raw, duplicates, examples)
        issues = run_checks(audited, self.audit.skip_check, self.track)
        write_table(run.own(layout.ISSUES), issues)
        flagged = Counter(issues.filter(issues["flag"])["issue"].to_pylist())
        counts = {name: flagged[name] for name in checks.names() if name not in self.audit.skip_check}
        since = None if self.earlier is None else self.earlier.compared_with(table)
        write_json(run.own(layout.RESULT), run.result | {"other_issues": counts, "since_last": since})


class Earlier(NamedTuple):
    """A run that is replaced."""

    keys: Keys
    """What identifies its examples."""
    decisions: str | None
    """The decisions of its review, as ``unflip review --export`` writes them; None without any."""

    @classmethod
    def read(cls, run: Run) -> "Earlier | None":
        """Return what is known of the run in a folder; None if there is none that can be read."""
        if not (run.is_finished and (run.folder / layout.LABELS).exists()):  # a sweep may keep results only
            return None
        try:
            examples = Examples(run)
            with saved_decisions(run.folder, examples.keys) as decisions:
                return cls(examples.keys, as_csv(examples, decisions) if decisions and decisions.decided() else None)
        except RunFolderError:  # of another version
            return None

    def compared_with(self, table: pa.Table) -> dict[str, int] | None:
        """Return how many examples of a new label table are new, label issues or reviewed, and how many old ones gone.

        Examples are compared by content or, if that is unknown, by id; None if neither is known.
        """
        new, old = table["digest"].to_pylist(), self.keys.digests
        if old is None or None in new or new[0].rpartition("-")[0] != old[0].rpartition("-")[0]:
            new, old = table["id"].to_pylist(), self.keys.ids
        if old is None:
            return None
        is_new = ~np.isin(new, old)
        return {
            "new": int(is_new.sum()),
            "label_issues": int((is_new & label_issue_mask(table)).sum()),
            "gone": int((~np.isin(old, new)).sum()),
            "reviewed": int(np.asarray(table["reviewed"]).sum()),
        }


def clean(
    data: Any,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    force: bool = False,
    **options: Any,
) -> Result:
    """Find label issues and other issues, and write a run folder with lists of issues and a report.

    This is the same as ``unflip clean``. Images are first turned into features, which are saved in ``out`` as
    ``embedded.npz``.

    Args:
        data: a path to images, texts, a table or feature arrays (see ``unflip clean --help``), or data in memory: a
            data frame (pandas, polars, Arrow) with a column ``label``, or a Hugging Face data set. With ``labels=...``
            (n,), it can also be a data frame without labels, an array of numbers (n, columns), or a list of texts, PIL
            images or image paths. Data in memory is copied to ``out``. For labels from several people, pass
            ``annotations=...`` instead of labels: an array or a data frame (n, annotators) with missing values, or a
            data frame with the columns ``index``, ``annotator`` and ``label``.
        out: the run folder; by default a new temporary folder, which is not deleted.
        method: the training method, by default ``unflip``; see ``unflip list methods``.
        epochs: passes over the data; the default depends on the number of examples.
        seed: random seed.
        force: replace the run in ``out``, but keep its image features and review decisions. The new run is trained with
            these decisions unless you pass others as ``reviewed``.
        options: see ``unflip.api.options.CLEAN`` and ``unflip clean --help``.

    Returns:
        The finished run, with its issues.
    """
    memory = take_memory(data, options)
    run = as_run(out)
    chosen = {"method": method, "epochs": epochs, "seed": seed, "force": force, **options}
    with Claim(run, force=force) as claim, claim.located(memory or data) as path:
        if memory and ordered_classes(memory):
            chosen.setdefault("ordinal", True)
        if memory and memory.annotations is not None:
            chosen["annotations"] = own_annotations(memory.annotations, run.folder / layout.DATA)
        plan = plan_cleaning(str(path), run.folder, **chosen)
    plan.execute()
    return Result(run.folder, memory)


def plan_cleaning(data: str | Path, out: str | Path, *, force: bool = False, **options: Any) -> CleanPlan:
    """Read the data and plan the run; write nothing.

    The arguments are those of :func:`clean`.
    """
    tree, run = option_tree(CLEAN, options), as_run(out)
    execution = check_section(Execution, tree.pop("execution", {}))
    audit = check_section(AuditOptions, tree.pop("audit", {}))
    run.check_free(resume=False, force=force)
    find_device(execution.device)
    earlier = Earlier.read(run) if force else None
    track = make_reporter(execution.quiet).track
    names = checks.names()
    if wrong := [name for name in audit.skip_check if name not in names]:
        raise ConfigError(unknown("check", wrong[0], names))
    sources, embedding_tree = check_section(SourceOptions, tree.pop("sources", {})), tree.pop("embedding", {})
    layers = make_layers(tree, config=sources.config, settings=sources.settings)
    merged = layers.merged()
    sections = {"data": merged["data"], "embedding": embedding_tree}
    raw, data_options, backbone = read_data(data, sections, layers.typed("data"))
    if data_options.labels is None and data_options.annotations is None:
        changes = find_changes(raw.images_path or str(data))
        data_options = data_options.model_copy(update={"changes": changes and str(changes)})
    examples = choose_labels(raw, data_options)[0].train
    classes = len(examples.class_numbers[examples.class_numbers >= 0].unique())
    count = len(examples.inputs) + (len(raw.val.inputs) if raw.val else 0)
    labeled = count - int((examples.class_numbers < 0).sum())
    if raw.holds_images:
        embedding = plan_embedding(raw, run.folder / layout.EMBEDDED, data_options, backbone, execution)
        _check_labels(embedding, data_options)
        of_files = {*ImageOptions.model_fields, "label_column", "annotator_columns"}
        own = data_options.model_dump(mode="json", exclude_unset=True, exclude=of_files)
        config = _configure(layers, own | {"path": str(embedding.out)}, labeled, of_columns=False)
        config.check_size(count, classes, find_device(execution.device))
        what = f"{raw.name}: {count:,} images in {classes} classes"
        return CleanPlan(run, config, execution, raw, embedding, force, what, audit, track, earlier=earlier)
    own = data_options.model_dump(mode="json", exclude_unset=True)
    config = _configure(layers, own, labeled, of_columns=isinstance(raw.train.inputs, Table))
    encoded = encode_raw(raw, data_options)
    if data_options.reviewed is not None:  # fail before the plan is printed
        label_data(replace(encoded, tests={}), data_options)
    width = int(np.prod(encoded.train.inputs.shape[1:]))
    what = f"{raw.name}: {count:,} examples with {count_of(width, 'feature')} in {classes} classes"
    originals = _pictures(raw) or {name: part.inputs for name, part in raw.parts().items()}
    texts = example_texts(raw, encoded.encoding)
    return CleanPlan(run, config, execution, encoded, None, force, what, audit, track, originals, texts, earlier)


def _configure(layers: Layers, data: Tree, count: int, *, of_columns: bool) -> RunConfig:
    """Return the preset ``features`` with sizes for ``count`` examples, overridden by the options of the user."""
    merged = layers.merged()
    method, optimizer = merged.get("method", "unflip"), merged.get("optimizer", {})
    size = choose_size(method, count, optimizer.get("batch_size") if isinstance(optimizer, dict) else None)
    usual: Tree = {"method": method, "epochs": size.epochs, "seed": 0, "select": "last"}
    usual |= {"optimizer": {"batch_size": size.batch_size, "lr": size.lr}, "mlp": {"hidden": list(size.hidden)}}
    if method == "unflip":
        usual["data"] = {"standardize": "auto"}
    elif of_columns:  # which have units of their own
        usual["data"] = {"standardize": "per-feature"}
    files = [read_preset("features"), usual, *layers.files]
    given = {key: value for key, value in data.items() if value is not None}
    config = replace(layers, files=files, flags=layers.flags | {"data": given}).resolve()
    if config.common.network != "mlp":
        raise ConfigError(f"network = {config.common.network!r}: clean trains on features; use `unflip train`")
    config.check()
    return config


def _check_labels(embedding: EmbedPlan, options: DataOptions) -> None:
    """Check the labels before images are embedded, which may take long.

    With ``skip_broken``, the rows that reviewed labels refer to are not known yet, nor are the images' digests.
    """
    path = Path(options.reviewed or "")
    has_digests = path.suffix.lower() in (".csv", ".parquet") and "digest" in column_names(path, f"reviewed {path}")
    reviewed = None if options.skip_broken or has_digests else options.reviewed
    own = options.model_copy(update={"reviewed": reviewed, "changes": None, "standardize": "off"})
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
        for name, part in features.parts().items():
            files = images[name].inputs
            if not isinstance(files, ImageFiles) or part.names is None:
                return {}
            row_of = {str(file): row for row, file in enumerate(files.names.tolist())}
            pictures[name] = files[np.array([row_of[file] for file in part.names])]
    except (InputError, KeyError):  # the data, a split or an image is gone
        return {}
    return pictures
