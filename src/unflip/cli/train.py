"""``unflip train``: run it and say what came out."""

from pathlib import Path
from typing import Any

from unflip.training.folder import Run
from unflip.training.processes import is_first_process
from unflip.training.selection import protocol
from unflip.training.train import train


def run_train(data: str | None, out: Path, *, quiet: bool, **options: Any) -> None:
    """Train, then print a summary."""
    run = train(data, out, quiet=quiet, **options)
    if not quiet and is_first_process():
        print(summary(run))  # noqa: T201


def summary(run: Run) -> str:
    """Return what a person wants to know of a finished run, in a few lines."""
    result = run.result
    lines = [f"{result['method']} on {result['data']}, seed {result['seed']}, {result['epochs']} epochs"]
    lines.append(f"  model of epoch {result['selected_epoch']}, chosen by {protocol(result['selection'])}")
    if result["test_accuracy"]["selected"] is not None:
        test = result["test_accuracy"]
        lines.append(f"  test accuracy  {test['selected']:.2%} (last epoch {test['last']:.2%})")
    if result["val_accuracy"] is not None:
        lines.append(f"  agreement with the given labels of the validation examples  {result['val_accuracy']:.2%}")
    labels = result["label_accuracy_all"]
    if labels["given"] is not None:
        lines.append(f"  labels right   {labels['given']:.2%} as given, {labels['current']:.2%} now")
    lines.append(f"  {result['seconds']:.1f} s; everything is in {run.folder} (labels.csv: one row an example)")
    return "\n".join(lines)
