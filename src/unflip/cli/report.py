"""``unflip report``: a page about a run, or one that compares several."""

from collections.abc import Sequence
from pathlib import Path

from unflip.errors import ConfigError, RunFolderError
from unflip.report.comparison import write_comparison
from unflip.report.run_report import write_report
from unflip.training.folder import Run


def run_report(folders: Sequence[Path], out: Path | None, data: str | None) -> None:
    """Write the page and say where it is."""
    if out is not None and not out.absolute().parent.is_dir():
        raise RunFolderError(f"--out {out}: there is no folder {out.parent}; make it first")
    if out is not None and (out.suffix.lower() not in (".html", ".htm") or out.is_dir()):
        raise ConfigError(f"--out {out}: a report is an .html file")
    if data is not None and len(folders) > 1:
        raise ConfigError("--data is for the report of one run; a comparison shows no pictures")
    runs = [Run(folder) for folder in folders]
    written = (
        write_report(runs[0], out, data) if len(runs) == 1 else write_comparison(runs, out or Path("comparison.html"))
    )
    print(f"written: {written}")  # noqa: T201
