"""``unflip export``: write a run's labels for other tools."""

from pathlib import Path

from unflip.report.export import export
from unflip.training.folder import Run


def run_export(run: Path, form: str, out: Path, prefix: str) -> None:
    """Write the file, and say what is in it."""
    count = export(Run(run), form, out, prefix=prefix)
    print(f"{count} labels as {form}: {out}")  # noqa: T201
