"""``unflip train``: run it and say what came out."""

from pathlib import Path
from typing import Any

from unflip.errors import ConfigError
from unflip.report.reported import train
from unflip.training.config import check_safety
from unflip.training.dry_run import dry_run
from unflip.training.folder import Run
from unflip.training.processes import is_first_process


def run_train(
    data: str | None,
    out: Path,
    *,
    quiet: bool,
    rehearse: bool,
    resume: bool,
    on_nan: str,
    checkpoint_minutes: float,
    keep: int,
    **options: Any,
) -> None:
    """Train, then print a summary; or only say what would be done."""
    if rehearse and resume:
        raise ConfigError("--dry-run tells of a whole run; leave --resume out")
    safety: dict[str, Any] = {"on_nan": on_nan, "checkpoint_minutes": checkpoint_minutes, "keep": keep}
    if rehearse:
        check_safety(**safety)
        told = dry_run(data, out, **options).text()
    else:
        told = summary(train(data, out, quiet=quiet, resume=resume, **safety, **options))
    if not quiet and is_first_process():
        print(told)  # noqa: T201


def summary(run: Run) -> str:
    """Return what a person wants to know of a finished run, in a few lines."""
    result = run.result
    lines = [f"{result['method']} on {result['data']}, seed {result['seed']}, {result['epochs']} epochs"]
    lines.append(f"  model of epoch {result['selected_epoch']}, chosen by {result['protocol']}")
    if result["test_accuracy"]["selected"] is not None:
        test = result["test_accuracy"]
        lines.append(f"  test accuracy  {test['selected']:.2%} (last epoch {test['last']:.2%})")
        if len(result["tests"]) > 1:
            lines += [
                f"    {name}  top-1 {figures['top1']:.2%}, top-5 {figures['top5']:.2%}"
                for name, figures in result["tests"].items()
            ]
    if result["val_accuracy"] is not None:
        lines.append(f"  agreement with the given labels of the validation examples  {result['val_accuracy']:.2%}")
    labels = result["label_accuracy_all"]
    if labels["given"] is not None:
        lines.append(f"  labels right   {labels['given']:.2%} as given, {labels['current']:.2%} now")
    if result.get("skipped"):
        lines.append(f"  {result['skipped']} broken images left out: {run.folder / 'skipped.csv'}")
    lines.append(f"  {result['seconds']:.1f} s; everything is in {run.folder} (labels.csv: one row an example)")
    if (page := run.folder / "report.html").exists():
        lines.append(f"  to look at: {page}")
    return "\n".join(lines)
