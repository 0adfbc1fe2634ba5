"""corrupt and inspect_noise: make noisy labels, and compare labels with the true ones."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unflip.api.options import CORRUPT, option_tree
from unflip.data.arrays import Array, read_npz, write_array
from unflip.data.corrupt import corrupt_labels, needs_posterior
from unflip.data.dataset import Dataset
from unflip.data.labeling import label_data
from unflip.data.labels import (
    are_misleading,
    as_names,
    find_classes,
    number_names,
    read_labels,
    to_class_numbers,
    whole_number,
)
from unflip.data.loaders import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.encoders.table import encode_raw
from unflip.engine.distributed import Distributed
from unflip.engine.prepare import find_posterior
from unflip.errors import ConfigError, InputError
from unflip.files import write_json, write_text, written_together
from unflip.noise.recipe import parse
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.report.figures import PmdCurve, draw_noise
from unflip.runs.config import check_section
from unflip.runs.layout import check_output
from unflip.runs.options import Common, Execution


@dataclass(frozen=True)
class CorruptResult:
    """Noisy labels: where they, their record and a picture were written, and how noisy they are."""

    labels: Path
    record: Path
    picture: Path
    measured: NoiseProfile
    class_names: tuple[str, ...] | None


def corrupt(
    data: str | Path,
    noise: str,
    out: str | Path,
    *,
    save_posterior: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
    **options: Any,
) -> CorruptResult:
    """Add label noise by a recipe; write the labels, a record of how they were made (.json) and a picture (.png).

    Args:
        data: feature arrays with clean ``train_labels``, images, or the name of a built-in data set.
        noise: the recipe, such as ``pmd1:0.35 + sym:0.30``; docs/noise.md lists its steps.
        out: the labels: .npy, .csv or .txt. The other two files are written next to it.
        save_posterior: write the class probabilities that a pmd step used to this .npy.
        seed: random seed.
        force: overwrite existing files.
        options: those of ``unflip.api.options.CORRUPT``; ``unflip corrupt --help`` describes them.
    """
    recipe, out = parse(noise), Path(out)
    record, picture = out.with_suffix(".json"), out.with_suffix(".png")
    inputs = [data, options.get("labels"), options.get("posterior"), options.get("class_map"), options.get("matrix")]
    check_output(out, (".npy", ".csv", ".txt"), force=force, inputs=inputs)
    for path in (record, picture):
        check_output(path, force=force, inputs=inputs, option="next to --out:")
    if save_posterior is not None:
        check_output(Path(save_posterior), (".npy",), force=force, inputs=inputs, option="--save-posterior")
    tree = option_tree(CORRUPT, {"seed": seed, **options})
    execution = check_section(Execution, tree.pop("execution", {}))
    typed, needed = tree.get("data", {}), tree.get("noise", {})
    given = tree | {"data": {"path": str(data), **typed}, "noise": {"recipe": str(recipe), **needed}}
    common = check_section(Common, given)
    data_options, noise_options = common.data, common.noise
    check_used(data_options, typed)
    if save_posterior is not None and not needs_posterior(noise_options):
        raise ConfigError(f"--save-posterior: the recipe {noise} has no pmd step")
    processes = Distributed(execution.device, threads=execution.threads)
    before = label_data(encode_raw(load_raw(data_options), data_options), data_options)
    posterior = find_posterior(before, noise_options, common.seed, processes, quiet=execution.quiet)
    after = corrupt_labels(before, noise_options, posterior, common.seed)
    truth = before.truth
    measured = measure_noise(truth, after.given, after.num_classes)
    assert after.noise_record is not None
    curve = None
    if posterior is not None and (kind := recipe.steps[0].pmd_kind) is not None:
        curve = PmdCurve(kind, after.noise_record["steps"][0]["factor"], posterior)
    with written_together():
        if save_posterior and posterior is not None:
            write_array(Path(save_posterior), posterior.numpy())
        draw_noise(picture, truth, after.given, measured.matrix, class_names=after.class_names, pmd=curve)
        write_json(record, after.noise_record | ({"classes": after.class_names} if after.class_names else {}))
        _write_labels(out, after)  # last, so that labels always have a record
    return CorruptResult(out, record, picture, measured, after.class_names)


def _write_labels(out: Path, data: Dataset) -> None:
    numbers = data.given.numpy().astype(np.min_scalar_type(data.num_classes - 1))
    if out.suffix.lower() == ".npy":
        names = data.class_names or ()
        if names and all(name == str(whole_number(name)) for name in names):
            write_array(out, np.array([int(name) for name in names])[numbers])
        else:
            write_array(out, np.array(names)[numbers] if are_misleading(names) else numbers)
        return
    lines = [data.class_names[i] for i in numbers] if data.class_names else [str(i) for i in numbers]
    if out.suffix.lower() == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([line] for line in ["label", *lines])
        write_text(out, text.getvalue())
    else:
        write_text(out, "\n".join(lines) + "\n")


def inspect_noise(
    labels: Path, clean: str | Path, *, limit: int | None = None, out: Path | None = None, force: bool = False
) -> tuple[NoiseProfile, tuple[str, ...] | None]:
    """Compare labels with the true ones; return the noise, and the class names if there are any.

    Args:
        labels: the labels to inspect: .npy, .csv or .txt.
        clean: the true labels: the same, an .npz with ``train_labels``, or any labeled data that ``train`` reads,
            such as the built-in ``digits`` or a folder of images. It may be longer than ``labels``.
        limit: compare only the first ``limit`` labels.
        out: draw the transition matrix to this .png.
        force: overwrite an existing picture.
    """
    if out is not None:
        check_output(out, (".png",), force=force, inputs=[labels, clean])
    noisy_raw, (clean_raw, class_names) = read_labels(labels), _read_clean(Path(clean))
    if limit is not None and limit > noisy_raw.size:
        raise ConfigError(f"--limit {limit}: {labels} has only {noisy_raw.size} labels")
    noisy_raw = noisy_raw[..., :limit] if noisy_raw.ndim else noisy_raw
    if noisy_raw.ndim != 1 or clean_raw.ndim != 1 or not 0 < len(noisy_raw) <= len(clean_raw):
        raise InputError(f"labels {labels}: shape {noisy_raw.shape} does not match {clean}, {clean_raw.shape}")
    clean_raw = clean_raw[: len(noisy_raw)]
    if class_names is None and (noisy_raw.dtype.kind == "U") != (clean_raw.dtype.kind == "U"):
        raise InputError(f"labels {labels}: must be names, or numbers, as in {clean}")
    if class_names is None and (class_names := number_names([noisy_raw, clean_raw], f"labels {labels}")) is not None:
        noisy_raw, clean_raw = (np.asarray(as_names(column)) for column in (noisy_raw, clean_raw))
    num_classes, names = find_classes(np.concatenate([noisy_raw, clean_raw]), class_names, f"labels {labels}")
    if num_classes < 2:
        raise InputError(f"labels {labels}: {num_classes} class; at least two are needed")
    noisy_labels = to_class_numbers(noisy_raw, num_classes, names, f"labels {labels}")
    clean_labels = to_class_numbers(clean_raw, num_classes, names, f"clean labels {clean}")
    measured = measure_noise(clean_labels, noisy_labels, num_classes)
    if out is not None:
        draw_noise(out, clean_labels, noisy_labels, measured.matrix, class_names=names)
    return measured, names


def _read_clean(path: Path) -> tuple[Array, tuple[str, ...] | None]:
    """Return the true labels, and the class names if the data has them."""
    if path.suffix.lower() in (".npy", ".csv", ".txt"):
        return read_labels(path), None
    if path.suffix == ".npz":  # without its features, which may be large
        arrays = read_npz(path, only=("train_labels", "class_names"))
        labels, names = arrays.get("train_labels"), arrays.get("class_names")
        class_names = None if names is None else tuple(map(str, names.tolist()))
    else:
        raw = load_raw(DataOptions(path=str(path)))
        raw.check_trainable(f"clean labels {path}")
        labels, class_names = raw.train.labels, raw.class_names
    if labels is None:
        raise InputError(f"clean labels {path}: no training labels")
    return labels, class_names
