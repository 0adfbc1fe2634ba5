"""clean: from data as it is to a list of labels that look wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.csv

from unflip.data.cells import Cells
from unflip.data.duplicates import conflicting_groups, identities
from unflip.data.files.arrays import Array
from unflip.data.images.files import Skipped, skipped_csv
from unflip.data.labelled import choose_labels, label_data
from unflip.data.loader import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.encoders.raw import encode_raw, restore
from unflip.encoders.table import text_columns
from unflip.errors import InputError, RunFolderError, Stopped
from unflip.files import write_atomically, write_text
from unflip.progress import duration, make_reporter
from unflip.runs import layout
from unflip.runs.config import RunConfig, Tree, check_section, make_layers
from unflip.runs.folder import Run
from unflip.runs.labels import ExpectedErrors, expect_errors, looks_wrong, most_doubtful_first, names_of
from unflip.runs.options import Execution
from unflip.tasks.defaults import choose_size
from unflip.tasks.embed import EMBEDDING_USES, EmbedPlan, check_images_only, plan_embedding
from unflip.tasks.options import CleanOptions, EmbeddingOptions, option_tree
from unflip.tasks.report import report_finished
from unflip.training.rehearsal import rehearse
from unflip.training.run import train_run

SURE = 0.05
"""A label of lower quality than this counts as surely wrong."""
_REHEARSED = (4096, 8192)  # least and most rows of the first of two rehearsals
_MORE = 4  # how many times as many rows the second has


@dataclass(frozen=True)
class CleanResult:
    """A finished run, and what it says about the labels."""

    run: Run
    data: str
    """What trained: the features, where images came."""
    of_images: bool
    count: int
    """Examples that train or validate."""
    suspects: pa.Table
    """``index, path`` (or ``id``), ``given, suggested, quality``: labels that look wrong, the most doubtful first."""
    sure: int
    """How many of them have a quality below :data:`SURE`."""
    expected: ExpectedErrors
    """How many of all labels are wrong, by their qualities."""
    decided: tuple[int, int]
    """About how many labels people had decided (``--reviewed``), and how many of these they changed."""
    pairs: Sequence[tuple[str, str, int]]
    """Given and suggested class, and how many suspects; the most frequent first."""
    duplicates: Sequence[Array]
    """The rows of each example that is there under several labels."""
    skipped: Sequence[Skipped]


@dataclass(frozen=True)
class CleanPlan:
    """What is going to be done, and how long that will take."""

    run: Run
    config: RunConfig
    execution: Execution
    raw: RawData
    embedding: EmbedPlan | None
    """Images only: how they become features."""
    force: bool
    what: str
    """What came, in a few words."""
    seconds: tuple[float | None, float]
    """For the features, None where that is not known, and for training."""

    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tables only: columns of texts, which the list of suspects shows."""

    def details(self) -> list[str]:
        """Say what becomes of the examples before they are learnt from, line by line; nothing of features."""
        encoding = self.raw.encoding if self.embedding is None else self.embedding.origin.encoding
        return restore(encoding).describe() if encoding is not None else []

    def left_out(self) -> list[str]:
        """Say which columns of a table are not learnt from, and why, line by line."""
        return [line for line in self.details() if " left out " in line] if self.embedding is None else []

    def line(self) -> str:
        """Say it in one line."""
        embed, learn = self.seconds
        common = self.config.common
        steps = [f"train {common.method} for {common.epochs} epochs ({duration(learn)})"]
        whole = "" if embed is None else f"; about {duration(embed + learn)} in all"
        if self.embedding is not None:
            time = "on a Ray cluster" if embed is None else duration(embed)
            how = "there already" if self.embedding.is_done else time
            steps.insert(0, f"{self.embedding.encoder.describe()[0]} ({how})")
        return f"{self.what}: {', then '.join(steps)}{whole}"

    def execute(self) -> CleanResult:
        """Do it: write the run, its report, the list of suspects and, where there are any, the duplicates."""
        raw = self.raw
        skipped: tuple[Skipped, ...] = ()
        if self.embedding is not None:
            self.run.begin()
            self.run.own(layout.EMBEDDED)
            made = self.embedding.run(make_reporter(self.execution.quiet))
            raw, skipped = made.features, made.skipped
        try:
            train_run(self.run, self.config, self.execution, raw=raw, force=self.force)
        except Stopped as stop:
            kept = "the features are kept: " if self.embedding else ""
            raise Stopped(f"stopped; {kept}begin again with --force", stop.signal) from stop
        if skipped:
            write_text(self.run.own(layout.SKIPPED), skipped_csv(skipped))
        cleaned = _find_suspects(self.run, raw, self.config.common.data.path, skipped, self.texts)
        report_finished(self.run)
        return cleaned


def clean(data: str | Path, out: str | Path, *, force: bool = False, **options: Unpack[CleanOptions]) -> CleanResult:
    """Find the labels that look wrong; write a run folder with a list of them and a report.

    Does what ``unflip clean`` does. Images become features first, which are kept in ``out`` as ``embedded.npz`` and
    used again by the next call.

    Args:
        data: images, a table or feature arrays, as ``unflip clean --help`` lists them.
        out: the run's folder.
        force: replace the run in ``out``; its features are kept.
        options: those of ``unflip.tasks.options.CleanOptions``; ``unflip clean --help`` describes them.
    """
    return plan_cleaning(data, out, force=force, **options).execute()


def plan_cleaning(
    data: str | Path, out: str | Path, *, force: bool = False, **options: Unpack[CleanOptions]
) -> CleanPlan:
    """Read the data, choose what to do with it, and find out how long that takes; nothing is written.

    The arguments are those of ``clean``.
    """
    run = Run(Path(out))
    if run.exists and not force:
        raise RunFolderError(f"{run.folder}: already holds a run; name another folder, or replace it with --force")
    run.check_free(resume=False, force=force)
    tree = option_tree(CleanOptions, options)
    execution = check_section(Execution, tree.pop("execution", {}))
    typed_data, typed_embedding = tree.pop("data", {}), tree.pop("embedding", {})
    backbone = check_section(EmbeddingOptions, typed_embedding)
    data_options = check_section(DataOptions, {"path": str(Path(data)), **typed_data}, "data.")
    raw = load_raw(data_options)
    check_used(data_options, typed_data, EMBEDDING_USES if raw.holds_images else ())
    if not raw.holds_images:
        check_images_only({"embedding": typed_embedding}, data)
    if raw.train.labels is None:
        raise InputError(
            f"{data_options.path}: {raw.unlabelled}; every example needs its label (in another file: train --labels)"
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
            {"path": str(embedding.out), "reviewed": data_options.reviewed}, count, tree, of_columns=False
        )
        embed, width = embedding.estimate()
        learn = _rehearse_made_up(config, execution, count, width, classes)
        what = f"{raw.name}: {count:,} images in {classes} classes"
        return CleanPlan(run, config, execution, raw, embedding, force, what, (embed, learn))
    own = data_options.model_dump(mode="json", exclude_defaults=True)
    config = _configure(own, count, tree, of_columns=isinstance(raw.train.inputs, Cells))
    encoded = encode_raw(raw, data_options)
    learn = rehearse(config, execution, encoded).seconds
    width = int(np.prod(encoded.train.inputs.shape[1:]))
    what = f"{raw.name}: {count:,} examples of {width} features in {classes} classes"
    return CleanPlan(run, config, execution, encoded, None, force, what, (0.0, learn), _texts(raw, encoded))


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
        settings["data.standardize"] = "columns"
    given = {key: value for key, value in data.items() if value is not None}
    flags = {"method": method, "epochs": size.epochs, "seed": 0, "select": "last"} | tree | {"data": given}
    return make_layers(flags, preset="features", settings=settings).resolve()


def _check_labels(embedding: EmbedPlan, options: DataOptions) -> None:
    """Refuse labels that training would refuse, by stand-ins for the features, which may take long."""
    label_data(embedding.stand_in(1), DataOptions(path=options.path, reviewed=options.reviewed, standardize="off"))


def _rehearse_made_up(config: RunConfig, execution: Execution, count: int, width: int, classes: int) -> float:
    """Return how long training would take on features of so many examples, by rehearsals on made-up ones.

    Of many, two smaller numbers are rehearsed: what an epoch costs whatever the number, such as a decomposition for
    each class, must not be multiplied.
    """
    common = config.common
    data = common.data.model_copy(update={"reviewed": None})
    config = replace(config, common=common.model_copy(update={"data": data}))

    def seconds(rows: int) -> float:
        features = np.random.default_rng(0).standard_normal((rows, width), np.float32).astype(np.float16)
        return rehearse(config, execution, RawData(LabelledSet(features, np.arange(rows) % classes))).seconds

    few = max(min(max(count // _MORE**3, _REHEARSED[0]), _REHEARSED[1]), _MORE * classes)
    more = _MORE * few
    if count <= more:
        return seconds(count)
    first, second = seconds(few), seconds(more)
    return second + max(second - first, 0.0) * (count - more) / (more - few)


def _texts(raw: RawData, encoded: RawData) -> dict[str, list[str]]:
    """Return the columns of texts in a table, for all examples that train or validate."""
    found: dict[str, list[str]] = {}
    names = text_columns(encoded.encoding) if encoded.encoding is not None else ()
    for part in (raw.train, raw.val):
        if part is not None and isinstance(part.inputs, Cells):
            for name in names:
                found.setdefault(name, []).extend(part.inputs.table[name].to_pylist())
    return found


def _find_suspects(
    run: Run, raw: RawData, data: str, skipped: Sequence[Skipped], texts: Mapping[str, Sequence[str]]
) -> CleanResult:
    """Write the labels that look wrong, and the same examples under different labels."""
    table = run.labels()
    of_images = raw.encoding is not None and raw.encoding.encoder == "images"
    called = "path" if of_images and raw.train.ids is not None else "id"
    columns = {"index": table["index"], called: table["id"], "given": names_of(table, "given")}
    order = most_doubtful_first(table)
    suspects = pa.table(columns | {"suggested": names_of(table, "suggested"), "quality": table["quality"]})
    for name, cells in texts.items():
        suspects = suspects.append_column(name if name not in suspects.column_names else f"{name}_", pa.array(cells))
    suspects = suspects.take(order[looks_wrong(table)[order]])
    write_atomically(run.own(layout.SUSPECTS), lambda path: pa.csv.write_csv(suspects, path))
    same = np.concatenate([identities(part) for part in (raw.train, raw.val) if part is not None])
    duplicates = conflicting_groups(same, table["given"].to_numpy())
    if duplicates:
        group = pa.array(np.repeat(np.arange(len(duplicates)), [len(rows) for rows in duplicates]))
        rows = pa.table(columns).take(np.concatenate(duplicates)).add_column(0, "group", group)
        write_atomically(run.own(layout.DUPLICATES), lambda path: pa.csv.write_csv(rows, path))
    pairs = Counter(zip(suspects["given"].to_pylist(), suspects["suggested"].to_pylist(), strict=True))
    return CleanResult(
        run=run,
        data=data,
        of_images=of_images,
        count=len(table),
        suspects=suspects,
        sure=int((suspects["quality"].to_numpy() < SURE).sum()),
        expected=expect_errors(table["quality"].to_numpy()),
        decided=_decided(table),
        pairs=[(str(given), str(suggested), count) for (given, suggested), count in pairs.most_common()],
        duplicates=duplicates,
        skipped=skipped,
    )


def _decided(table: pa.Table) -> tuple[int, int]:
    reviewed, changed = (table[name].to_numpy() for name in ("reviewed", "changed"))
    return int(reviewed.sum()), int((reviewed & changed).sum())
