"""embed: frozen features of a data set's examples, as a file that every command takes; a killed one goes on."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unflip.api.kept_parts import KeptParts, Part, cut_into_parts
from unflip.api.options import EMBED, EmbeddingOptions, option_tree
from unflip.data.arrays import Array
from unflip.data.columns import Cells
from unflip.data.dataset import Dataset, Inputs, Split
from unflip.data.files import Frame, ImageFiles, Skipped
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
from unflip.files import Interruption
from unflip.parallel import Cluster, find_ray
from unflip.progress import Reporter, Track, make_reporter, untracked
from unflip.runs.config import Tree, check_section
from unflip.runs.layout import check_output
from unflip.runs.options import Execution
from unflip.stats.rows import evenly_spaced

EMBEDDING_USES = ("image_size", "image_resize", "resample")
"""Options of data that matter for images of every kind, once they become features."""
_LOOKED_AT = 256  # images of a part that are read before anything is computed


@dataclass(frozen=True)
class EmbedResult:
    """A finished feature file."""

    path: Path
    features: Dataset
    """What the file holds."""
    examples: Mapping[str, Inputs]
    """What the features of each part were computed from."""
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
    if isinstance(raw.train.inputs, Cells):
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
    raw.check_trainable(options.path)
    features = encode_raw(raw, options, reporter.track)
    assert features.encoding is not None
    rows = {name: part.inputs for name, part in features.parts().items() if isinstance(part.inputs, np.ndarray)}
    digest = blake2b(json.dumps([features.encoding.encoder, dict(features.encoding.settings)]).encode(), digest_size=8)
    for name, array in rows.items():
        digest.update(f"{name} {len(array)}".encode() + np.ascontiguousarray(array).data)
    origin = FeatureOrigin(
        features.encoding, str(Path(options.path).resolve()), digest.hexdigest(), clean_val=raw.clean_val
    )
    write_features(out, rows, features.parts(), raw.class_names, origin)
    seconds = time.perf_counter() - started
    how = restore(features.encoding).describe()
    examples = {name: part.inputs for name, part in raw.parts().items()}
    features = replace(features, name=out.name)
    return EmbedResult(out, features, examples, origin, (), reused=False, seconds=seconds, how=how)


@dataclass(frozen=True)
class EmbedPlan:
    """All that a feature file needs, found and checked; nothing is computed yet."""

    out: Path
    origin: FeatureOrigin
    raw: Dataset
    """The images."""
    sets: Mapping[str, Split]
    """The images by part, as the backbone sees them; some may turn out to be broken."""
    kept: KeptParts
    options: DataOptions
    embedding: EmbeddingOptions
    execution: Execution
    encoder: ImageEncoder

    @cached_property
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

    @property
    def total(self) -> int:
        """The number of images, over all parts."""
        return self.kept.total

    def look(self) -> None:
        """Read some images of each part, so that data with many broken ones is refused before anything is written."""
        for name in self.sets:
            images = self._images(name)
            if not isinstance(images, ImageFiles):
                continue
            rows = evenly_spaced(len(images), _LOOKED_AT, torch.device("cpu"))
            source = self.encoder.source(images, self.options.workers)
            found = [batch.broken for batch in read_batches(source, rows.split(self.encoder.batch_size))]
            if len(rows) == len(images) or not self.options.skip_broken:
                check_broken(name, images, {row: why for part in found for row, why in part.items()}, self.options)

    def run(self, reporter: Reporter) -> EmbedResult:
        """Compute what is missing and write the file."""
        started, reused = time.perf_counter(), self.is_done
        origin = self._before or self._embed(reporter)
        sets = self._labelled(origin, reused)
        features = replace(
            self.raw,
            train=sets.pop("train"),
            val=sets.pop("val", None),
            tests=sets,
            normalisation=None,
            images_path=self.origin.data,
            skipped=origin.skipped,
            encoding=self.origin.encoding,
        )
        seconds = time.perf_counter() - started
        examples = {name: part.inputs for name, part in self._readable(origin.skipped).items()}
        return EmbedResult(
            self.out, features, examples, origin, origin.skipped, reused, seconds, self.encoder.describe()
        )

    def _written(self) -> dict[str, Split]:
        return load_raw(self.options.model_copy(update={"path": str(self.out)})).parts()

    def _labelled(self, origin: FeatureOrigin, reused: bool) -> dict[str, Split]:
        """Return the features that are written, with the labels that the images have now."""
        found = self._written()
        readable = self._readable(origin.skipped)
        sets = {
            name: replace(
                part,
                inputs=found[name].inputs,
                digests=found[name].digests,
                image_stats=found[name].image_stats,
            )
            for name, part in readable.items()
        }
        changed = any(not np.array_equal(part.labels, found[name].labels) for name, part in sets.items())  # type: ignore[arg-type]
        if reused and changed:
            write_labels(self.out, sets, self.raw.class_names, origin)
        return sets

    def _readable(self, skipped: Sequence[Skipped]) -> dict[str, Split]:
        """Return the images without those that could not be read."""
        sets = dict(self.sets)
        for name in {image.part for image in skipped}:
            broken = {image.id for image in skipped if image.part == name}
            inputs = sets[name].inputs
            assert isinstance(inputs, ImageFiles)
            sets[name] = sets[name][np.array([str(image) not in broken for image in inputs.names])]
        return sets

    def _embed(self, reporter: Reporter) -> FeatureOrigin:
        """Compute the parts that are missing, and write the file."""
        with self.kept.at_work():
            missing = self.kept.missing()
            broken = {name: self.kept.broken(name, missing) for name in self.sets}
            done = self.total - sum(map(len, missing))

            def advance(count: int) -> None:
                nonlocal done
                if interruption.signal is not None:
                    kept = self.total - sum(map(len, self.kept.missing()))
                    raise Stopped(f"stopped; {self.kept.kept(kept)}", interruption.signal)
                done += count
                reporter.items(done, self.total, "images")

            with reporter, Interruption() as interruption:
                reporter.start("embedding", self.total, done + 1)
                self._check_broken(broken)
                for part, embedded in self._compute(missing, advance):
                    self.kept.write(part, embedded)
                    broken[part.set] |= {part.start + row: reason for row, reason in embedded.broken.items()}
                    self._check_broken(broken)
            skipped = tuple(
                Skipped(name, str(self._images(name).names[row]), reason)  # type: ignore[union-attr]
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

    def _compute(self, parts: Sequence[Part], advance: Advance) -> Iterator[tuple[Part, Embedded]]:
        options, execution = self.embedding, self.execution
        if options.on == "local":
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
        for name, found in broken.items():
            images = self._images(name)
            try:
                if isinstance(images, ImageFiles):
                    check_broken(name, images, found, self.options)
            except InputError as error:
                kept = self.total - sum(map(len, self.kept.missing()))
                raise InputError(f"{error}; {self.kept.kept(kept)}") from error

    def _images(self, name: str) -> Array | ImageFiles:
        images = self.sets[name].inputs
        assert isinstance(images, np.ndarray | ImageFiles)
        return images


def plan_embedding(
    raw: Dataset,
    out: Path,
    options: DataOptions,
    embedding: EmbeddingOptions,
    execution: Execution,
    *,
    track: Track = untracked,
) -> EmbedPlan:
    """Look at the images, and choose what the backbone sees of them.

    Args:
        raw: what a loader found.
        out: the feature file, or the folder of shards.
        options: with which ``raw`` was loaded.
        embedding: which backbone and weights.
        execution: device and threads.
        track: is told how many parts have been looked at.
    """
    if embedding.address is not None and embedding.on != "ray":
        raise ConfigError(f"--address {embedding.address} is that of a Ray cluster; add --on ray")
    if embedding.on == "ray":
        find_ray(embedding.address)
    place = start_processes(execution.device, execution.threads).device
    if not raw.holds_images:
        raise InputError(f"data {options.path}: holds no images, so there is nothing to embed; train on it as it is")
    raw.check_trainable(options.path)
    assert isinstance(raw.train.inputs, np.ndarray | ImageFiles)
    encoder = ImageEncoder.choose(
        embedding.backbone, raw.train.inputs, options, embedding.weights, embedding.feature_precision
    )
    encoding = encoder.encoding()
    options = image_options(encoding, options)
    seen = encoder.settings
    frame = Frame(seen.image_size, seen.image_resize, options.resample)
    sets = {
        name: replace(part, inputs=replace(part.inputs, frame=frame)) if isinstance(part.inputs, ImageFiles) else part
        for name, part in raw.parts().items()
    }
    data = str(Path(options.path).resolve())
    settings = {key: value for key, value in encoding.settings.items() if key != "weights_file"}
    made = json.dumps([encoding.encoder, settings, data, "image_stats"])  # parts without these are made anew
    parts = cut_into_parts(sets, made, options.workers, track, skip_missing=options.skip_broken)
    digest = blake2b("".join(part.file for part in parts).encode(), digest_size=8)
    origin = FeatureOrigin(
        encoding=encoding,
        data=data,
        fingerprint=digest.hexdigest(),
        class_map=raw.class_map,
        clean_val=raw.clean_val,
    )
    kept = KeptParts(out.with_name(f"{out.name}.parts"), parts)
    ready = encoder.to(place, embedding.batch_size)
    plan = EmbedPlan(out, origin, raw, sets, kept, options, embedding, execution, ready)
    if not plan.is_done:
        plan.look()
    return plan
