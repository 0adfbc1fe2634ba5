"""report: the HTML report of a run, or a comparison of several."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from unflip.errors import ConfigError
from unflip.report.comparison import write_comparison
from unflip.report.run_report import write_report
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
    page = out or (_COMPARISON if len(runs) > 1 else runs[0].report_path)
    if out is not None or len(runs) > 1:
        check_output(page, (".html", ".htm"), force=force)
    if len(runs) > 1:
        return write_comparison(runs, page)
    if out is not None:
        return write_report(runs[0], out, data)
    with runs[0].locked() if runs[0].is_finished else nullcontext():
        return write_report(runs[0], data=data)
