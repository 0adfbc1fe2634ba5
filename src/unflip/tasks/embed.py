"""embed: frozen features of a data set's examples, as a file that every command takes; a killed one goes on."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Unpack

import numpy as np

from unflip.compute.processes import start_processes
from unflip.data.cells import Cells
from unflip.data.files.arrays import Array, read_npz
from unflip.data.files.features import FeatureOrigin, read_origin, write_features
from unflip.data.images.files import ImageFiles, Skipped
from unflip.data.labelled import open_sets
from unflip.data.loader import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.data.sources import Source
from unflip.encoders.images import ImageEncoder, image_options
from unflip.encoders.raw import encode_raw, restore
from unflip.errors import ConfigError, InputError, RunFolderError, Stopped
from unflip.files import LOCK, remove_partial, write_atomically
from unflip.interruption import Interruption
from unflip.lock import locked
from unflip.progress import Reporter, Track, make_reporter, untracked
from unflip.runs.config import Tree, check_section
from unflip.runs.options import Execution
from unflip.runs.targets import check_output
from unflip.tasks.options import EmbeddingOptions, EmbedOptions, option_tree

EMBEDDING_USES = ("image_size", "image_resize", "resample")
"""Options of data that matter for images of every kind, once they become features."""
_PART_FILES = "[0-9a-f]" * 16 + "-*-" + "[0-9]" * 9 + ".npz"  # fingerprint, set, first row
_PART = 1024  # images in a file of the work under way
_MEASURE_FOR = 1.0  # seconds of batches from which the whole is estimated


@dataclass(frozen=True)
class EmbedResult:
    """A finished feature file."""

    path: Path
    features: RawData
    """What the file holds."""
    origin: FeatureOrigin
    skipped: tuple[Skipped, ...]
    reused: bool
    """Whether the features were there already."""
    seconds: float
    how: Sequence[str]
    """What became of the examples, line by line."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples in each part."""
        return {name: len(part.inputs) for name, part in self.features.parts().items()}

    @property
    def num_features(self) -> int:
        """How many features an example has."""
        return int(self.features.train.inputs.shape[1])


def embed(data: str | Path, out: str | Path, *, force: bool = False, **options: Unpack[EmbedOptions]) -> EmbedResult:
    """Write the features of all images, texts or rows of a data set to ``out``, an .npz file.

    Does what ``unflip embed`` does. Labels, class names, ids and the split into train, val and test sets go with the
    features, and so does the encoder. Of images, what an earlier call left unfinished is not computed again; in a
    finished file of the same images only the labels are brought up to date.

    Args:
        data: images, or a table of columns or texts, as ``unflip embed --help`` lists them.
        out: the file; its folder must exist.
        force: replace another file at ``out``.
        options: those of :class:`unflip.tasks.options.EmbedOptions`; ``unflip embed --help`` describes them.
    """
    check_output(Path(out), (".npz",), force=True, inputs=[data])
    tree = option_tree(EmbedOptions, options)
    typed = tree.get("data", {})
    data_options = check_section(DataOptions, {"path": str(Path(data)), **typed}, "data.")
    raw = load_raw(data_options)
    check_used(data_options, typed, EMBEDDING_USES if raw.holds_images else ())
    execution = check_section(Execution, tree.get("execution", {}))
    reporter = make_reporter(execution.quiet)
    embedding = check_section(EmbeddingOptions, tree.get("embedding", {}))
    if isinstance(raw.train.inputs, Cells):
        check_images_only(tree, data)
        check_output(Path(out), force=force)
        return _encode_table(raw, Path(out), data_options, reporter)
    plan = plan_embedding(raw, Path(out), data_options, embedding, execution, track=reporter.track)
    check_output(Path(out), force=force or plan.is_done)
    return plan.run(reporter)


def check_images_only(tree: Tree, data: str | Path) -> None:
    """Refuse options of backbones that a person typed for data without images."""
    if typed := tree.get("embedding"):
        raise ConfigError(f"--{next(iter(typed)).replace('_', '-')} is for images, and {data} holds none; leave it out")


def _encode_table(raw: RawData, out: Path, options: DataOptions, reporter: Reporter) -> EmbedResult:
    started = time.perf_counter()
    raw.check_trainable(options.path)
    features = encode_raw(raw, options, reporter.track)
    assert features.encoding is not None
    origin = FeatureOrigin(features.encoding, str(Path(options.path).resolve()), "", clean_val=raw.clean_val)
    origin = replace(origin, fingerprint=_fingerprint(origin, features.parts()))
    write_features(out, features.parts(), raw.class_names, origin)
    seconds = time.perf_counter() - started
    how = restore(features.encoding).describe()
    return EmbedResult(out, replace(features, name=out.name), origin, (), reused=False, seconds=seconds, how=how)


@dataclass(frozen=True)
class EmbedPlan:
    """All that a feature file needs, found and checked; nothing is computed yet."""

    out: Path
    origin: FeatureOrigin
    raw: RawData
    """The images."""
    sets: Mapping[str, LabelledSet]
    """Those that can be read, by part."""
    skipped: tuple[Skipped, ...]
    options: DataOptions
    encoder: ImageEncoder

    @cached_property
    def is_done(self) -> bool:
        """Whether ``out`` holds the features of these images already."""
        try:
            before = read_origin(self.out)
        except InputError:  # something else, or damaged
            return False
        return before is not None and before.fingerprint == self.origin.fingerprint

    @property
    def total(self) -> int:
        """The number of images, over all parts."""
        return sum(len(part.inputs) for part in self.sets.values())

    def estimate(self) -> tuple[float, int]:
        """Return how many seconds the images will take that are not embedded yet, and how many features each has."""
        if self.is_done:
            return 0.0, int(read_npz(self.out, only=("train",))["train"].shape[1])
        source = self._sources["train"]
        batch = range(min(len(source), self.encoder.batch_size))
        features = self.encoder.encode_batch(next(self.encoder.batches(source, batch)))  # the first one is slow
        started, done = time.perf_counter(), 0
        while not done or time.perf_counter() - started < _MEASURE_FOR:
            self.encoder.encode_batch(next(self.encoder.batches(source, batch)))
            done += len(batch)
        each = (time.perf_counter() - started) / done
        left = sum(len(rows) for file, _, rows in self._plan() if not file.exists())
        return each * left, features.shape[1]

    def stand_in(self, width: int) -> RawData:
        """Return random rows in place of the features, which may take long, to check labels and measure training."""
        random = np.random.default_rng(0)
        sets = {
            name: replace(part, inputs=random.standard_normal((len(part.inputs), width), np.float32).astype(np.float16))
            for name, part in self.sets.items()
        }
        train, val = sets.pop("train"), sets.pop("val", None)
        return replace(self.raw, train=train, val=val, tests=sets, normalisation=None)

    def run(self, reporter: Reporter) -> EmbedResult:
        """Compute what is missing and write the file."""
        started, reused = time.perf_counter(), self.is_done
        sets = dict(self._relabelled() if reused else self._embed(reporter))
        features = replace(
            self.raw,
            name=self.out.name,
            train=sets.pop("train"),
            val=sets.pop("val", None),
            tests=sets,
            normalisation=None,
            images_path=self.origin.data,
            encoding=self.origin.encoding,
        )
        seconds = time.perf_counter() - started
        return EmbedResult(self.out, features, self.origin, self.skipped, reused, seconds, self.encoder.describe())

    def _relabelled(self) -> Mapping[str, LabelledSet]:
        """Give features that are there the labels that the images have now."""
        before = load_raw(self.options.model_copy(update={"path": str(self.out)}))
        found = before.parts()
        sets = {
            name: replace(part, inputs=found[name].inputs, digests=found[name].digests)
            for name, part in self.sets.items()
        }
        changed = before.class_names != self.raw.class_names or any(
            not np.array_equal(part.labels, found[name].labels)  # type: ignore[arg-type]
            for name, part in sets.items()
        )
        if changed:
            write_features(self.out, sets, self.raw.class_names, self.origin)
        return sets

    def _embed(self, reporter: Reporter) -> Mapping[str, LabelledSet]:
        plan = list(self._plan())
        with _writing(self._parts):
            self._parts.mkdir(exist_ok=True)
        with locked(self._parts / LOCK, busy="another process is at work on these features; let it end first"):
            try:
                sets = self._embed_parts(plan, reporter)
            except RunFolderError as error:
                kept = sum(len(rows) for file, _, rows in plan if file.exists())
                if kept:
                    raise RunFolderError(
                        f"{error}; {kept} of {self.total} images are kept in {self._parts}, the same command goes on"
                    ) from error
                self._remove_parts()
                raise
            self._remove_parts()
        return sets

    def _embed_parts(self, plan: Sequence[tuple[Path, str, range]], reporter: Reporter) -> Mapping[str, LabelledSet]:
        with _writing(self._parts):
            remove_partial(self._parts)
            for stray in {*self._parts.glob(_PART_FILES)} - {file for file, _, _ in plan}:
                stray.unlink()  # of other images
        done = sum(len(rows) for file, _, rows in plan if file.exists())
        with reporter, Interruption() as interruption:
            reporter.start("embedding", self.total, done + 1)
            for file, name, rows in plan:
                if not file.exists():
                    self._write_part(file, name, rows, interruption, done)
                    done += len(rows)
                    reporter.items(done, self.total)
        sets = {name: replace(part, **self._joined(name, plan)) for name, part in self.sets.items()}
        write_features(self.out, sets, self.raw.class_names, self.origin)
        return sets

    def _remove_parts(self) -> None:
        with suppress(OSError):  # somebody keeps files of their own in it
            for file in [*self._parts.glob(_PART_FILES), self._parts / LOCK]:
                file.unlink(missing_ok=True)
            self._parts.rmdir()

    @property
    def _parts(self) -> Path:
        """Where the work under way is kept."""
        return self.out.with_name(f"{self.out.name}.parts")

    def _plan(self) -> Iterator[tuple[Path, str, range]]:
        """Yield which rows of which set go into which file."""
        for name, part in self.sets.items():
            for start in range(0, len(part.inputs), _PART):
                file = self._parts / f"{self.origin.fingerprint}-{name}-{start:09}.npz"
                yield file, name, range(start, min(start + _PART, len(part.inputs)))

    @cached_property
    def _sources(self) -> dict[str, Source]:
        return {
            name: self.encoder.source(part.inputs, self.options.workers)
            for name, part in self.sets.items()
            if not isinstance(part.inputs, Cells)
        }

    def _write_part(self, file: Path, name: str, rows: range, interruption: Interruption, done: int) -> None:
        features, digests = [], []
        for images in self.encoder.batches(self._sources[name], rows):
            if interruption.signal is not None:
                raise Stopped(
                    f"stopped; {done} of {self.total} images are kept in {self._parts}, the same command goes on",
                    interruption.signal,
                )
            digests += [_digest(image) for image in images.numpy()]
            features.append(self.encoder.encode_batch(images))
        content = {"features": np.concatenate(features), "digests": np.array(digests, np.uint64)}
        write_atomically(file, lambda path: np.savez(path, allow_pickle=False, **content))

    def _joined(self, name: str, plan: Sequence[tuple[Path, str, range]]) -> dict[str, Array]:
        parts = [read_npz(file) for file, of, _ in plan if of == name]
        return {
            "inputs": np.concatenate([part["features"] for part in parts]),
            "digests": np.concatenate([part["digests"] for part in parts]),
        }


def plan_embedding(
    raw: RawData,
    out: Path,
    options: DataOptions,
    embedding: EmbeddingOptions,
    execution: Execution,
    *,
    track: Track = untracked,
) -> EmbedPlan:
    """Check the images, leave out broken ones where that is wanted, and choose what the backbone sees of them.

    Args:
        raw: what a loader found.
        out: the feature file.
        options: with which ``raw`` was loaded.
        embedding: which backbone and weights.
        execution: device and threads.
        track: is told how many images are checked.
    """
    place = start_processes(execution.device, execution.threads).device
    if not raw.holds_images:
        raise InputError(f"data {options.path}: holds no images, so there is nothing to embed; train on it as it is")
    raw.check_trainable(options.path)
    assert not isinstance(raw.train.inputs, Cells)
    encoder = ImageEncoder.choose(
        embedding.backbone, raw.train.inputs, options, embedding.weights, embedding.feature_precision
    )
    options = image_options(encoder.encoding(), options)
    # Every image is decoded once beforehand: a broken one at the end would waste all that was computed before it.
    sets, _, skipped = open_sets(raw.parts(), options.model_copy(update={"skip_broken": True}), track)
    if skipped and not options.skip_broken:
        first = skipped[0]
        raise InputError(
            f"data {options.path}: {len(skipped)} of its images cannot be read, the first: {first.id}: {first.reason}; "
            "to leave them out: --skip-broken"
        )
    origin = FeatureOrigin(
        encoding=encoder.encoding(),
        data=str(Path(options.path).resolve()),
        fingerprint="",
        class_map=raw.class_map,
        clean_val=raw.clean_val,
    )
    origin = replace(origin, fingerprint=_fingerprint(origin, sets))
    return EmbedPlan(out, origin, raw, sets, skipped, options, encoder.to(place, embedding.batch_size))


def _fingerprint(origin: FeatureOrigin, sets: Mapping[str, LabelledSet]) -> str:
    """Digest what features follow from: what is done to the examples, and which they are: files by size and date."""
    made = {key: value for key, value in origin.encoding.settings.items() if key != "weights_file"}
    digest = blake2b(json.dumps([origin.encoding.encoder, made, origin.data]).encode(), digest_size=8)
    for name, part in sets.items():
        digest.update(f"{name} {len(part.inputs)}".encode())
        if isinstance(part.inputs, ImageFiles):
            for index in range(len(part.inputs)):
                path = part.inputs.path(index)
                state = path.stat()
                digest.update(f"{part.inputs.names[index]}|{state.st_size}|{state.st_mtime_ns}\n".encode())
        elif isinstance(part.inputs, np.ndarray):
            digest.update(np.ascontiguousarray(part.inputs).data)
    return digest.hexdigest()


def _digest(image: Array) -> int:
    return int.from_bytes(blake2b(np.ascontiguousarray(image).data, digest_size=8).digest())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from error
