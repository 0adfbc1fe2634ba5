"""embed: compute frozen features of images once, as a file that every command takes.

Images are embedded in parts of 1,024, which are saved beside the feature file until it is complete. An image whose
features are in the file or in a part is not embedded again (:class:`FeatureCache`).
"""

import errno
import json
import logging
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from unflip.api.options import EMBED, EmbeddingOptions, option_tree
from unflip.compute import find_device
from unflip.data.arrays import Array, Pieces, read_npz, write_npz
from unflip.data.dataset import Dataset, Encoding, Inputs, Split
from unflip.data.files import BrokenImageError, ImageFiles, ResizeCrop, Skipped, make_pool
from unflip.data.images import check_broken
from unflip.data.loaders import check_used, load_raw
from unflip.data.loaders.arrays import DIGESTS, IMAGE_STATS, STATES, FeatureOrigin, read_origin, write_features
from unflip.data.options import DataOptions
from unflip.data.split import content_hash, row_hashes
from unflip.encoders.image import Embedded, ImageEncoder, embed_part, image_options, read_batches
from unflip.errors import ConfigError, InputError, RunFolderError, Stopped
from unflip.files import LOCK, Interruption, locked, naming_target, remove_partial
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
_PART_FILES = "[0-9a-f]" * 16 + "-" + "[0-9a-f]" * 16 + ".npz"  # hashes of the recipe and of the states


@dataclass(frozen=True)
class EmbedResult:
    """A finished feature file.

    Attributes:
        path: the file.
        features: the features as a data set.
        examples: the raw examples of each split.
        reused: whether the file already had these features.
        seconds: duration in seconds.
        how: description of the encoding, line by line.
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
    """Compute the features of images and write them to ``out``, as ``unflip embed`` does.

    Labels, class names, ids, splits and the encoder are saved with the features. If a call is interrupted, the next one
    resumes it. If ``out`` already has the features of these images, only the labels are updated.

    Args:
        data: images in one of the formats that ``unflip embed --help`` lists.
        out: the .npz file to write, in an existing folder.
        force: replace the features of other images in ``out``.
        options: see ``unflip.api.options.EMBED`` and ``unflip embed --help``.
    """
    out = Path(out)
    check_output(out, (".npz",), force=True, inputs=[data])
    tree = option_tree(EMBED, options)
    execution = check_section(Execution, tree.get("execution", {}))
    raw, data_options, embedding = read_data(data, tree)
    plan = plan_embedding(raw, out, data_options, embedding, execution)
    check_output(out, force=force or plan.finished is not None)
    return plan.run()


def read_data(
    data: str | Path, tree: Tree, typed: Collection[str] | None = None
) -> tuple[Dataset, DataOptions, EmbeddingOptions]:
    """Read the data, and check the sections of ``tree`` that apply to it.

    Args:
        data: the file, folder or name.
        tree: with the sections ``data`` and ``embedding``.
        typed: the keys of ``data`` that must have an effect; by default all of them.
    """
    own, backbone = tree.get("data", {}), tree.get("embedding", {})
    embedding = check_section(EmbeddingOptions, backbone)
    if not isinstance(own, dict):
        raise ConfigError(f"data = {own!r}: must be a section")
    options = check_section(DataOptions, {**own, "path": str(Path(data))}, "data.")
    raw = load_raw(options)
    check_used(options, own if typed is None else typed, EMBEDDING_USES if raw.holds_images else ())
    if backbone and not raw.holds_images:
        raise ConfigError(f"--{next(iter(backbone)).replace('_', '-')} is for images, and {data} holds none")
    return raw, options, embedding


def plan_embedding(
    raw: Dataset, out: Path, options: DataOptions, embedding: EmbeddingOptions, execution: Execution
) -> "EmbedPlan":
    """Choose the encoder, and find out which images it has yet to embed.

    Args:
        raw: data set of images.
        out: the feature file.
        options: with which ``raw`` was loaded.
        embedding: backbone and weights.
        execution: device, threads, and whether progress is shown.
    """
    if not raw.holds_images:
        raise InputError(f"data {options.path}: holds no images; there is nothing to embed")
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    device = torch.device(find_device(execution.device))
    raw.check_trainable(options.path)
    assert isinstance(raw.train.inputs, np.ndarray | ImageFiles)
    encoder = ImageEncoder.choose(embedding.backbone, raw.train.inputs, options, embedding.weights)
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
    origin = FeatureOrigin(
        encoding, data, digest, class_map=raw.class_map, clean_val=raw.clean_val, label_column=options.label_column
    )
    cache = FeatureCache(out, recipe)
    encoder.to(device, embedding.batch_size)
    plan = EmbedPlan(out, origin, raw, sets, cache, options, execution.quiet, encoder)
    if plan.finished is None:
        cache.add_file(out, encoding)
        plan.check_sample()
    return plan


@dataclass(frozen=True)
class EmbedPlan:
    """A feature file to be computed.

    Attributes:
        out: the feature file.
        origin: how the features are computed, with a fingerprint of the images.
        raw: the data set.
        sets: the images of each split, with the size for the backbone; some may turn out to be broken.
        cache: features that are computed already.
        options: how images are read.
        quiet: show no progress.
        encoder: the encoder on its device.
    """

    out: Path
    origin: FeatureOrigin
    raw: Dataset
    sets: Mapping[str, Split]
    cache: "FeatureCache"
    options: DataOptions
    quiet: bool | None
    encoder: ImageEncoder

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

    @property
    def new(self) -> int:
        """Number of images that have yet to be embedded."""
        return sum(len(self.cache.missing(part.states)) for part in self.sets.values())

    def check_sample(self) -> None:
        """Read some images of each split, so that broken data is reported before anything is written or replaced."""
        for name, images in self._files.items():
            rows = torch.arange(count := min(len(images), SAMPLE_IMAGES)) * len(images) // count
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
        changed = any(
            not np.array_equal(getattr(part, key), getattr(written[name], key))
            for name, part in sets.items()
            for key in ("labels", "annotations")
        )
        if reused and changed:
            inputs = {name: np.asarray(part.inputs) for name, part in sets.items()}
            write_features(self.out, inputs, sets, self.raw, origin)
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
        """Compute the missing features, and write the file."""
        cache, reporter = self.cache, make_reporter(self.quiet)
        with cache.at_work():
            missing = {name: cache.missing(part.states) for name, part in self.sets.items()}
            done, cache.total = cache.done, cache.done + sum(map(len, missing.values()))
            _log.info("embedding %d images; %d are done", cache.total - done, done)

            def advance(count: int) -> None:
                nonlocal done
                if interruption.signal is not None:
                    raise Stopped(f"stopped; {cache.describe()}", interruption.signal)
                done += count
                reporter.done(done, f"{done}/{cache.total} images")

            with reporter, Interruption() as interruption:
                reporter.start("embedding", cache.total, done + 1)
                self._check_broken()
                for name, rows in missing.items():
                    for start in range(0, len(rows), PART):
                        part = self.sets[name][rows[start : start + PART]]
                        assert isinstance(part.inputs, np.ndarray | ImageFiles)
                        embedded = embed_part(self.encoder, part.inputs, self.options.workers, advance)
                        cache.note_broken(part.states, embedded)
                        self._check_broken()
                        cache.write(part.states, embedded)
            skipped = tuple(
                Skipped(name, str(images.names[row]), reason)
                for name, images in self._files.items()
                for row, reason in self._broken(name).items()
            )
            sets, features, origin = self._readable(skipped), {}, replace(self.origin, skipped=skipped)
            for name, part in sets.items():
                places = cache.find(part.states)
                features[name] = cache.features(places)
                others = {key: cast(Any, np.concatenate([*cache.read(places, key)])) for key in _PER_IMAGE}
                sets[name] = replace(part, **others)
            write_features(self.out, features, sets, self.raw, origin)
        return origin

    def _broken(self, name: str) -> dict[int, str]:
        """Return why images of a split cannot be read, by row."""
        states = np.asarray(self.sets[name].states)
        rows = np.flatnonzero(np.isin(states, [*self.cache.broken])).tolist() if self.cache.broken else ()
        return {row: self.cache.broken[int(states[row])] for row in rows}

    def _check_broken(self) -> None:
        for name, images in self._files.items():
            check_broken(name, images, self._broken(name), self.options)


def _with_states(sets: Mapping[str, Split], options: DataOptions, track: Track) -> dict[str, Split]:
    """Return the splits with a hash per image (n,): of a file's path, size and modification time, or of its pixels.

    Links are followed, so that an image has the same state in a folder of links. A file that is missing or may not be
    read is an error here, before anything is computed, unless broken images are skipped; then its state is 0.
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
        digest.update(json.dumps([name, *(part.names or ())]).encode() + np.asarray(part.states).tobytes())
    return digest.hexdigest()


def _file_states(files: ImageFiles, skip_missing: bool) -> Array:
    """Return a hash per file (n,); 0 for one that is missing or may not be read."""
    states, root = np.zeros(len(files), np.uint64), os.path.realpath(files.root)
    for index, name in enumerate(files.names):
        path = os.path.join(root, name)  # noqa: PTH118  # a third of a Path's time
        try:
            state = os.lstat(path)
            if stat.S_ISLNK(state.st_mode):
                path, state = os.path.realpath(path), os.stat(path)  # noqa: PTH116
            if not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            if not skip_missing:
                raise BrokenImageError(files, index, error.strerror or str(error)) from error
            continue
        text = f"{path}|{state.st_size}|{state.st_mtime_ns}"
        states[index] = content_hash(text.encode(errors="surrogateescape"))
    return states


class FeatureCache:
    """Features of images by the states of their files: those of a feature file, and of the parts beside it.

    Args:
        out: the feature file; its parts are in a folder next to it.
        recipe: how images are embedded; parts of other recipes are removed.

    Attributes:
        broken: why images could not be read, by state.
        done: number of images in parts.
        total: number of images in parts, and of those that have yet to be embedded.
    """

    def __init__(self, out: Path, recipe: str) -> None:
        self.folder = out.with_name(f"{out.name}.parts")
        self.broken: dict[int, str] = {}
        self.done = self.total = 0
        self._recipe = blake2b(recipe.encode(), digest_size=8).hexdigest()
        self._sources: list[Mapping[str, Array] | Path] = []  # arrays, or the file of a part
        self._states: list[Array] = []  # of the images of each
        self._array = lru_cache(4)(self._load)

    def add_file(self, out: Path, encoding: Encoding) -> None:
        """Add the features in the file ``out``, if they were computed in the same way."""
        try:
            origin = read_origin(out)
            if origin is None or encoding.differences(origin.encoding):
                return
            content = read_npz(out)
        except InputError:  # something else, or damaged
            return
        suffixes = {"features": "", "digests": DIGESTS, "image_stats": IMAGE_STATS}
        for name in [name for name in content if name + STATES in content]:
            self._states.append(content[name + STATES])
            self._sources.append({what: content[name + suffix] for what, suffix in suffixes.items()})

    def find(self, states: Array | None) -> Array:
        """Return the place of each image (n,) among all that have features; -1 for the others."""
        known = np.concatenate([np.zeros(1, np.uint64), *self._states])  # 0 is the state of missing files
        order, states = known.argsort(kind="stable"), np.asarray(states)
        found = order[np.searchsorted(known, states, sorter=order).clip(max=len(known) - 1)]
        return np.where(known[found] == states, found, 0) - 1

    def missing(self, states: Array | None) -> Array:
        """Return the rows of images that have yet to be embedded."""
        return np.flatnonzero((self.find(states) < 0) & ~np.isin(np.asarray(states), [*self.broken]))

    def read(self, places: Array, what: str) -> Iterator[Array]:
        """Yield ``features``, ``digests`` or ``image_stats`` of images (n,), in pieces."""
        starts = np.cumsum([0, *map(len, self._states)])
        for piece in np.array_split(places, range(PART, len(places), PART)):
            sources = np.searchsorted(starts, piece, side="right") - 1
            order = sources.argsort(kind="stable")
            rows = [self._array(k, what)[piece[sources == k] - starts[k]] for k in np.unique(sources).tolist()]
            yield np.concatenate(rows)[order.argsort()]

    def features(self, places: Array) -> Pieces:
        """Return the features of images (n,), read piece by piece."""
        width = max(self._array(k, "features").shape[1] for k in range(len(self._states)))
        return Pieces((len(places), width), np.dtype(np.float16), lambda: self.read(places, "features"))

    def _load(self, number: int, what: str) -> Array:
        source = self._sources[number]
        return read_npz(source, only=(what,))[what] if isinstance(source, Path) else source[what]

    def describe(self) -> str:
        """Return how many images are done, and how to resume."""
        return f"{self.done} of {self.total} images are done; run the same command again to resume"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lock the folder and read it; remove it afterwards, unless the work ended early with finished parts."""
        with naming_target(self.folder):
            self.folder.mkdir(exist_ok=True)
        with locked(self.folder / LOCK, busy="another process is computing these features"):
            try:
                with naming_target(self.folder):
                    remove_partial(self.folder)
                for file in sorted(self.folder.glob(_PART_FILES)):
                    with suppress(InputError):  # damaged
                        if file.name.startswith(self._recipe):
                            self._add_part(file)
                            continue
                    file.unlink(missing_ok=True)
                yield
                for file in self.folder.glob(_PART_FILES):
                    file.unlink(missing_ok=True)
            except (InputError, RunFolderError) as error:
                if not self.done:
                    raise
                kind = InputError if isinstance(error, InputError) else RunFolderError
                raise kind(f"{error}; {self.describe()}") from error
            finally:
                with suppress(OSError):  # with parts or other files in it
                    (self.folder / LOCK).unlink(missing_ok=True)
                    self.folder.rmdir()

    def note_broken(self, states: Array | None, embedded: Embedded) -> None:
        """Remember which images of a part could not be read."""
        self.broken |= {int(np.asarray(states)[row]): reason for row, reason in embedded.broken.items()}

    def write(self, states: Array | None, embedded: Embedded) -> None:
        """Save the features of a part."""
        states, lost = np.asarray(states), [*embedded.broken]
        path = self.folder / f"{self._recipe}-{blake2b(states.tobytes(), digest_size=8).hexdigest()}.npz"
        about = {"states": np.delete(states, lost), "broken": states[lost]}
        write_npz(path, embedded._asdict() | about | {"reasons": np.array([*embedded.broken.values()], np.str_)})
        self._add_part(path)

    def _add_part(self, path: Path) -> None:
        about = read_npz(path, only=("states", "broken", "reasons"))
        self._sources.append(path)
        self._states.append(about["states"])
        self.broken |= dict(zip(about["broken"].tolist(), about["reasons"].tolist(), strict=True))
        self.done += len(about["states"]) + len(about["broken"])
