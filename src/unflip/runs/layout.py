"""Every file in a run folder, by name, and where a command may write a file of its own."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from unflip.errors import ConfigError, RunFolderError
from unflip.files import is_marked, is_within

MARKER = "run.json"
"""Says that the folder is a run, and in which format; written first."""
CONFIG = "config.toml"
RESULT = "result.json"
"""Written last: a run that has it is finished."""
METRICS = "metrics.jsonl"
NOISE = "noise.json"
SKIPPED = "skipped.csv"
LABELS = "labels.parquet"
LABELS_CSV = "labels.csv"
HISTORY = "history.parquet"
MODEL = "model.safetensors"
FEATURES = "features.npy"
LAST_FEATURES = "last_features.npy"
GAUSSIANS = "gaussians.safetensors"
TRANSITION = "transition.npy"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
REPORT = "report.html"
LABEL_ISSUES = "label_issues.csv"
ISSUES = "issues.csv"
DATA = "data"
"""Data sets of Hugging Face, written as files."""
REPLACED = (
    CONFIG, RESULT, METRICS, NOISE, SKIPPED, LABELS, LABELS_CSV, HISTORY, MODEL, FEATURES, LAST_FEATURES,
    GAUSSIANS, TRANSITION, CHECKPOINTS, TENSORBOARD, REPORT, LABEL_ISSUES, ISSUES,
)  # fmt: skip
"""What a new run removes of an old one that it replaces."""
BOARD_ENDING = ".unflip"
"""How the names of our files for TensorBoard end."""
FOLDERS = (CHECKPOINTS, TENSORBOARD, DATA)
WITHIN = {
    CHECKPOINTS: re.compile(r"epoch-\d{5}(-phase-\d{3,}-step-\d{8,})?\.safetensors"),
    TENSORBOARD: re.compile(rf"events\.out\.tfevents\.\d+\..+{re.escape(BOARD_ENDING)}"),
}
"""Which files in its folders are a run's own, by their whole names."""
EMBEDDED = "embedded.npz"
"""Features that `unflip clean` computed from images; kept for the next run."""
DECISIONS = "review.sqlite"
"""What people decided on the review page; no run removes it."""
REVIEW_LOCK = ".unflip-review-lock"
"""Held by the process that serves the review of the run."""


def files_within(folder: Path, kind: str) -> Iterator[Path]:
    """Yield the files of a run in its folder of this kind, one of ``WITHIN``."""
    pattern = WITHIN[kind]
    return (path for path in folder.glob("*") if pattern.fullmatch(path.name) and path.is_file())


def check_output(
    path: Path,
    suffixes: Collection[str] = (),
    *,
    force: bool,
    inputs: Iterable[str | Path | None] = (),
    option: str = "--out",
) -> None:
    """Refuse a file that cannot be written, or should not be, before anything is computed.

    Args:
        path: the file to write.
        suffixes: the endings that it may have, if only some.
        force: whether a file that is there may be replaced.
        inputs: what the command reads: never replaced.
        option: how the command calls the file.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        *most, last = suffixes
        allowed = f"{', '.join(most)} or {last}" if most else last
        raise ConfigError(f"{option} {path}: cannot write '{path.suffix}'; name a {allowed} file")
    if not path.absolute().parent.is_dir():
        raise RunFolderError(f"{option} {path}: the folder {path.parent} does not exist; create it first")
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{option} {path}: is a folder or no ordinary file; name a file")
    for given in inputs:
        if given is not None and path.exists() and is_within(path, Path(given)):
            raise RunFolderError(f"{option} {path}: is what the command reads; choose another name")
    if path.exists() and not force:
        raise RunFolderError(f"{option} {path}: already exists; replace it with --force or choose another name")
    if is_marked(path.parent / MARKER) and path.name in (MARKER, *REPLACED):
        raise RunFolderError(f"{option} {path}: is a file of the run in that folder; choose another name")
