"""Every file in a run folder, by name."""

import re
from collections.abc import Iterator
from pathlib import Path

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
SUSPECTS = "suspects.csv"
FINDINGS = "findings.csv"
DATA = "data"
"""Data sets of Hugging Face, written as files."""
REPLACED = (
    CONFIG, RESULT, METRICS, NOISE, SKIPPED, LABELS, LABELS_CSV, HISTORY, MODEL, FEATURES, LAST_FEATURES,
    GAUSSIANS, TRANSITION, CHECKPOINTS, TENSORBOARD, REPORT, SUSPECTS, FINDINGS,
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
