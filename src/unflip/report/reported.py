"""train, followed by the report: what a person calls; grids of runs call the plain one."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from unflip.errors import UnflipWarning
from unflip.report.run_report import write_report
from unflip.training.folder import Run
from unflip.training.processes import is_first_process
from unflip.training.train import train as _train

_Parameters = ParamSpec("_Parameters")


def report(run: Run) -> None:
    """Write the report of a finished run; whatever goes wrong is a warning, for nothing of the run may be lost."""
    if not is_first_process() or _is_fresh(run):
        return
    try:
        write_report(run)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(
            f"the run is finished, but not its report ({why}); to try again: unflip report {run.folder}",
            UnflipWarning,
            stacklevel=3,
        )


def _is_fresh(run: Run) -> bool:
    """Whether a report was written since the run finished: a finished one that is resumed does nothing."""
    page, result = run.folder / "report.html", run.folder / "result.json"
    return page.exists() and page.stat().st_mtime_ns >= result.stat().st_mtime_ns


def _reported(train: Callable[_Parameters, Run]) -> Callable[_Parameters, Run]:
    @wraps(train)
    def train_and_report(*args: _Parameters.args, **options: _Parameters.kwargs) -> Run:
        run = train(*args, **options)
        report(run)
        return run

    return train_and_report


train = _reported(_train)
