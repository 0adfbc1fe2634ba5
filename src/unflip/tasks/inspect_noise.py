"""inspect_noise: how wrong labels are, compared with the true ones."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unflip.data.files.arrays import Array, read_npz
from unflip.data.files.labels import find_classes, read_labels, to_class_numbers
from unflip.errors import ConfigError, InputError
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.report.noise_figure import draw_noise


@dataclass(frozen=True)
class InspectResult:
    """The noise between two sets of labels."""

    measured: NoiseProfile
    class_names: list[str] | None


def inspect_noise(labels: Path, clean: Path, *, take: int | None = None, out: Path | None = None) -> InspectResult:
    """Compare labels with the true ones.

    Args:
        labels: the labels in question: .npy, .csv or .txt.
        clean: the true labels: the same, or an .npz with ``train_labels``.
        take: compare only the first so many. A shorter ``labels`` is compared with the first rows of ``clean``.
        out: draw the transition matrix to this .png.
    """
    if out is not None and out.suffix != ".png":
        raise ConfigError(f"--out {out}: cannot draw '{out.suffix}'; name a .png file")
    labels_raw, clean_raw = read_labels(labels), _read_clean(clean)
    if take is not None and take > len(labels_raw):
        raise ConfigError(f"--take {take}: {labels} has only {len(labels_raw)} labels")
    count = take or len(labels_raw)
    if count > len(clean_raw):
        raise InputError(f"labels {labels}: {count} labels, {clean} has only {len(clean_raw)}")
    for path, array in ((labels, labels_raw), (clean, clean_raw)):
        if array.ndim != 1:
            raise InputError(f"labels {path}: {array.ndim} dimensions {array.shape}, labels have one")
    labels_raw, clean_raw = labels_raw[:count], clean_raw[:count]
    both = (labels_raw, clean_raw)
    if len({array.dtype.kind == "U" for array in both}) > 1:
        raise InputError(f"{labels} and {clean}: one holds names, the other numbers; give both alike")
    num_classes, names = find_classes(np.concatenate(both), None, f"labels {labels}")
    noisy_numbers = to_class_numbers(labels_raw, num_classes, names, f"labels {labels}")
    clean_numbers = to_class_numbers(clean_raw, num_classes, names, f"clean labels {clean}")
    measured = measure_noise(clean_numbers, noisy_numbers, num_classes)
    if out is not None:
        draw_noise(out, clean_numbers, noisy_numbers, measured.matrix, class_names=names)
    return InspectResult(measured, names)


def _read_clean(path: Path) -> Array:
    if path.suffix != ".npz":
        return read_labels(path)
    arrays = read_npz(path)
    if "train_labels" not in arrays:
        raise InputError(f"clean labels {path}: no array 'train_labels'; it holds {', '.join(sorted(arrays))}")
    return arrays["train_labels"]
