"""embed: frozen features of a data set's images, as a file that every command takes; a killed one goes on."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.compute.ahead import prepared
from unflip.compute.processes import start_processes
from unflip.data.files.arrays import Array, read_npz
from unflip.data.files.features import FeatureOrigin, read_origin, write_features
from unflip.data.images.files import ImageFiles, Skipped
from unflip.data.images.opening import are_small, with_margin
from unflip.data.labelled import make_source, open_sets
from unflip.data.loader import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.data.sources import Source, Standardisation
from unflip.errors import ConfigError, InputError, RunFolderError, Stopped
from unflip.files import LOCK, remove_partial, write_atomically
from unflip.interruption import Interruption
from unflip.lock import locked
from unflip.networks import backbones
from unflip.networks.backbone import Backbone
from unflip.progress import Reporter, Track, make_reporter, untracked
from unflip.runs.config import check_section
from unflip.runs.options import Execution
from unflip.runs.targets import check_output
from unflip.tasks.options import EmbeddingOptions, EmbedOptions, option_tree

EMBEDDING_USES = ("image_size", "image_resize", "resample")
"""Options of data that matter for images of every kind, once they become features."""
_SMALL_SIZE = 112  # what images of at most 64 x 64 pixels are scaled to
_PART_FILES = "[0-9a-f]" * 16 + "-*-" + "[0-9]" * 9 + ".npz"  # fingerprint, set, first row
_PART = 1024  # images in a file of the work under way
_BATCH, _GPU_BATCH = 16, 256  # images at once; on a processor small batches are faster
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

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples in each part."""
        return {name: len(part.inputs) for name, part in self.features.parts().items()}

    @property
    def num_features(self) -> int:
        """How many features an example has."""
        return int(self.features.train.inputs.shape[1])


def embed(data: str | Path, out: str | Path, *, force: bool = False, **options: Unpack[EmbedOptions]) -> EmbedResult:
    """Write the features that a pretrained network computes of all images of a data set to ``out``, an .npz file.

    Does what ``unflip embed`` does. Labels, class names, ids and the split into train, val and test sets go with the
    features. What an earlier call left unfinished is not computed again; in a finished file of the same images only the
    labels are brought up to date.

    Args:
        data: images, as ``unflip embed --help`` lists them.
        out: the file; its folder must exist.
        force: replace another file at ``out``.
        options: those of :class:`unflip.tasks.options.EmbedOptions`; ``unflip embed --help`` describes them.
    """
    check_output(Path(out), (".npz",), force=True, inputs=[data])
    tree = option_tree(EmbedOptions, options)
    data_options = check_section(DataOptions, {"path": str(Path(data)), **tree.get("data", {})}, "data.")
    check_used(data_options, tree.get("data", {}), EMBEDDING_USES)
    execution = check_section(Execution, tree.get("execution", {}))
    reporter = make_reporter(execution.quiet)
    embedding = check_section(EmbeddingOptions, tree.get("embedding", {}))
    plan = plan_embedding(load_raw(data_options), Path(out), data_options, embedding, execution, track=reporter.track)
    check_output(Path(out), force=force or plan.is_done)
    return plan.run(reporter)


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
    backbone: Backbone
    batch_size: int
    device: torch.device

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
        batch = range(min(len(source), self.batch_size))
        features = self._encode(next(self._batches(source, batch)))  # the first one is slow
        started, done = time.perf_counter(), 0
        while not done or time.perf_counter() - started < _MEASURE_FOR:
            self._encode(next(self._batches(source, batch)))
            done += len(batch)
        each = (time.perf_counter() - started) / done
        left = sum(len(rows) for file, _, rows in self._plan() if not file.exists())
        return each * left, features.shape[1]

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
            stamp=self.origin.stamp,
        )
        return EmbedResult(self.out, features, self.origin, self.skipped, reused, time.perf_counter() - started)

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
        normalise = Standardisation(*(torch.tensor(v).view(3, 1, 1) for v in (self.backbone.mean, self.backbone.std)))
        return {name: make_source(self.raw, part.inputs, normalise, self.options) for name, part in self.sets.items()}

    def _write_part(self, file: Path, name: str, rows: range, interruption: Interruption, done: int) -> None:
        features, digests = [], []
        for images in self._batches(self._sources[name], rows):
            if interruption.signal is not None:
                raise Stopped(
                    f"stopped; {done} of {self.total} images are kept in {self._parts}, the same command goes on",
                    interruption.signal,
                )
            digests += [_digest(image) for image in images.numpy()]
            features.append(self._encode(images))
        content = {"features": np.concatenate(features), "digests": np.array(digests, np.uint64)}
        if not np.isfinite(content["features"]).all():
            raise InputError(
                f"backbone {self.origin.backbone}: features that are not finite, or beyond float16's range"
            )
        write_atomically(file, lambda path: np.savez(path, allow_pickle=False, **content))

    def _batches(self, source: Source, rows: range) -> Iterator[Tensor]:
        """Yield batches of images (b, 3, h, w), normalised."""
        cut = torch.arange(rows.start, rows.stop).split(self.batch_size)
        return prepared((partial(source.fetch, indices) for indices in cut), source.ahead)

    @torch.inference_mode()
    def _encode(self, images: Tensor) -> Array:
        size = (self.origin.image_size, self.origin.image_size)
        images = images.to(self.device)
        if images.shape[2:] != size:  # of an array; files were scaled when they were read
            images = F.interpolate(images, size, mode=self.origin.resample, align_corners=False, antialias=True)
        features = self.backbone.encode(images.contiguous(memory_format=torch.channels_last))
        return features.half().cpu().numpy()

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
    weights = None if embedding.weights is None else Path(embedding.weights)
    chosen: Backbone = backbones.load(embedding.backbone)(weights)
    place = start_processes(execution.device, execution.threads).device
    if not raw.holds_images:
        raise InputError(f"data {options.path}: holds no images, so there is nothing to embed; train on it as it is")
    raw.check_trainable(options.path)
    options = _sized(options, chosen, embedding.backbone, raw.train.inputs)
    # Every image is decoded once beforehand: a broken one at the end would waste all that was computed before it.
    sets, _, skipped = open_sets(raw.parts(), options.model_copy(update={"skip_broken": True}), track)
    if skipped and not options.skip_broken:
        first = skipped[0]
        raise InputError(
            f"data {options.path}: {len(skipped)} of its images cannot be read, the first: {first.id}: {first.reason}; "
            "to leave them out: --skip-broken"
        )
    assert options.image_size is not None
    assert options.image_resize is not None
    origin = FeatureOrigin(
        backbone=embedding.backbone,
        weights=_hash_weights(chosen),
        image_size=options.image_size,
        image_resize=options.image_resize,
        resample=options.resample,
        data=str(Path(options.path).resolve()),
        fingerprint="",
        class_map=raw.class_map,
        clean_val=raw.clean_val,
    )
    origin = replace(origin, fingerprint=_fingerprint(origin, sets))
    network = chosen.network.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.eval().requires_grad_(False)
    size = embedding.batch_size or (_BATCH if place.type == "cpu" else _GPU_BATCH)
    return EmbedPlan(out, origin, raw, sets, skipped, options, chosen, size, place)


def _sized(options: DataOptions, backbone: Backbone, name: str, inputs: Array | ImageFiles) -> DataOptions:
    """Fill in the sizes: small images are scaled up and seen whole, of larger ones the centre is seen."""
    small = are_small(inputs)
    size = options.image_size or (_SMALL_SIZE if small and not backbone.fixed_size else backbone.size)
    if backbone.fixed_size and size != backbone.size:
        raise ConfigError(f"--image-size {size}: {name} takes images of {backbone.size} pixels only; leave it out")
    resize = options.image_resize or (size if small else with_margin(size))
    if not isinstance(inputs, ImageFiles) and resize != size:
        if options.image_resize is not None:
            raise ConfigError(
                f"--image-resize {resize}: images of an array are seen whole; leave it out, or give {size}"
            )
        resize = size
    return options.model_copy(update={"image_size": size, "image_resize": resize, "augment": False})


def _hash_weights(backbone: Backbone) -> str:
    digest = blake2b(digest_size=8)
    for name, value in sorted(backbone.network.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fingerprint(origin: FeatureOrigin, sets: Mapping[str, LabelledSet]) -> str:
    """Digest what features follow from: what is done to the images, and which they are: files by size and date."""
    digest = blake2b(json.dumps(asdict(origin) | {"clean_val": None, "class_map": None}).encode(), digest_size=8)
    for name, part in sets.items():
        digest.update(f"{name} {len(part.inputs)}".encode())
        if isinstance(part.inputs, ImageFiles):
            for index in range(len(part.inputs)):
                path = part.inputs.path(index)
                state = path.stat()
                digest.update(f"{part.inputs.names[index]}|{state.st_size}|{state.st_mtime_ns}\n".encode())
        else:
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
