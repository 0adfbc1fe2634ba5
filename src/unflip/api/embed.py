"""embed: compute frozen features of a data set once, as a file that every command takes.

Images are embedded in parts of 1,024. Finished parts are saved beside the feature file until it is complete, so that an
interrupted call can be resumed (:class:`PartFiles`).
"""

import json
import logging
import os
import stat
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from unflip.api.options import EMBED, EmbeddingOptions, option_tree
from unflip.compute import Cluster, find_device, find_ray
from unflip.data.arrays import Array, Pieces, read_npz, write_npz
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Inputs, Split
from unflip.data.files import BrokenImageError, ImageFiles, ResizeCrop, Skipped, make_pool
from unflip.data.images import check_broken
from unflip.data.loaders import check_used, load_raw
from unflip.data.loaders.arrays import (
    DIGESTS,
    IMAGE_STATS,
    STATES,
    FeatureOrigin,
    feature_folder,
    is_file,
    read_origin,
    write_features,
    write_labels,
)
from unflip.data.options import DataOptions
from unflip.data.split import row_hashes
from unflip.encoders.base import restore
from unflip.encoders.image import (
    Advance,
    Embedded,
    ImageEncoder,
    WorkerOptions,
    embed_on,
    embed_part,
    image_options,
    read_batches,
)
from unflip.encoders.table import columns_of, encode_raw
from unflip.errors import ConfigError, InputError, RunFolderError, Stopped, UnflipWarning
from unflip.files import LOCK, Interruption, locked, naming_target, remove_partial
from unflip.options import Options
from unflip.progress import Track, make_reporter
from unflip.runs.config import Tree, check_section
from unflip.runs.layout import check_output
from unflip.runs.options import Execution

_log = logging.getLogger(__name__)
EMBEDDING_USES = ("image_size", "image_resize", "resample")
"""Data options that apply to images of every loader."""
PART = 1024
"""Number of images in a part."""
SAMPLE_IMAGES = 256
"""Number of images of each split that are read before anything is computed."""
_PER_IMAGE = ("digests", "image_stats")
_PART_FILES = "[0-9a-f]" * 16 + "-*-" + "[0-9]" * 9 + ".npz"  # fingerprint, split, first row


@dataclass(frozen=True)
class EmbedResult:
    """A finished feature file.

    Attributes:
        path: the file, or the folder of shards.
        features: the data set of features.
        examples: the raw examples of each split.
        reused: whether the features were already there.
        seconds: duration.
        how: the encoding, line by line.
    """

    path: Path
    features: Dataset
    examples: Mapping[str, Inputs]
    reused: bool
    seconds: float
    how: Sequence[str]

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Images that could not be read."""
        return self.features.skipped

    @property
    def counts(self) -> dict[str, int]:
        """Number of examples in each split."""
        return {name: len(part.inputs) for name, part in self.features.parts().items()}

    @property
    def num_features(self) -> int:
        """Number of features per example."""
        return int(self.features.train.inputs.shape[1])


def embed(data: str | Path, out: str | Path, *, force: bool = False, **options: Any) -> EmbedResult:
    """Write the features of a data set of images, texts or rows to ``out``, as ``unflip embed`` does.

    Labels, class names, ids, splits and the encoder are saved with the features. An interrupted call is resumed; if
    ``out`` already has the features of these images, only the labels are updated.

    Args:
        data: images, or a table of columns or texts, as ``unflip embed --help`` lists them.
        out: an .npz file in an existing folder, or a folder for shards of 65,536 examples.
        force: replace other features at ``out``.
        options: those of ``unflip.api.options.EMBED``, as in ``unflip embed --help``.
    """
    out = Path(out)
    _check_target(out, force=True, inputs=[data])
    tree = option_tree(EMBED, options)
    execution = check_section(Execution, tree.get("execution", {}))
    raw, data_options, embedding = read_data(data, tree)
    if isinstance(raw.train.inputs, Table):
        _check_target(out, force=force)
        return _encode_table(raw, out, data_options, make_reporter(execution.quiet).track)
    plan = plan_embedding(raw, out, data_options, embedding, execution)
    _check_target(out, force=force or plan.finished is not None)
    return plan.run()


def _check_target(out: Path, *, force: bool, inputs: Sequence[str | Path] = ()) -> None:
    if is_file(out):
        check_output(out, force=force, inputs=inputs)
        return
    if out.suffix and not out.is_dir():
        raise ConfigError(f"--out {out}: cannot write '{out.suffix}'; give an .npz file, or a folder for shards")
    folder = feature_folder(out)
    folder.check()
    if folder.is_marked and read_origin(out) is not None and not force:
        raise RunFolderError(f"--out {out}: already holds features; replace them with --force")


def read_data(
    data: str | Path,
    tree: Tree,
    typed: Collection[str] | None = None,
    parts: Mapping[str, Options] = MappingProxyType({}),
) -> tuple[Dataset, DataOptions, EmbeddingOptions]:
    """Read the data, and check the sections of ``tree`` that apply to it.

    Args:
        data: the file, folder or name.
        tree: with the sections ``data`` and ``embedding``.
        typed: the keys of ``data`` that must have an effect; by default all of them.
        parts: options of loaders by name.
    """
    own, backbone = tree.get("data", {}), tree.get("embedding", {})
    embedding = check_section(EmbeddingOptions, backbone)
    if not isinstance(own, dict):
        raise ConfigError(f"data = {own!r}: must be a section")
    options = check_section(DataOptions, {**own, "path": str(Path(data))}, "data.")
    raw = load_raw(options, parts)
    check_used(options, own if typed is None else typed, EMBEDDING_USES if raw.holds_images else ())
    if backbone and not raw.holds_images:
        raise ConfigError(f"--{next(iter(backbone)).replace('_', '-')} is for images, and {data} holds none")
    return raw, options, embedding


def _encode_table(raw: Dataset, out: Path, options: DataOptions, track: Track) -> EmbedResult:
    started = time.perf_counter()
    features = encode_raw(raw, options, track)
    assert features.encoding is not None
    if raw.train.labels is None and raw.label_column is None and Path(options.path).is_file():
        used = ", ".join(columns_of(features.encoding))
        text = f"{options.path}: {raw.unlabeled}; now these columns become features: {used}"
        warnings.warn(text, UnflipWarning, stacklevel=3)
    rows = {name: part.inputs for name, part in features.parts().items() if isinstance(part.inputs, np.ndarray)}
    origin = FeatureOrigin(features.encoding, str(Path(options.path).resolve()), "", clean_val=raw.clean_val)
    write_features(out, rows, features.parts(), raw.class_names, origin)
    seconds, how = time.perf_counter() - started, restore(features.encoding).describe()
    examples = {name: part.inputs for name, part in raw.parts().items()}
    return EmbedResult(out, replace(features, name=out.name), examples, False, seconds, how)


def plan_embedding(
    raw: Dataset, out: Path, options: DataOptions, embedding: EmbeddingOptions, execution: Execution
) -> "EmbedPlan":
    """Choose the encoder, and find out which images it has yet to embed.

    Args:
        raw: data set of images.
        out: the feature file, or the folder of shards.
        options: with which ``raw`` was loaded.
        embedding: backbone, weights and backend.
        execution: device, threads, and whether progress is shown.
    """
    if embedding.address is not None and embedding.backend != "ray":
        raise ConfigError(f"--address {embedding.address} needs --backend ray")
    if embedding.backend == "ray":
        find_ray(embedding.address)
    if not raw.holds_images:
        raise InputError(f"data {options.path}: holds no images; there is nothing to embed")
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    device = torch.device(find_device(execution.device))
    raw.check_trainable(options.path)
    assert isinstance(raw.train.inputs, np.ndarray | ImageFiles)
    encoder = ImageEncoder.choose(
        embedding.backbone, raw.train.inputs, options, embedding.weights, embedding.feature_precision
    )
    encoding = encoder.encoding()
    options = image_options(encoding, options)
    frame = ResizeCrop(encoder.settings.image_size, encoder.settings.image_resize, options.resample)
    sets = {
        name: replace(part, inputs=replace(part.inputs, frame=frame)) if isinstance(part.inputs, ImageFiles) else part
        for name, part in raw.parts().items()
    }
    data = str(Path(options.path).resolve())
    settings = {key: value for key, value in encoding.settings.items() if key != "weights_file"}
    recipe = json.dumps([encoding.encoder, settings, data, "5 image_stats"])
    sets = _with_states(sets, options, make_reporter(execution.quiet).track)
    digest = _fingerprint(recipe, sets)
    earlier = _earlier_features(out, encoding, digest, sets)
    parts = _split_into_parts(sets, earlier, recipe)
    origin = FeatureOrigin(
        encoding, data, digest, class_map=raw.class_map, clean_val=raw.clean_val, label_column=options.label_column
    )
    files = PartFiles(out.with_name(f"{out.name}.parts"), parts)
    encoder.to(device, embedding.batch_size)
    plan = EmbedPlan(out, origin, raw, sets, files, options, embedding, execution, encoder, earlier)
    if plan.finished is None:
        plan.check_sample()
    return plan


@dataclass(frozen=True)
class EmbedPlan:
    """A feature file to be computed.

    Attributes:
        out: the feature file, or the folder of shards.
        origin: how the features are computed, with a fingerprint of the images.
        raw: the data set.
        sets: the images of each split, with the size for the backbone; some may turn out to be broken.
        files: the parts that are already computed.
        options: how images are read.
        embedding: backbone and backend.
        execution: device and threads.
        encoder: the encoder on its device.
        earlier: features of some of these images that ``out`` has already.
    """

    out: Path
    origin: FeatureOrigin
    raw: Dataset
    sets: Mapping[str, Split]
    files: "PartFiles"
    options: DataOptions
    embedding: EmbeddingOptions
    execution: Execution
    encoder: ImageEncoder
    earlier: "EarlierFeatures"

    @cached_property
    def finished(self) -> FeatureOrigin | None:
        """How the features in ``out`` were computed, if they are those of these images already."""
        try:
            origin = read_origin(self.out)
        except InputError:  # something else, or damaged
            return None
        if origin is None or origin.fingerprint != self.origin.fingerprint:
            return None
        return origin if self.options.skip_broken or not origin.skipped else None

    def check_sample(self) -> None:
        """Read some images of each split, so that broken data is reported before anything is written or replaced."""
        for name, images in self._files.items():
            count = min(len(images), SAMPLE_IMAGES)
            rows = torch.arange(count) * len(images) // count
            source = self.encoder.source(images, self.options.workers)
            batches = read_batches(source, rows.split(self.encoder.batch_size))
            broken = {row: reason for _, reasons in batches for row, reason in reasons.items()}
            if len(rows) == len(images) or not self.options.skip_broken:
                check_broken(name, images, broken, self.options)

    def run(self) -> EmbedResult:
        """Compute the missing parts, write the file, and update its labels."""
        started, reused = time.perf_counter(), self.finished is not None
        origin = self.finished or self._embed()
        readable = self._readable(origin.skipped)
        written = load_raw(self.options.model_copy(update={"path": str(self.out)})).parts()
        sets = {
            name: replace(part, **{key: getattr(written[name], key) for key in ("inputs", *_PER_IMAGE)})
            for name, part in readable.items()
        }
        changed = any(not np.array_equal(part.labels, written[name].labels) for name, part in sets.items())  # type: ignore[arg-type]
        if reused and changed:
            write_labels(self.out, sets, self.raw.class_names, origin)
        features = replace(self.raw.with_parts(sets), normalization=None, encoding=self.origin.encoding)
        features = replace(features, images_path=origin.data, skipped=origin.skipped)
        examples = {name: part.inputs for name, part in readable.items()}
        seconds, how = time.perf_counter() - started, self.encoder.describe()
        return EmbedResult(self.out, features, examples, reused, seconds, how)

    @property
    def _files(self) -> dict[str, ImageFiles]:
        return {name: part.inputs for name, part in self.sets.items() if isinstance(part.inputs, ImageFiles)}

    def _readable(self, skipped: Sequence[Skipped]) -> dict[str, Split]:
        """Return the splits without images that could not be read."""
        sets = dict(self.sets)
        for name in {image.part for image in skipped}:
            broken = {image.id for image in skipped if image.part == name}
            sets[name] = sets[name][np.array([str(image) not in broken for image in self._files[name].names])]
        return sets

    def _embed(self) -> FeatureOrigin:
        """Compute the missing parts, and write the file."""
        with self.files.at_work():
            finished, done, reporter = self.files.finished, self.files.done, make_reporter(self.execution.quiet)
            missing = [part for part in self.files.parts if part not in finished]
            _log.info("embedding %d images; %d are done", self.files.total - done, done)
            broken: dict[str, dict[int, str]] = {name: {} for name in self.sets}
            missing_rows = {name: np.flatnonzero(self.earlier.rows[name] < 0).tolist() for name in self.sets}
            for part in finished:
                broken[part.set] |= {missing_rows[part.set][row]: why for row, why in self.files.broken(part).items()}

            def advance(count: int) -> None:
                nonlocal done
                if interruption.signal is not None:
                    raise Stopped(f"stopped; {self.files.describe()}", interruption.signal)
                done += count
                reporter.items(done, self.files.total, "images")

            with reporter, Interruption() as interruption:
                reporter.start("embedding", self.files.total, done + 1)
                self._check_broken(broken)
                for part, embedded in self._compute(missing, advance):
                    rows = missing_rows[part.set]
                    broken[part.set] |= {rows[part.start + row]: reason for row, reason in embedded.broken.items()}
                    self._check_broken(broken)
                    self.files.write(part, embedded)
            skipped = tuple(
                Skipped(name, str(self._files[name].names[row]), reason)
                for name, reasons in broken.items()
                for row, reason in sorted(reasons.items())
            )
            origin = replace(self.origin, skipped=skipped)
            keep = {
                name: np.delete(np.arange(len(part.inputs)), list(broken[name])) for name, part in self.sets.items()
            }
            sets = {
                name: replace(part, **{key: cast(Any, self._merged(name, key, keep[name])) for key in _PER_IMAGE})
                for name, part in self._readable(skipped).items()
            }
            features = {name: self._merged(name, "features", keep[name]) for name in sets}
            write_features(self.out, features, sets, self.raw.class_names, origin)
        return origin

    def _merged(self, name: str, what: str, keep: Array) -> Array | Pieces:
        """Return features, digests or statistics of a split's images at ``keep``: computed ones, and earlier ones."""
        rows = self.earlier.rows[name][keep]
        if (rows < 0).all():
            return self.files.features(name) if what == "features" else self.files.read(name, what)
        known = self.earlier.arrays[what]
        merged = np.empty((len(rows), *known.shape[1:]), known.dtype)
        merged[rows >= 0] = known[rows[rows >= 0]]
        if (rows < 0).any():
            merged[rows < 0] = self.files.read(name, what)
        return merged

    def _compute(self, parts: Sequence["Part"], advance: Advance) -> Iterator[tuple["Part", Embedded]]:
        """Yield parts and their features, computed on this machine or on a Ray cluster."""
        if self.embedding.backend == "local":
            for part in parts:
                yield part, embed_part(self.encoder, part.images, self.options.workers, advance)
        elif parts:
            device, threads = self.execution.device, self.execution.threads or 1
            options = WorkerOptions(device, threads, self.options.workers or threads, self.embedding.batch_size)
            with Cluster(self.embedding.address, device, threads) as cluster:
                images = [part.images for part in parts]
                for index, embedded in embed_on(cluster, self.origin.encoding, images, options, advance):
                    yield parts[index], embedded

    def _check_broken(self, broken: Mapping[str, Mapping[int, str]]) -> None:
        for name, images in self._files.items():
            check_broken(name, images, broken[name], self.options)


@dataclass(frozen=True, eq=False)
class Part:
    """Images of a split that are embedded together; the fingerprint covers the images and the encoding."""

    set: str
    start: int
    images: Array | ImageFiles
    fingerprint: str

    @property
    def file(self) -> str:
        """Name of the file of its features."""
        return f"{self.fingerprint}-{self.set}-{self.start:09}.npz"


class EarlierFeatures(NamedTuple):
    """Features of images that were computed before."""

    rows: Mapping[str, Array]
    """By split: the row of each image among them (n,), -1 for new images."""
    arrays: Mapping[str, Array]
    """``features``, ``digests`` and ``image_stats``; empty without any."""

    @property
    def new(self) -> int:
        """Number of images that have yet to be embedded."""
        return sum(int((rows < 0).sum()) for rows in self.rows.values())


def _earlier_features(out: Path, encoding: Encoding, digest: str, sets: Mapping[str, Split]) -> EarlierFeatures:
    """Find images in the feature file ``out``, by the states of their files, if it was computed in the same way.

    Not if it has the fingerprint ``digest``: then it is complete.
    """
    rows = {name: np.full(len(part.inputs), -1) for name, part in sets.items()}
    try:
        origin = read_origin(out) if is_file(out) and out.is_file() else None
        if (
            origin is None
            or origin.fingerprint == digest
            or encoding.differences(replace(origin.encoding, arrays=encoding.arrays))
        ):
            return EarlierFeatures(rows, {})
        content = read_npz(out)
    except InputError:  # something else, or damaged
        return EarlierFeatures(rows, {})
    names = [name for name in content if name + STATES in content]
    if not names:
        return EarlierFeatures(rows, {})
    suffixes = {"features": "", "digests": DIGESTS, "image_stats": IMAGE_STATS}
    arrays = {what: np.concatenate([content[name + suffix] for name in names]) for what, suffix in suffixes.items()}
    states = np.concatenate([content[name + STATES] for name in names])
    order = states.argsort(kind="stable")
    for name, part in sets.items():
        wanted = np.asarray(part.states)
        places = np.searchsorted(states, wanted, sorter=order).clip(max=len(states) - 1)
        found = order[places]
        rows[name] = np.where((states[found] == wanted) & (wanted != 0), found, -1)
    return EarlierFeatures(rows, arrays)


def _with_states(sets: Mapping[str, Split], options: DataOptions, track: Track) -> dict[str, Split]:
    """Return the splits with a hash per image (n,): of a file's path, size and modification time, or of its pixels.

    Links are followed, so that an image has the same state in a folder of links. A missing file is an error here,
    before anything is computed, unless broken images are skipped; then its state is 0.
    """

    def states(first: tuple[str, int]) -> Array:
        inputs = sets[first[0]].inputs
        images = inputs[first[1] : first[1] + PART]
        if isinstance(images, ImageFiles):
            return _file_states(images, options.skip_broken)
        return row_hashes(np.asarray(images))

    starts = [(name, start) for name, part in sets.items() for start in range(0, len(part.inputs), PART)]
    with make_pool(options.workers) as pool:
        blocks = [*track(pool.map(states, starts), "checking images", len(starts))]
    found: dict[str, list[Array]] = {name: [np.empty(0, np.uint64)] for name in sets}
    for (name, _), block in zip(starts, blocks, strict=True):
        found[name].append(block)
    return {name: replace(part, states=np.concatenate(found[name])) for name, part in sets.items()}


def _fingerprint(recipe: str, sets: Mapping[str, Split]) -> str:
    """Return a hash of how images are embedded, of their names, and of their states."""
    digest = blake2b(recipe.encode(), digest_size=8)
    for name, part in sets.items():
        names = [] if part.ids is None else part.ids.tolist()
        digest.update(json.dumps([name, *map(str, names)]).encode() + np.asarray(part.states).tobytes())
    return digest.hexdigest()


def _split_into_parts(sets: Mapping[str, Split], earlier: EarlierFeatures, recipe: str) -> list[Part]:
    """Split the images that have yet to be embedded into parts."""
    parts = []
    for name, part in sets.items():
        missing = np.flatnonzero(earlier.rows[name] < 0)
        for start in range(0, len(missing), PART):
            rows = missing[start : start + PART]
            inputs = part.inputs
            assert isinstance(inputs, np.ndarray | ImageFiles)
            images = inputs[start : start + PART] if len(missing) == len(inputs) else inputs[rows]
            digest = blake2b(json.dumps([recipe, name]).encode(), digest_size=8)
            digest.update(np.asarray(part.states)[rows].tobytes())
            parts.append(Part(name, start, images, digest.hexdigest()))
    return parts


def _file_states(files: ImageFiles, skip_missing: bool) -> Array:
    """Return a hash per file (n,); 0 for a missing one."""
    states, root = np.zeros(len(files), np.uint64), os.path.realpath(files.root)
    for index, name in enumerate(files.names):
        path = os.path.join(root, name)  # noqa: PTH118  # a third of a Path's time
        try:
            state = os.lstat(path)
            if stat.S_ISLNK(state.st_mode):
                path, state = os.path.realpath(path), os.stat(path)  # noqa: PTH116
        except OSError as error:
            if not skip_missing:
                raise BrokenImageError(files, index, error.strerror or str(error)) from error
            continue
        text = f"{path}|{state.st_size}|{state.st_mtime_ns}"
        states[index] = int.from_bytes(blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest())
    return states


@dataclass(frozen=True)
class PartFiles:
    """The folder with the finished parts of a feature file that is incomplete."""

    folder: Path
    parts: Sequence[Part]

    @property
    def total(self) -> int:
        """Number of images."""
        return sum(len(part.images) for part in self.parts)

    @property
    def finished(self) -> list[Part]:
        """The parts that are computed."""
        return [part for part in self.parts if (self.folder / part.file).exists()]

    @property
    def done(self) -> int:
        """Number of images in finished parts."""
        return sum(len(part.images) for part in self.finished)

    def describe(self) -> str:
        """Return how many images are done, and how to resume."""
        return f"{self.done} of {self.total} images are done; run the same command again to resume"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lock the folder, and remove it afterwards, unless the work failed and some parts are finished."""
        with naming_target(self.folder):
            self.folder.mkdir(exist_ok=True)
        with locked(self.folder / LOCK, busy="another process is computing these features"):
            try:
                with naming_target(self.folder):
                    remove_partial(self.folder)
                    self._unlink(keep={part.file for part in self.parts})
                yield
            except (InputError, RunFolderError) as error:
                if self.done:
                    kind = InputError if isinstance(error, InputError) else RunFolderError
                    raise kind(f"{error}; {self.describe()}") from error
                self._remove()
                raise
            self._remove()

    def write(self, part: Part, embedded: Embedded) -> None:
        """Save the features of a part."""
        rows, reasons = np.array([*embedded.broken], np.int64), np.array([*embedded.broken.values()], np.str_)
        write_npz(self.folder / part.file, embedded._asdict() | {"broken": rows, "reasons": reasons})

    def broken(self, part: Part) -> dict[int, str]:
        """Return why images of a finished part could not be read, by row in its split."""
        rows = (self._read(part, "broken") + part.start).tolist()
        return dict(zip(rows, self._read(part, "reasons").tolist(), strict=True))

    def read(self, name: str, what: str) -> Array:
        """Return the ``digests`` or ``image_stats`` of a split, without images that could not be read."""
        return np.concatenate([self._read(part, what) for part in self.parts if part.set == name])

    def features(self, name: str) -> Pieces:
        """Return the features of a split, read part by part."""
        parts = [part for part in self.parts if part.set == name]
        sizes = [self._read(part, "features").shape for part in parts]
        shape = sum(rows for rows, _ in sizes), max(columns for _, columns in sizes)
        return Pieces(shape, np.dtype(np.float16), lambda: (self._read(part, "features") for part in parts))

    def _read(self, part: Part, what: str) -> Array:
        return read_npz(self.folder / part.file, only=(what,))[what]

    def _unlink(self, keep: Collection[str] = ()) -> None:
        for file in self.folder.glob(_PART_FILES):
            if file.name not in keep:
                file.unlink(missing_ok=True)

    def _remove(self) -> None:
        with suppress(OSError):  # with other files in it
            self._unlink()
            (self.folder / LOCK).unlink(missing_ok=True)
            self.folder.rmdir()
