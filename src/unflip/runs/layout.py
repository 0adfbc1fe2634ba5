"""The names of all files in a run folder, and the check of output paths."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from unflip.errors import ConfigError, RunFolderError
from unflip.files import is_marked, is_within

MARKER = "run.json"
"""Marks a run folder and its format; written first."""
CONFIG = "config.toml"
RESULT = "result.json"
"""Written last: the run is finished."""
METRICS = "metrics.jsonl"
NOISE = "noise.json"
SKIPPED = "skipped.csv"
LABELS = "labels.parquet"
LABELS_CSV = "labels.csv"
HISTORY = "history.parquet"
MODEL = "model.safetensors"
FEATURES = "features.npy"
GAUSSIANS = "gaussians.safetensors"
TRANSITION = "transition.npy"
CHECKPOINTS = "checkpoints"
REPORT = "report.html"
LABEL_ISSUES = "label_issues.csv"
ISSUES = "issues.csv"
UNLABELED = "unlabeled.csv"
ANNOTATORS = "annotators.csv"
ANNOTATIONS = "annotations.csv"
ASK_NEXT = "ask_next.csv"
DATA = "data"
"""Hugging Face data sets, written as files."""
REPLACED = (
    CONFIG, RESULT, METRICS, NOISE, SKIPPED, LABELS, LABELS_CSV, HISTORY, MODEL, FEATURES,
    GAUSSIANS, TRANSITION, CHECKPOINTS, REPORT, LABEL_ISSUES, ISSUES, UNLABELED, ANNOTATORS, ANNOTATIONS,
    ASK_NEXT,
)  # fmt: skip
"""Files of an old run that a new one replaces."""
FOLDERS = (CHECKPOINTS, DATA)
CHECKPOINT = re.compile(r"epoch-\d{5}(-phase-\d{3,}-step-\d{8,})?\.safetensors")
"""Names of a run's checkpoints."""
EMBEDDED = "embedded.npz"
"""Features that `unflip clean` computed from images; cached for the next run."""
DECISIONS = "review.sqlite"
"""Decisions on the review page; never removed."""
KEPT_DECISIONS = "decisions.csv"
"""The decisions about an earlier run in the folder, with which the next one was trained."""
REVIEW_LOCK = ".unflip-review-lock"
"""Lock of the process that serves the review page."""


def check_output(
    path: Path, suffixes: Collection[str] = (), *, force: bool, inputs: Iterable[str | Path] = (), option: str = "--out"
) -> None:
    """Raise an error if a file cannot or must not be written, before anything is computed.

    Args:
        path: the file to write.
        suffixes: allowed suffixes; all by default.
        force: whether to replace an existing file.
        inputs: files that the command reads; never replaced.
        option: the name of the option, for errors.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        raise ConfigError(f"{option} {path}: cannot write '{path.suffix}'; use {' or '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise RunFolderError(f"{option} {path}: the folder {path.parent} does not exist")
    if is_marked(path.parent / MARKER) and path.name in (MARKER, *REPLACED):
        raise RunFolderError(f"{option} {path}: belongs to the run in that folder; choose another name")
    if not path.exists():
        return
    if not path.is_file():
        raise RunFolderError(f"{option} {path}: not a regular file")
    if any(is_within(path, Path(given)) for given in inputs):
        raise RunFolderError(f"{option} {path}: is an input of this command; choose another name")
    if not force:
        raise RunFolderError(f"{option} {path}: already exists; replace it with --force")
