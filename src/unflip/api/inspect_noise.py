"""inspect_noise: how wrong labels are, compared with the true ones."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unflip.data.arrays import Array, read_npz
from unflip.data.labels import find_classes, read_labels, to_class_numbers
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.errors import ConfigError, InputError
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.report.figures import draw_noise
from unflip.runs.layout import check_output


@dataclass(frozen=True)
class InspectResult:
    """The noise between two sets of labels."""

    measured: NoiseProfile
    class_names: tuple[str, ...] | None


def inspect_noise(
    labels: Path, clean: str | Path, *, limit: int | None = None, out: Path | None = None, force: bool = False
) -> InspectResult:
    """Compare labels with the true ones.

    Args:
        labels: the labels in question: .npy, .csv or .txt.
        clean: the true labels: the same, an .npz with ``train_labels``, or any data with labels that ``train`` reads,
            such as the built-in ``digits`` or a folder of images.
        take: compare only the first so many. A shorter ``labels`` is compared with the first rows of ``clean``.
        out: draw the transition matrix to this .png.
        force: replace a picture that is there.
    """
    if out is not None:
        check_output(out, (".png",), force=force, inputs=[labels, clean])
    labels_raw, (clean_raw, declared) = read_labels(labels), _read_clean(Path(clean))
    for path, array in ((labels, labels_raw), (clean, clean_raw)):
        if array.ndim != 1:
            raise InputError(f"labels {path}: {array.ndim} dimensions {array.shape}, labels have one")
    if limit is not None and limit > len(labels_raw):
        raise ConfigError(f"--limit {limit}: {labels} has only {len(labels_raw)} labels")
    count = limit or len(labels_raw)
    if not count:
        raise InputError(f"labels {labels}: holds no labels; give one per example")
    if count > len(clean_raw):
        raise InputError(f"labels {labels}: {count} labels, {clean} has only {len(clean_raw)}")
    labels_raw, clean_raw = labels_raw[:count], clean_raw[:count]
    both = (labels_raw, clean_raw)
    if declared is None and len({array.dtype.kind == "U" for array in both}) > 1:
        raise InputError(f"{labels} and {clean}: one holds names, the other numbers; give both alike")
    num_classes, names = find_classes(np.concatenate(both), declared, f"labels {labels}")
    if num_classes < 2:
        raise InputError(f"labels {labels}: {num_classes} class in {count} labels, as in {clean}; two are needed")
    noisy_numbers = to_class_numbers(labels_raw, num_classes, names, f"labels {labels}")
    clean_numbers = to_class_numbers(clean_raw, num_classes, names, f"clean labels {clean}")
    measured = measure_noise(clean_numbers, noisy_numbers, num_classes)
    if out is not None:
        draw_noise(out, clean_numbers, noisy_numbers, measured.matrix, class_names=names)
    return InspectResult(measured, names)


def _read_clean(path: Path) -> tuple[Array, tuple[str, ...] | None]:
    """Return the true labels, and the names of the classes where the data declares them."""
    if path.suffix.lower() in (".npy", ".csv", ".txt"):
        return read_labels(path), None
    if path.suffix == ".npz":  # without its features, which may be large
        arrays = read_npz(path, only=("train_labels", "class_names"))
        labels, names = arrays.get("train_labels"), arrays.get("class_names")
        class_names, missing = None if names is None else tuple(map(str, names.tolist())), "no array 'train_labels'"
    else:
        raw = load_raw(DataOptions(path=str(path)))
        raw.check_trainable(f"clean labels {path}")
        labels, class_names, missing = raw.train.labels, raw.class_names, raw.unlabeled
    if labels is None:
        raise InputError(f"clean labels {path}: {missing}; give a file of labels, or data with labels")
    return labels, class_names
