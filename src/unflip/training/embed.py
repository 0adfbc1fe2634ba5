"""embed: frozen features of a data set's images, as a file that every command takes; a killed one goes on."""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unflip.data.array_files import Array, read_npz
from unflip.data.arrays import About, load, read_about, write_features
from unflip.data.dataset import DataOptions, LabelledSet, Loaded, all_sets, load_inputs, make_source, open_sets
from unflip.data.decoding import Track, untracked
from unflip.data.image_files import ImageFiles, Resample, Skipped
from unflip.data.opening import are_small
from unflip.data.source import Source, Standardisation
from unflip.errors import ConfigError, InputError, RunFolderError, Stopped
from unflip.files import write_atomically
from unflip.lock import locked
from unflip.networks import backbones
from unflip.networks.backbone import Backbone
from unflip.training.batches import prepared
from unflip.training.config import check_data
from unflip.training.interruption import Interruption
from unflip.training.processes import Processes
from unflip.training.progress import Reporter, make_reporter

BACKBONE = "efficientnet-lite0"
_SMALL_SIZE = 112  # what images of at most 64 x 64 pixels are scaled to
_MARGIN = 256 / 224  # of the shorter side to what is cut out of larger ones
_PART = 1024  # images in a file of the work under way
_BATCH, _GPU_BATCH = 16, 256  # images at once; on a processor small batches are faster
_MEASURE_FOR = 1.0  # seconds of batches from which the whole is estimated


@dataclass(frozen=True)
class Embedded:
    """A finished feature file."""

    path: Path
    counts: dict[str, int]
    labelled: bool
    num_features: int
    about: About
    skipped: tuple[Skipped, ...]
    reused: bool
    """Whether the features were there already."""
    seconds: float


def embed(
    data: str | Path,
    out: str | Path,
    *,
    backbone: str = BACKBONE,
    weights: str | Path | None = None,
    image_size: int | None = None,
    image_resize: int | None = None,
    resample: Resample | None = None,
    label_column: str | None = None,
    skip_broken: bool = False,
    batch_size: int | None = None,
    force: bool = False,
    device: str = "auto",
    threads: int | None = None,
    quiet: bool = True,
) -> Embedded:
    """Write the features that a pretrained network computes of all images of a data set to ``out``, an .npz file.

    Does what ``unflip embed`` does. Labels, class names, ids and the split into train, val and test sets go with the
    features. What a call before this one left unfinished is not computed again; a finished file of the same images is
    only given their labels anew.
    """
    if not Path(out).parent.is_dir():
        raise RunFolderError(f"--out {out}: there is no folder {Path(out).parent}; make it first")
    sizes = {"image_size": image_size, "image_resize": image_resize, "resample": resample}
    options = check_data(path=str(Path(data)), skip_broken=skip_broken, label_column=label_column, **sizes)
    reporter = make_reporter(quiet)
    return prepare_embedding(
        options, Path(out), backbone=backbone, weights=None if weights is None else Path(weights),
        batch_size=batch_size, force=force, device=device, threads=threads, track=reporter.track,
    ).run(reporter)  # fmt: skip


@dataclass(frozen=True)
class Embedding:
    """All that a feature file needs, found and checked; nothing is computed yet."""

    out: Path
    about: About
    loaded: Loaded
    sets: Mapping[str, LabelledSet]
    """The images that can be read, by part."""
    skipped: tuple[Skipped, ...]
    options: DataOptions
    backbone: Backbone
    batch_size: int
    device: torch.device

    @cached_property
    def is_done(self) -> bool:
        """Whether ``out`` holds the features of these images already."""
        try:
            before = read_about(self.out)
        except InputError:  # something else, or damaged
            return False
        return before is not None and before.fingerprint == self.about.fingerprint

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

    def run(self, reporter: Reporter) -> Embedded:
        """Compute what is missing and write the file."""
        started, reused = time.perf_counter(), self.is_done
        sets = self._relabelled() if reused else self._embed(reporter)
        counts = {name: len(part.inputs) for name, part in sets.items()}
        width = sets["train"].inputs.shape[1]
        labelled = sets["train"].labels is not None
        seconds = time.perf_counter() - started
        return Embedded(self.out, counts, labelled, width, self.about, self.skipped, reused, seconds)

    def _relabelled(self) -> Mapping[str, LabelledSet]:
        """Give features that are there the labels that the images have now."""
        before = load(self.out, self.options)
        found = all_sets(before)
        sets = {
            name: replace(part, inputs=found[name].inputs, digests=found[name].digests)
            for name, part in self.sets.items()
        }
        changed = before.class_names != self.loaded.class_names or any(
            not np.array_equal(part.labels, found[name].labels)  # type: ignore[arg-type]
            for name, part in sets.items()
        )
        if changed:
            write_features(self.out, sets, self.loaded.class_names, self.about)
        return sets

    def _embed(self, reporter: Reporter) -> Mapping[str, LabelledSet]:
        plan = list(self._plan())
        with _writing(self._parts):
            self._parts.mkdir(exist_ok=True)
        with locked(self._parts / ".lock", busy="another process is at work on these features; let it end first"):
            with _writing(self._parts):
                for stray in {*self._parts.glob("*.npz")} - {file for file, _, _ in plan}:
                    stray.unlink()  # of other images, or half written
            done = sum(len(rows) for file, _, rows in plan if file.exists())
            with reporter, Interruption() as interruption:
                reporter.start("embedding", self.total, done + 1)
                for file, name, rows in plan:
                    if not file.exists():
                        self._write_part(file, name, rows, interruption, done)
                        done += len(rows)
                        reporter.items(done, self.total)
            sets = {name: replace(part, **self._joined(name, plan)) for name, part in self.sets.items()}
            write_features(self.out, sets, self.loaded.class_names, self.about)
        shutil.rmtree(self._parts, ignore_errors=True)
        return sets

    @property
    def _parts(self) -> Path:
        """Where the work under way is kept."""
        return self.out.with_name(f"{self.out.name}.parts")

    def _plan(self) -> Iterator[tuple[Path, str, range]]:
        """Yield which rows of which set go into which file."""
        for name, part in self.sets.items():
            for start in range(0, len(part.inputs), _PART):
                file = self._parts / f"{self.about.fingerprint}-{name}-{start:09}.npz"
                yield file, name, range(start, min(start + _PART, len(part.inputs)))

    @cached_property
    def _sources(self) -> dict[str, Source]:
        normalise = Standardisation(*(torch.tensor(v).view(3, 1, 1) for v in (self.backbone.mean, self.backbone.std)))
        return {
            name: make_source(self.loaded, part.inputs, normalise, self.options) for name, part in self.sets.items()
        }

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
            raise InputError(f"backbone {self.about.backbone}: features that are not finite, or beyond float16's range")
        write_atomically(file, lambda path: np.savez(path, allow_pickle=False, **content))

    def _batches(self, source: Source, rows: range) -> Iterator[Tensor]:
        """Yield batches of images (b, 3, h, w), normalised."""
        cut = torch.arange(rows.start, rows.stop).split(self.batch_size)
        return prepared((partial(source.fetch, indices) for indices in cut), source.ahead)

    @torch.inference_mode()
    def _encode(self, images: Tensor) -> Array:
        size = (self.about.image_size, self.about.image_size)
        images = images.to(self.device)
        if images.shape[2:] != size:  # of an array; files were scaled when they were read
            images = F.interpolate(images, size, mode=self.about.resample, align_corners=False, antialias=True)
        features = self.backbone.encode(images.contiguous(memory_format=torch.channels_last))
        return features.half().cpu().numpy()

    def _joined(self, name: str, plan: list[tuple[Path, str, range]]) -> dict[str, Array]:
        parts = [read_npz(file) for file, of, _ in plan if of == name]
        return {
            "inputs": np.concatenate([part["features"] for part in parts]),
            "digests": np.concatenate([part["digests"] for part in parts]),
        }


def prepare_embedding(
    options: DataOptions,
    out: Path,
    *,
    backbone: str = BACKBONE,
    weights: Path | None = None,
    batch_size: int | None = None,
    force: bool = False,
    device: str = "auto",
    threads: int | None = None,
    track: Track = untracked,
) -> Embedding:
    """Find the images, leave out broken ones where that is wanted, and choose what the backbone sees of them."""
    if out.suffix != ".npz":
        raise ConfigError(f"--out {out}: cannot write '{out.suffix}'; name a .npz file")
    chosen: Backbone = backbones.load(backbone)(weights)
    if threads is not None:
        torch.set_num_threads(threads)
    place = Processes(device).device
    _, loaded = load_inputs(options)
    if loaded.normalisation is None:
        raise InputError(f"data {options.path}: holds no images, so there is nothing to embed; train on it as it is")
    options = _sized(options, chosen, backbone, loaded.train.inputs)
    # Every image is decoded once beforehand: a broken one at the end would waste all that was computed before it.
    sets, _, skipped = open_sets(all_sets(loaded), options.model_copy(update={"skip_broken": True}), track)
    if skipped and not options.skip_broken:
        first = skipped[0]
        raise InputError(
            f"data {options.path}: {len(skipped)} of its images cannot be read, the first: {first.id}: {first.reason}; "
            "to leave them out: --skip-broken"
        )
    assert options.image_size is not None
    assert options.image_resize is not None
    about = About(
        backbone=backbone,
        image_size=options.image_size,
        image_resize=options.image_resize,
        resample=options.resample,
        data=str(Path(options.path).resolve()),
        fingerprint="",
        class_map=loaded.class_map,
        clean_val=loaded.clean_val,
    )
    about = replace(about, fingerprint=_fingerprint(about, weights, sets))
    network = chosen.network.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    network.eval().requires_grad_(False)
    size = batch_size or (_BATCH if place.type == "cpu" else _GPU_BATCH)
    work = Embedding(out, about, loaded, sets, skipped, options, chosen, size, place)
    if out.exists() and not force and not work.is_done:
        raise RunFolderError(f"--out {out}: is there, and holds something else; replace it with --force")
    return work


def _sized(options: DataOptions, backbone: Backbone, name: str, inputs: Array | ImageFiles) -> DataOptions:
    """Fill in the sizes: small images are scaled up and seen whole, of larger ones the centre is seen."""
    small = are_small(inputs)
    size = options.image_size or (_SMALL_SIZE if small and not backbone.fixed_size else backbone.size)
    if backbone.fixed_size and size != backbone.size:
        raise ConfigError(f"--image-size {size}: {name} takes images of {backbone.size} pixels only; leave it out")
    resize = options.image_resize or (size if small else round(size * _MARGIN))
    return options.model_copy(update={"image_size": size, "image_resize": resize, "augment": False})


def _fingerprint(about: About, weights: Path | None, sets: Mapping[str, LabelledSet]) -> str:
    """Digest what features follow from: what is done to the images, and which they are: files by size and date."""
    digest = blake2b(json.dumps(asdict(about) | {"clean_val": None, "class_map": None}).encode(), digest_size=8)
    if weights is not None:
        digest.update(weights.read_bytes())
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
