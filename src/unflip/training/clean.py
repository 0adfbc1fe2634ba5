"""clean: from data as it is to a list of labels that look wrong."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from unflip.data.array_files import Array
from unflip.data.dataset import DataOptions, Loaded, choose_labels, load_inputs
from unflip.data.duplicates import conflicting_groups, identities
from unflip.data.image_files import Skipped, skipped_csv
from unflip.data.label_files import find_classes
from unflip.data.reviewed import read_reviewed
from unflip.errors import InputError, RunFolderError, Stopped
from unflip.files import write_atomically, write_text
from unflip.training.config import check_data
from unflip.training.defaults import choose_size
from unflip.training.dry_run import dry_run, duration
from unflip.training.embed import BACKBONE, Embedding, prepare_embedding
from unflip.training.folder import Run
from unflip.training.progress import make_reporter
from unflip.training.train import train

SURE = 0.05
"""A label for which less than this speaks counts as surely wrong."""
_FEATURES = "embedded.npz"
_REHEARSED = 2048  # rows from which training on features that are not there yet is estimated


@dataclass(frozen=True)
class Cleaned:
    """A finished run, and what it says of the labels."""

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
    pairs: Sequence[tuple[str, str, int]]
    """Given and suggested class, and how many suspects; the most frequent first."""
    duplicates: Sequence[Array]
    """The rows of each example that is there under several labels."""
    skipped: Sequence[Skipped]


@dataclass(frozen=True)
class Cleaning:
    """What is going to be done, and how long that will take."""

    out: Path
    options: DataOptions
    what: str
    """What came, in a few words."""
    embedding: Embedding | None
    """For images: how they become features."""
    arguments: dict[str, Any]
    """Those of :func:`unflip.training.train.train`, but for the data and the folder."""
    seconds: tuple[float, float]
    """For the features, and for training."""

    def line(self) -> str:
        """Say it in one line."""
        embed, learn = self.seconds
        steps = [f"train {self.arguments['method']} for {self.arguments['epochs']} epochs ({duration(learn)})"]
        if self.embedding is not None:
            about = self.embedding.about
            how = "there already" if self.embedding.is_done else duration(embed)
            steps.insert(0, f"features by {about.backbone} at {about.image_size} pixels ({how})")
        return f"{self.what}: {', then '.join(steps)}; about {duration(embed + learn)} in all"

    def execute(self, *, quiet: bool = True) -> Cleaned:
        """Do it: write the run, the list of suspects and, where there are any, the duplicates."""
        data = self.options.path
        skipped: tuple[Skipped, ...] = ()
        if self.embedding is not None:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunFolderError(f"cannot write to {self.out}: {error.strerror}") from error
            made = self.embedding.run(make_reporter(quiet))
            data, skipped = str(made.path), made.skipped
        try:
            run = train(data, self.out, quiet=quiet, **self.arguments)
        except Stopped as stop:
            kept = "the features are kept: " if self.embedding else ""
            raise Stopped(f"stopped; {kept}begin again with --force", stop.signal) from stop
        if skipped:
            write_text(self.out / "skipped.csv", skipped_csv(skipped))
        table = run.labels()
        _, loaded = load_inputs(self.options.model_copy(update={"path": data}))
        of_images = loaded.train.digests is not None
        called = "path" if of_images and loaded.train.ids is not None else "id"
        suspects = _suspects(table, called)
        write_atomically(self.out / "suspects.csv", lambda path: pa.csv.write_csv(suspects, path))
        duplicates = _duplicates(loaded, table["given"].to_numpy())
        if duplicates:
            rows = _duplicate_rows(table, duplicates, called)
            write_atomically(self.out / "duplicates.csv", lambda path: pa.csv.write_csv(rows, path))
        pairs = Counter(zip(suspects["given"].to_pylist(), suspects["suggested"].to_pylist(), strict=True))
        return Cleaned(
            run=run,
            data=data,
            of_images=of_images,
            count=len(table),
            suspects=suspects,
            sure=int((suspects["quality"].to_numpy() < SURE).sum()),
            pairs=[(str(given), str(suggested), count) for (given, suggested), count in pairs.most_common()],
            duplicates=duplicates,
            skipped=skipped,
        )


def prepare_cleaning(
    data: str | Path,
    out: str | Path,
    *,
    label_column: str | None = None,
    ignore: Sequence[str] = (),
    reviewed: str | Path | None = None,
    backbone: str = BACKBONE,
    weights: str | Path | None = None,
    image_size: int | None = None,
    skip_broken: bool = False,
    method: str = "unflip",
    epochs: int | None = None,
    seed: int = 0,
    force: bool = False,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = True,
) -> Cleaning:
    """Look at what came, choose what to do with it, and find out how long that takes; nothing is written.

    Images become features first, which are kept beside the run as ``embedded.npz`` and used again by the next call.
    """
    out = Path(out)
    run = Run(out)
    if run.config_path.exists() and not force:
        raise RunFolderError(f"{out}: already holds a run; name another folder, or replace it with --force")
    run.check_free(resume=False, force=force)
    options = check_data(
        path=str(Path(data)), label_column=label_column, ignore=tuple(ignore), image_size=image_size,
        skip_broken=skip_broken, reviewed=None if reviewed is None else str(reviewed),
    )  # fmt: skip
    name, loaded = load_inputs(options)
    if loaded.train.labels is None:
        raise InputError(
            f"{options.path}: {loaded.unlabelled}; every example needs its label (in another file: train --labels)"
        )
    examples, labels, which = choose_labels(loaded, options)
    classes = len(np.unique(labels))
    if classes < 2:
        raise InputError(f"{which}: {classes} class among {len(labels)} labels; at least two are needed")
    count = len(examples.inputs) + (len(loaded.val.inputs) if loaded.val else 0)
    size = choose_size(count)
    arguments: dict[str, Any] = {
        "method": method,
        "epochs": epochs or size.epochs,
        "seed": seed,
        "reviewed": reviewed,
        "select": "last",
        "preset": "features",
        "settings": {
            "optimizer.batch_size": size.batch_size,
            "optimizer.lr": size.lr,
            "mlp.hidden": list(size.hidden),
        },
        "force": force,
        "device": device,
        "threads": threads,
    }
    if loaded.normalisation is not None:
        embedding = prepare_embedding(
            options, out / _FEATURES, backbone=backbone, weights=None if weights is None else Path(weights), force=True,
            device=device, threads=threads, track=make_reporter(quiet).track,
        )  # fmt: skip
        if reviewed is not None:  # checked now, since features may take long
            names = find_classes(labels, loaded.class_names, which)[1] or [str(i) for i in range(int(labels.max()) + 1)]
            kept = [embedding.sets[part] for part in ("train", "val") if part in embedding.sets]
            ids = [str(name) for part in kept if part.ids is not None for name in part.ids]
            read_reviewed(Path(reviewed), sum(len(part.inputs) for part in kept), ids or None, names)
        embed, width = embedding.estimate()
        learn = _rehearse(count, width, classes, arguments | {"reviewed": None})
        what = f"{name}: {count:,} images in {classes} classes"
        return Cleaning(out, options, what, embedding, arguments, (embed, learn))
    arguments |= {"label_column": label_column, "ignore": tuple(ignore)}
    if loaded.columns is not None:  # which have units of their own
        arguments["settings"] |= {"data.standardize": "columns"}
    learn = dry_run(options.path, out, **arguments).seconds
    width = int(np.prod(examples.inputs.shape[1:]))
    what = f"{name}: {count:,} examples of {width} features in {classes} classes"
    return Cleaning(out, options, what, None, arguments, (0.0, learn))


def _rehearse(count: int, width: int, classes: int, arguments: dict[str, Any]) -> float:
    """Return how long training would take on features of so many examples, by a rehearsal on made-up ones."""
    rows = min(count, max(_REHEARSED, 2 * classes))
    labels = np.arange(rows) % classes
    features = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float16)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "features.npz")
        np.savez(path, train=features, train_labels=labels)
        return dry_run(path, Path(folder, "run"), **arguments).seconds * count / rows


def _suspects(table: pa.Table, called: str) -> pa.Table:
    """Return the labels that look wrong: those for which something else is suggested."""
    given, suggested = _names(table, "given"), _names(table, "suggested")
    order = table["quality"].to_numpy().argsort(kind="stable")
    order = order[(table["given"].to_numpy() != table["suggested"].to_numpy())[order]]
    order = order[~table["reviewed"].to_numpy(zero_copy_only=False)[order]]
    columns = {"index": table["index"], called: table["id"], "given": given, "suggested": suggested}
    return pa.table(columns | {"quality": table["quality"]}).take(order)


def _duplicates(loaded: Loaded, given: Array) -> list[Array]:
    same = np.concatenate([identities(part) for part in (loaded.train, loaded.val) if part is not None])
    return conflicting_groups(same, given)


def _duplicate_rows(table: pa.Table, groups: Sequence[Array], called: str) -> pa.Table:
    """Return a row for each example of each group: which group, which example, and its given label."""
    rows = np.concatenate(groups)
    number = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    found = pa.table({"index": table["index"], called: table["id"], "given": _names(table, "given")}).take(rows)
    return found.add_column(0, "group", pa.array(number))


def _names(table: pa.Table, kind: str) -> pa.ChunkedArray:
    """Return labels by class name, or by number where classes have none."""
    return table[f"{kind}_name" if f"{kind}_name" in table.column_names else kind]
