"""report: the HTML report of a run, or a comparison of several."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from unflip.engine.distributed import is_first_process
from unflip.errors import ConfigError, UnflipWarning, described
from unflip.report.comparison import write_comparison
from unflip.report.run_report import write_report
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.layout import check_output

_COMPARISON = Path("comparison.html")


def report(
    folders: Sequence[str | Path], out: Path | None = None, *, data: str | None = None, force: bool = False
) -> Path:
    """Write the report of one run, or a comparison of several.

    Args:
        folders: folders of finished runs.
        out: the page; by default ``report.html`` in the run folder, or ``comparison.html`` in the working directory.
        data: where the run's data is now, if it has moved.
        force: replace an existing page; ``report.html`` in the run folder is always replaced.

    Returns:
        The path of the page.
    """
    runs = [Run(Path(folder)) for folder in folders]
    if data is not None and len(runs) > 1:
        raise ConfigError("--data is for the report of a single run")
    if len(runs) > 1:
        out = out or _COMPARISON
    if out is not None:
        check_output(out, (".html", ".htm"), force=force)
    return write_report(runs[0], out, data) if len(runs) == 1 else write_comparison(runs, out or _COMPARISON)


def report_finished(run: Run) -> None:
    """Write the report of a run that just finished; an error becomes a warning, since the run itself is complete."""
    if not is_first_process() or _is_fresh(run):
        return
    try:
        write_report(run)
    except Exception as error:
        message = f"the report could not be written ({described(error)}); try again: unflip report {run.folder}"
        warnings.warn(message, UnflipWarning, stacklevel=3)


def _is_fresh(run: Run) -> bool:
    """Whether the report is newer than the result: resuming a finished run does nothing."""
    page, result = run.report_path, run.folder / layout.RESULT
    return page.exists() and page.stat().st_mtime_ns >= result.stat().st_mtime_ns
