"""report: the HTML report of a run; and a table that compares several runs."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import reduce
from pathlib import Path

from unflip.report.run_report import write_report
from unflip.reproduce.table_text import markdown_table
from unflip.runs.config import flatten
from unflip.runs.folder import as_run
from unflip.runs.layout import check_output

_COMPARED = {
    "data": "{}", "noise": "{}", "method": "{}", "seed": "{}", "selected_epoch": "{}", "protocol": "{}",
    "test_accuracy.selected": "{:.1%}", "test_accuracy.last": "{:.1%}", "val_accuracy": "{:.1%}",
    "label_accuracy_all.given": "{:.1%}", "label_accuracy_all.current": "{:.1%}", "noise_rate_estimate": "{:.1%}",
    "quality_auroc": "{:.3f}", "seconds": "{:.1f}",
}  # fmt: skip
"""What a comparison shows of result.json, and how."""


def report(folder: str | Path, out: Path | None = None, *, data: str | None = None, force: bool = False) -> Path:
    """Write the report of a run, and return its path.

    Args:
        folder: the folder of a finished run.
        out: the page; by default ``report.html`` in the run folder, which is always replaced.
        data: where the run's data is now, if it has moved.
        force: replace an existing page.
    """
    run = as_run(folder)
    if out is not None:
        check_output(out, (".html", ".htm"), force=force)
        return write_report(run, out, data)
    with run.locked() if run.is_finished else nullcontext():
        return write_report(run, data=data)


def compare(folders: Sequence[str | Path]) -> str:
    """Return a Markdown table with a column per finished run: its results, and the options in which runs differ.

    Options of a method or a network are compared among the runs that have them.
    """
    runs = [as_run(folder) for folder in folders]
    rows = [["", *(str(run.folder) for run in runs)]]
    for key, form in _COMPARED.items():
        values = [reduce(lambda part, name: part[name], key.split("."), run.result) for run in runs]
        if any(value is not None for value in values):
            rows.append([key, *("" if value is None else form.format(value) for value in values)])
    options = [flatten(run.config.tree()) for run in runs]
    for key in dict.fromkeys(key for own in options for key in own if key not in _COMPARED):
        texts = [str(own.get(key, "")) for own in options]
        if len({*texts} - (set() if key.startswith("data.") else {""})) > 1:
            rows.append([key, *texts])
    return markdown_table(rows)
