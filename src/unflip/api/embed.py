"""embed: frozen features of a data set's examples, as a file that every command takes.

Images are embedded in parts of 1,024. A finished part is kept beside the feature file until that is whole, so that a
call after a kill embeds only what is missing (:class:`KeptParts`).
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unflip.api.options import EMBED, EmbeddingOptions, option_tree
from unflip.data.arrays import Array, Pieces, read_npz, write_npz
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Inputs, Split
from unflip.data.decoding import BrokenImageError, make_pool
from unflip.data.files import ImageFiles, ResizeCrop, Skipped
from unflip.data.images import check_broken
from unflip.data.loaders import check_used, load_raw
from unflip.data.loaders.arrays import FeatureOrigin, feature_folder, is_file, read_origin, write_features, write_labels
from unflip.data.options import DataOptions
from unflip.encoders.base import restore
from unflip.encoders.image import (
    Advance,
    Embedded,
    ImageEncoder,
    Workplace,
    embed_on,
    embed_part,
    image_options,
    read_batches,
)
from unflip.encoders.table import encode_raw
from unflip.engine.distributed import start_processes
from unflip.errors import ConfigError, InputError, RunFolderError, Stopped
from unflip.files import LOCK, Interruption, locked, naming_target, remove_partial
from unflip.parallel import Cluster, find_ray
from unflip.progress import Reporter, Track, make_reporter, untracked
from unflip.runs.config import Tree, check_section
from unflip.runs.layout import check_output
from unflip.runs.options import Execution
from unflip.stats.rows import evenly_spaced

EMBEDDING_USES = ("image_size", "image_resize", "resample")  # options of data that matter for images of every kind
PART = 1024  # images in a part
_LOOKED_AT = 256  # images of each set that are read before anything is computed
_FILES = "[0-9a-f]" * 16 + "-*-" + "[0-9]" * 9 + ".npz"  # of parts: fingerprint, set, first row


@dataclass(frozen=True)
class EmbedResult:
    """A finished feature file.

    Attributes:
        path: the file, or the folder of shards.
        features: what it holds.
        examples: what the features of each part were computed from.
        origin: how they were made.
        skipped: images that could not be read.
        reused: whether the features were there already.
        seconds: how long it took.
        how: what became of the examples, line by line.
    """

    path: Path
    features: Dataset
    examples: Mapping[str, Inputs]
    origin: FeatureOrigin
    skipped: tuple[Skipped, ...]
    reused: bool
    seconds: float
    how: Sequence[str]

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples in each part."""
        return {name: len(part.inputs) for name, part in self.features.parts().items()}

    @property
    def num_features(self) -> int:
        """How many features an example has."""
        return int(self.features.train.inputs.shape[1])


def embed(data: str | Path, out: str | Path, *, force: bool = False, **options: Any) -> EmbedResult:
    """Write the features of all images, texts or rows of a data set to ``out``: an .npz file, or a folder of shards.

    Does what ``unflip embed`` does. Labels, class names, ids and the split into train, val and test sets go with the
    features, and so does the encoder. Of images, what an earlier call left unfinished is not computed again; in a
    finished file of the same images only the labels are brought up to date.

    Args:
        data: images, or a table of columns or texts, as ``unflip embed --help`` lists them.
        out: the file, whose folder must exist; what does not end in .npz is a folder, with 65,536 examples per file.
        force: replace other features at ``out``.
        options: those of ``unflip.api.options.EMBED``; ``unflip embed --help`` describes them.
    """
    out = Path(out)
    _check_target(out, force=True, inputs=[data])
    tree = option_tree(EMBED, options)
    typed = tree.get("data", {})
    data_options = check_section(DataOptions, {"path": str(Path(data)), **typed}, "data.")
    raw = load_raw(data_options)
    check_used(data_options, typed, EMBEDDING_USES if raw.holds_images else ())
    execution = check_section(Execution, tree.get("execution", {}))
    reporter = make_reporter(execution.quiet)
    embedding = check_section(EmbeddingOptions, tree.get("embedding", {}))
    if isinstance(raw.train.inputs, Table):
        check_images_only(tree, data)
        _check_target(out, force=force)
        return _encode_table(raw, out, data_options, reporter)
    plan = plan_embedding(raw, out, data_options, embedding, execution, track=reporter.track)
    _check_target(out, force=force or plan.is_done)
    return plan.run(reporter)


def _check_target(out: Path, *, force: bool, inputs: Sequence[str | Path] = ()) -> None:
    if is_file(out):
        check_output(out, force=force, inputs=inputs)
        return
    if out.suffix and not out.is_dir():
        raise ConfigError(f"--out {out}: cannot write '{out.suffix}'; name an .npz file, or a folder for shards")
    folder = feature_folder(out)
    folder.check()
    if folder.is_marked and read_origin(out) is not None and not force:
        raise RunFolderError(f"--out {out}: already holds features; replace them with --force or choose another name")


def check_images_only(tree: Tree, data: str | Path) -> None:
    """Refuse options of backbones that a person typed for data without images."""
    if typed := tree.get("embedding"):
        raise ConfigError(f"--{next(iter(typed)).replace('_', '-')} is for images, and {data} holds none; leave it out")


def _encode_table(raw: Dataset, out: Path, options: DataOptions, reporter: Reporter) -> EmbedResult:
    started = time.perf_counter()
    features = encode_raw(raw, options, reporter.track)
    assert features.encoding is not None
    rows = {name: part.inputs for name, part in features.parts().items() if isinstance(part.inputs, np.ndarray)}
    digest = blake2b(json.dumps([features.encoding.encoder, dict(features.encoding.settings)]).encode(), digest_size=8)
    for name, array in rows.items():
        digest.update(f"{name} {len(array)}".encode() + np.ascontiguousarray(array).data)
    data = str(Path(options.path).resolve())
    origin = FeatureOrigin(features.encoding, data, digest.hexdigest(), clean_val=raw.clean_val)
    write_features(out, rows, features.parts(), raw.class_names, origin)
    seconds, how = time.perf_counter() - started, restore(features.encoding).describe()
    examples = {name: part.inputs for name, part in raw.parts().items()}
    return EmbedResult(out, replace(features, name=out.name), examples, origin, (), False, seconds, how)


def plan_embedding(
    raw: Dataset,
    out: Path,
    options: DataOptions,
    embedding: EmbeddingOptions,
    execution: Execution,
    *,
    track: Track = untracked,
) -> "EmbedPlan":
    """Look at the images, and choose what the backbone sees of them; nothing is computed yet.

    Args:
        raw: what a loader found.
        out: the feature file, or the folder of shards.
        options: with which ``raw`` was loaded.
        embedding: which backbone and weights.
        execution: device and threads.
        track: is told how many parts have been looked at.
    """
    if embedding.address is not None and embedding.backend != "ray":
        raise ConfigError(f"--address {embedding.address} is that of a Ray cluster; add --backend ray")
    if embedding.backend == "ray":
        find_ray(embedding.address)
    if not raw.holds_images:
        raise InputError(f"data {options.path}: holds no images, so there is nothing to embed; train on it as it is")
    device = start_processes(execution.device, execution.threads).device
    raw.check_trainable(options.path)
    assert isinstance(raw.train.inputs, np.ndarray | ImageFiles)
    encoder = ImageEncoder.choose(
        embedding.backbone, raw.train.inputs, options, embedding.weights, embedding.feature_precision
    )
    encoding, seen = encoder.encoding(), encoder.settings
    options = image_options(encoding, options)
    frame = ResizeCrop(seen.image_size, seen.image_resize, options.resample)
    sets = {
        name: replace(part, inputs=replace(part.inputs, frame=frame)) if isinstance(part.inputs, ImageFiles) else part
        for name, part in raw.parts().items()
    }
    data = str(Path(options.path).resolve())
    settings = {key: value for key, value in encoding.settings.items() if key != "weights_file"}
    made = json.dumps([encoding.encoder, settings, data, "image_stats"])
    parts = _cut_into_parts(sets, made, options.workers, track, skip_missing=options.skip_broken)
    digest = blake2b("".join(part.file for part in parts).encode(), digest_size=8).hexdigest()
    origin = FeatureOrigin(encoding, data, digest, class_map=raw.class_map, clean_val=raw.clean_val)
    kept = KeptParts(out.with_name(f"{out.name}.parts"), parts)
    ready = encoder.to(device, embedding.batch_size)
    plan = EmbedPlan(out, origin, raw, sets, kept, options, embedding, execution, ready)
    if not plan.is_done:
        plan.look()
    return plan


@dataclass(frozen=True)
class EmbedPlan:
    """All that a feature file needs, found and checked.

    Attributes:
        out: the feature file, or the folder of shards.
        origin: how the features are made, with a fingerprint of the images.
        raw: the images.
        sets: the images by part, as the backbone sees them; some may turn out to be broken.
        kept: what an earlier call has computed.
        options: how images are read.
        embedding: which backbone, and where it runs.
        execution: device and threads.
        encoder: the backbone, ready to compute.
    """

    out: Path
    origin: FeatureOrigin
    raw: Dataset
    sets: Mapping[str, Split]
    kept: "KeptParts"
    options: DataOptions
    embedding: EmbeddingOptions
    execution: Execution
    encoder: ImageEncoder

    @property
    def is_done(self) -> bool:
        """Whether ``out`` holds the features of these images already."""
        return self._before is not None

    @cached_property
    def _before(self) -> FeatureOrigin | None:
        try:
            before = read_origin(self.out)
        except InputError:  # something else, or damaged
            return None
        if before is None or before.fingerprint != self.origin.fingerprint:
            return None
        return before if self.options.skip_broken or not before.skipped else None

    def look(self) -> None:
        """Read some images of each part, so that data with many broken ones is refused before anything is written."""
        for name, images in self._files.items():
            rows = evenly_spaced(len(images), _LOOKED_AT, torch.device("cpu"))
            source = self.encoder.source(images, self.options.workers)
            found = [batch.broken for batch in read_batches(source, rows.split(self.encoder.batch_size))]
            if len(rows) == len(images) or not self.options.skip_broken:
                check_broken(name, images, {row: why for part in found for row, why in part.items()}, self.options)

    def run(self, reporter: Reporter) -> EmbedResult:
        """Compute what is missing, write the file, and bring its labels up to date."""
        started, reused = time.perf_counter(), self.is_done
        origin = self._before or self._embed(reporter)
        readable = self._readable(origin.skipped)
        written = load_raw(self.options.model_copy(update={"path": str(self.out)})).parts()
        sets = {
            name: replace(
                part,
                inputs=written[name].inputs,
                digests=written[name].digests,
                image_stats=written[name].image_stats,
            )
            for name, part in readable.items()
        }
        changed = any(not np.array_equal(part.labels, written[name].labels) for name, part in sets.items())  # type: ignore[arg-type]
        if reused and changed:
            write_labels(self.out, sets, self.raw.class_names, origin)
        features = replace(
            self.raw.with_parts(sets),
            normalization=None,
            images_path=self.origin.data,
            skipped=origin.skipped,
            encoding=self.origin.encoding,
        )
        examples = {name: part.inputs for name, part in readable.items()}
        seconds, how = time.perf_counter() - started, self.encoder.describe()
        return EmbedResult(self.out, features, examples, origin, origin.skipped, reused, seconds, how)

    @property
    def _files(self) -> dict[str, ImageFiles]:
        return {name: part.inputs for name, part in self.sets.items() if isinstance(part.inputs, ImageFiles)}

    def _readable(self, skipped: Sequence[Skipped]) -> dict[str, Split]:
        """Return the images without those that could not be read."""
        sets = dict(self.sets)
        for name in {image.part for image in skipped}:
            broken = {image.id for image in skipped if image.part == name}
            sets[name] = sets[name][np.array([str(image) not in broken for image in self._files[name].names])]
        return sets

    def _embed(self, reporter: Reporter) -> FeatureOrigin:
        """Compute the parts that are missing, and write the file."""
        with self.kept.at_work():
            missing = self.kept.missing()
            broken = {name: self.kept.broken(name, missing) for name in self.sets}
            done = self.kept.total - sum(map(len, missing))

            def advance(count: int) -> None:
                nonlocal done
                if interruption.signal is not None:
                    raise Stopped(f"stopped; {self.kept.describe()}", interruption.signal)
                done += count
                reporter.items(done, self.kept.total, "images")

            with reporter, Interruption() as interruption:
                reporter.start("embedding", self.kept.total, done + 1)
                self._check_broken(broken)
                for part, embedded in self._compute(missing, advance):
                    self.kept.write(part, embedded)
                    broken[part.set] |= {part.start + row: reason for row, reason in embedded.broken.items()}
                    self._check_broken(broken)
            skipped = tuple(
                Skipped(name, str(self._files[name].names[row]), reason)
                for name, found in broken.items()
                for row, reason in sorted(found.items())
            )
            origin = replace(self.origin, skipped=skipped)
            sets = {
                name: replace(
                    part, digests=self.kept.noted(name, "digests"), image_stats=self.kept.noted(name, "image_stats")
                )
                for name, part in self._readable(skipped).items()
            }
            features = {name: self.kept.features(name) for name in sets}
            write_features(self.out, features, sets, self.raw.class_names, origin)
        return origin

    def _compute(self, parts: Sequence["Part"], advance: Advance) -> Iterator[tuple["Part", Embedded]]:
        """Yield parts and what became of them, computed here or on a Ray cluster."""
        options, execution = self.embedding, self.execution
        if options.backend == "local":
            for part in parts:
                yield part, embed_part(self.encoder, part.images, self.options.workers, advance)
        elif parts:
            threads = execution.threads or 1
            place = Workplace(execution.device, threads, self.options.workers or threads, options.batch_size)
            with Cluster(options.address, execution.device, threads) as cluster:
                images = (part.images for part in parts)
                for number, embedded in embed_on(cluster, self.origin.encoding, images, place, advance):
                    yield parts[number], embedded

    def _check_broken(self, broken: Mapping[str, Mapping[int, str]]) -> None:
        for name, images in self._files.items():
            check_broken(name, images, broken[name], self.options)


@dataclass(frozen=True, eq=False)
class Part:
    """Some images of a set that become features together; ``fingerprint`` is of them and what is done to them."""

    set: str
    start: int
    images: Array | ImageFiles
    fingerprint: str

    @property
    def file(self) -> str:
        """What the file of its features is called."""
        return f"{self.fingerprint}-{self.set}-{self.start:09}.npz"

    def __len__(self) -> int:
        return len(self.images)


def _cut_into_parts(
    sets: Mapping[str, Split], made: str, workers: int | None, track: Track, *, skip_missing: bool
) -> list[Part]:
    """Cut every set into parts, with fingerprints: files by size and date.

    A file that is missing is refused here, before anything is computed, unless it is skipped as a broken one.
    """

    def look(place: tuple[str, int]) -> Part:
        name, start = place
        inputs = sets[name].inputs
        assert isinstance(inputs, np.ndarray | ImageFiles)
        images = inputs[start : start + PART]
        digest = blake2b(json.dumps([made, name]).encode(), digest_size=8)
        digest.update(_state(images, skip_missing) if isinstance(images, ImageFiles) else images.tobytes())
        return Part(name, start, images, digest.hexdigest())

    places = [(name, start) for name, part in sets.items() for start in range(0, len(part.inputs), PART)]
    with make_pool(workers) as pool:
        return [*track(pool.map(look, places), "looking at images", len(places))]


def _state(files: ImageFiles, skip_missing: bool) -> bytes:
    lines = []
    for index, name in enumerate(files.names):
        try:
            state = os.stat(os.path.join(files.root, name))  # noqa: PTH116, PTH118  # a third of a Path's time
            lines.append(f"{name}|{state.st_size}|{state.st_mtime_ns}")
        except OSError as error:
            if not skip_missing:
                raise BrokenImageError(files, index, error.strerror or str(error)) from error
            lines.append(f"{name}|missing")
    return "\n".join(lines).encode()


@dataclass(frozen=True)
class KeptParts:
    """The folder of parts of a feature file that is not whole yet."""

    folder: Path
    parts: Sequence[Part]

    @property
    def total(self) -> int:
        """The number of images."""
        return sum(map(len, self.parts))

    def missing(self) -> list[Part]:
        """Return the parts that are still to be computed."""
        there = {path.name for path in self.folder.glob(_FILES)}
        return [part for part in self.parts if part.file not in there]

    def describe(self) -> str:
        """Say how many images are done, and what to do."""
        done = self.total - sum(map(len, self.missing()))
        return f"{done} of {self.total} images are kept in {self.folder}, the same command goes on"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Claim the folder; it is removed at the end, or if nothing was kept. Errors say what is kept."""
        with naming_target(self.folder):
            self.folder.mkdir(exist_ok=True)
        with locked(self.folder / LOCK, busy="another process is at work on these features; let it end first"):
            try:
                with naming_target(self.folder):
                    remove_partial(self.folder)
                    for stray in {path.name for path in self.folder.glob(_FILES)} - {part.file for part in self.parts}:
                        (self.folder / stray).unlink()  # of other images
                yield
            except (InputError, RunFolderError) as error:
                if len(self.missing()) < len(self.parts):
                    kind = InputError if isinstance(error, InputError) else RunFolderError
                    raise kind(f"{error}; {self.describe()}") from error
                self._remove()
                raise
            self._remove()

    def write(self, part: Part, embedded: Embedded) -> None:
        """Keep what became of a part."""
        content = {"features": embedded.features, "digests": embedded.digests, "image_stats": embedded.image_stats}
        content["broken"] = np.array([*embedded.broken.keys()], np.int64)
        content["reasons"] = np.array([*embedded.broken.values()], np.str_)
        write_npz(self.folder / part.file, content)

    def broken(self, name: str, missing: Sequence[Part]) -> dict[int, str]:
        """Return the images of a set that could not be read, with the reasons; nothing of parts that are missing."""
        found: dict[int, str] = {}
        for part in self.parts:
            if part.set == name and part not in missing:
                rows = (self._read(part, "broken") + part.start).tolist()
                found |= dict(zip(rows, self._read(part, "reasons").tolist(), strict=True))
        return found

    def noted(self, name: str, what: str) -> Array:
        """Return the ``digests`` or ``image_stats`` of all images of a set that could be read."""
        return np.concatenate([self._read(part, what) for part in self.parts if part.set == name])

    def features(self, name: str) -> Pieces:
        """Return their features, part by part."""
        parts = [part for part in self.parts if part.set == name]
        sizes = [self._read(part, "features").shape for part in parts]
        shape = sum(rows for rows, _ in sizes), max(columns for _, columns in sizes)
        return Pieces(shape, np.dtype(np.float16), lambda: (self._read(part, "features") for part in parts))

    def _read(self, part: Part, what: str) -> Array:
        return read_npz(self.folder / part.file, only=(what,))[what]

    def _remove(self) -> None:
        with suppress(OSError):  # somebody keeps files of their own in it
            for file in [*self.folder.glob(_FILES), self.folder / LOCK]:
                file.unlink(missing_ok=True)
            self.folder.rmdir()
