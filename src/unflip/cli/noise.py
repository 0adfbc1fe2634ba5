"""``unflip corrupt`` and ``unflip noise inspect``: make label noise, and tell of it."""

import csv
import io
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from unflip.data.array_files import Array, read_npz, write_array
from unflip.data.dataset import DataOptions, Dataset, open_dataset
from unflip.data.label_files import find_classes, read_labels, to_class_numbers
from unflip.data.noisy import NoiseOptions
from unflip.errors import ConfigError, InputError, RunFolderError
from unflip.files import write_json, write_text
from unflip.networks.mlp import MLPOptions
from unflip.noise.recipe import parse
from unflip.noise.transition import Realised, realised
from unflip.report.noise_figure import PmdCurve, draw_noise
from unflip.training.config import OptimizerOptions
from unflip.training.posterior import PosteriorFit
from unflip.training.processes import Processes
from unflip.training.progress import make_reporter

_SHOWN = 20  # classes whose matrix still fits a terminal


def run_corrupt(
    data: str,
    noise: str,
    out: Path,
    *,
    labels: Path | None,
    take: int | None,
    posterior: str,
    save_posterior: Path | None,
    class_map: str | None,
    matrix: Path | None,
    seed: int,
    force: bool,
    device: str,
    threads: int | None,
    quiet: bool,
) -> None:
    """Make the labels; write them, their provenance and a picture; print the realised matrix."""
    recipe = parse(noise)
    record, picture = out.with_suffix(".json"), out.with_suffix(".png")
    _check_targets([out, record, picture, *([save_posterior] if save_posterior else [])], force)
    if threads is not None:
        torch.set_num_threads(threads)
    processes = Processes(device)
    estimate = PosteriorFit("mlp", MLPOptions(), OptimizerOptions(), seed, processes, make_reporter(quiet))
    dataset = open_dataset(
        DataOptions(path=data, labels=None if labels is None else str(labels), take=take, val_fraction=0.0),
        seed,
        NoiseOptions(
            recipe=str(recipe),
            posterior=posterior,
            class_map=class_map,
            matrix=None if matrix is None else str(matrix),
        ),
        estimate,
    )
    added = dataset.noise
    assert added is not None
    truth = dataset.given if dataset.clean is None else dataset.clean
    measured = realised(truth[~dataset.is_val], added.labels, dataset.num_classes)
    _write_labels(out, added.labels, dataset)
    write_json(record, added.provenance)
    if save_posterior and added.posterior is not None:
        write_array(save_posterior, added.posterior.numpy())
    curve = None
    first = added.provenance["steps"][0]
    if added.posterior is not None and (kind := recipe.steps[0].pmd_kind) is not None:
        curve = PmdCurve(kind, first["factor"], added.posterior)
    draw_noise(picture, truth[~dataset.is_val], added.labels, measured.matrix,
               class_names=dataset.class_names, pmd=curve)  # fmt: skip
    if not quiet:
        tell(measured, dataset.class_names)
        print(f"labels in {out}, how they came about in {record}, a picture in {picture}")  # noqa: T201


def run_inspect(labels_path: Path, clean_path: Path, take: int | None, out: Path | None) -> None:
    """Compare labels with the truth and tell the difference."""
    if out is not None and out.suffix != ".png":
        raise ConfigError(f"--out {out}: cannot draw '{out.suffix}'; name a .png file")
    labels_raw = read_labels(labels_path)
    clean_raw = _read_clean(clean_path)
    if take is not None and take > len(labels_raw):
        raise ConfigError(f"--take {take}: {labels_path} has only {len(labels_raw)} labels")
    count = take or len(labels_raw)
    if count > len(clean_raw):
        raise InputError(f"labels {labels_path}: {count} labels, {clean_path} has only {len(clean_raw)}")
    for path, array in ((labels_path, labels_raw), (clean_path, clean_raw)):
        if array.ndim != 1:
            raise InputError(f"labels {path}: {array.ndim} dimensions {array.shape}, labels have one")
    labels_raw, clean_raw = labels_raw[:count], clean_raw[:count]
    both = (labels_raw, clean_raw)
    if len({array.dtype.kind == "U" for array in both}) > 1:
        raise InputError(f"{labels_path} and {clean_path}: one holds names, the other numbers; give both alike")
    num_classes, names = find_classes(np.concatenate(both), None, f"labels {labels_path}")
    labels = to_class_numbers(labels_raw, num_classes, names, f"labels {labels_path}")
    clean = to_class_numbers(clean_raw, num_classes, names, f"clean labels {clean_path}")
    measured = realised(clean, labels, num_classes)
    tell(measured, names)
    if out is not None:
        draw_noise(out, clean, labels, measured.matrix, class_names=names)


def tell(measured: Realised, class_names: list[str] | None) -> None:
    """Print rates and matrix; of many classes, those with the most noise and what they became."""
    console = Console(soft_wrap=True, highlight=False)
    count = len(measured.matrix)
    names = class_names or [str(i) for i in range(count)]
    console.print(f"noise rate {measured.rate:.4f} over {int(measured.class_counts.sum())} labels, {count} classes")
    table = Table(box=None, title="true class (rows) and what it is called (columns)", title_justify="left")
    table.add_column("class")
    table.add_column("examples", justify="right")
    table.add_column("wrong", justify="right")
    if count <= _SHOWN:
        rows = range(count)
        for name in names:
            table.add_column(name[:6], justify="right")
    else:
        rows = measured.class_rates.argsort(descending=True)[:_SHOWN].tolist()  # type: ignore[assignment]
        table.add_column(f"called (the {_SHOWN} classes with the most noise)")
    for i in rows:
        cells = [names[i], str(int(measured.class_counts[i])), f"{float(measured.class_rates[i]):.3f}"]
        if count <= _SHOWN:
            cells += [f"{value:.2f}" if value >= 0.005 else "." for value in measured.matrix[i].tolist()]
        else:
            share, which = measured.matrix[i].topk(4)
            cells.append(", ".join(f"{names[j]} {s:.2f}" for s, j in zip(share.tolist(), which.tolist(), strict=True)))
        table.add_row(*cells)
    console.print(table)


def _check_targets(paths: list[Path], force: bool) -> None:
    out = paths[0]
    if out.suffix not in (".npy", ".csv", ".txt"):
        raise ConfigError(f"--out {out}: cannot write '{out.suffix}'; name a .npy, .csv or .txt file")
    if not out.parent.is_dir():
        raise RunFolderError(f"--out {out}: there is no folder {out.parent}")
    there = next((path for path in paths if path.exists()), None)
    if there is not None and not force:
        raise RunFolderError(f"{there}: is there already; replace it with --force or choose another --out")


def _write_labels(out: Path, labels: Tensor, dataset: Dataset) -> None:
    numbers = labels.numpy().astype(np.min_scalar_type(dataset.num_classes - 1))
    if out.suffix == ".npy":
        write_array(out, numbers)
        return
    lines = [dataset.class_names[i] for i in numbers] if dataset.class_names else [str(i) for i in numbers]
    if out.suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([line] for line in ["label", *lines])
        write_text(out, text.getvalue())
    else:
        write_text(out, "\n".join(lines) + "\n")


def _read_clean(path: Path) -> Array:
    if path.suffix != ".npz":
        return read_labels(path)
    arrays = read_npz(path)
    if "train_labels" not in arrays:
        raise InputError(f"clean labels {path}: no array 'train_labels'; it holds {', '.join(sorted(arrays))}")
    return arrays["train_labels"]
