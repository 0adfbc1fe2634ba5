"""Result: a finished run as Python code and notebooks see it, and how a run is opened; Scores without a run."""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from unflip.api.apply import Applied, apply, labels_for
from unflip.api.report import report
from unflip.api.review import review
from unflip.data.arrays import Array
from unflip.data.memory import InMemory, as_frame, new_labels
from unflip.data.rewrite import NewLabels
from unflip.report.page import written_quality
from unflip.report.run_report import Views, open_views
from unflip.review.review import finished_run
from unflip.runs import layout
from unflip.runs.folder import Run
from unflip.runs.labels import LabelSummary, list_issues, list_unlabeled, rank_labels

_SHOWN = 10  # issues that a notebook shows


@dataclass(frozen=True)
class Result(Run):
    """A finished run.

    Attributes:
        folder: the run folder.
        memory: the data, if it was passed in memory.
    """

    memory: InMemory | None = field(default=None, repr=False, compare=False)

    @property
    def issues(self) -> Any:
        """All issues: label issues, lowest quality first, followed by the issues that checks found.

        The columns are ``index``, ``path`` or ``id``, ``issue`` (``label_issue``, ``outlier``, ...), ``given_label``,
        ``suggested_label``, ``label_quality``, ``score`` and ``reason``. If the data was passed as a data frame, this
        is a data frame of the same kind. Otherwise, it is a pandas data frame, or an Arrow table if pandas is missing.
        """
        return as_frame(list_issues(self._own_labels(), self.other_issues()), self.memory)

    @property
    def ranked(self) -> Any:
        """All labels, lowest quality first, as a data frame of the same kind as `issues`.

        The columns are ``index``, ``given_label``, ``suggested_label``, ``label_quality``, ``is_label_issue`` and
        ``wrong_so_far``, the expected number of wrong labels up to and including this row.
        """
        return as_frame(rank_labels(self._own_labels()), self.memory)

    @property
    def unlabeled(self) -> Any:
        """The examples without a label, with the suggested label and its probability, as a data frame."""
        return as_frame(list_unlabeled(self.labels(), "id", {}), self.memory)

    @property
    def annotators(self) -> Any:
        """One row per annotator, the least accurate first, as a data frame; None if there is one label per example."""
        table = self.annotator_table(layout.ANNOTATORS)
        return None if table is None else as_frame(table, self.memory)

    @property
    def ask_next(self) -> Any:
        """The examples for which one more label would help most, and whom to ask; None without annotators."""
        table = self.annotator_table(layout.ASK_NEXT)
        return None if table is None else as_frame(table, self.memory)

    def _own_labels(self) -> pa.Table:
        """Return the label table, with the original class names where labels were separate from the data."""
        table, memory = self.labels(), self.memory
        if memory is None or memory.labels is None:
            return table
        given, keep = table["given_label"].to_numpy(), np.ones(len(table), bool)
        for name in ("given_label", "suggested_label"):
            own = new_labels(memory, NewLabels(given, table[name].to_numpy(), keep), self.class_names)
            table = table.drop_columns([f"{name}_name"] if f"{name}_name" in table.column_names else [])
            table = table.append_column(f"{name}_name", pa.array(own))
        return table

    def summary(self) -> str:
        """Return how many labels are wrong, which other issues were found, and the run folder, as text."""
        lines = [f"{self.result['data']}: {self.label_summary}" if self.memory is None else str(self.label_summary)]
        others = self.result["other_issues"] or {}
        lines += [f"  {name.replace('_', ' ')}: {count:,}" for name, count in others.items() if count]
        return "\n".join([*lines, f"Run: {self.folder}"])

    def review(self, *, data: str | Path | None = None, port: int = 0, browser: bool = True) -> int:
        """Serve the review page until you stop it, and return the number of reviewed examples.

        To stop it, press Ctrl-C, or use the stop button of the notebook.

        Args:
            data: the current location of the data, if it has moved.
            port: the port to listen on; 0 picks a free one.
            browser: open the page in a browser.
        """

        def on_ready(address: str) -> None:
            print(f"review: {address} (stop with Ctrl-C; decisions are saved as you make them)", flush=True)  # noqa: T201
            if browser:
                import webbrowser

                webbrowser.open(address)

        return review(self.folder, data=None if data is None else str(data), port=port, on_ready=on_ready)

    def apply(self, out: str | Path | None = None, *, data: Any = None, **options: Any) -> Applied:
        """Write a corrected copy of the data, or return it if the data is in memory; see `unflip.apply`."""
        return apply(self, out, data=self.memory if data is None and self.memory is not None else data, **options)

    def labels_for(self, dataset: Any, *, label_column: str | None = None, **options: Any) -> Array:
        """Return corrected labels in the order and with the class numbers of a data set.

        Args:
            dataset: a PyTorch data set with ``samples`` or ``targets``, such as those of torchvision; a
                ``TensorDataset``; a ``Subset`` of either; a Hugging Face data set; a data frame or an Arrow table; or a
                pair of examples and labels.
            label_column: the label column of a data frame or Hugging Face data set; by default that of the run.
            options: which labels are corrected; see ``unflip.api.options.ApplyOptions``.

        Returns:
            The labels (n,), as the class numbers or names of the data set. Examples to drop have the label -1, or None.
        """
        return labels_for(self, dataset, label_column=label_column, **options)

    def report(self, path: str | Path | None = None, *, force: bool = False) -> Path:
        """Write the HTML report, by default to ``report.html`` in the run folder, and return its path."""
        return report(self.folder, None if path is None else Path(path), force=force)

    def _repr_html_(self) -> str:
        return _as_html(self.summary(), list_issues(self._own_labels(), self.other_issues()), open_views(self, None))


@dataclass(frozen=True)
class Scores:
    """Labels scored with the probabilities of your own model, without a run or data.

    Attributes:
        table: one row per label, in order; see ``unflip.runs.labels.label_table``.
        label_summary: how many labels are wrong, and how many are worth a look.
        memory: the probabilities.
    """

    table: pa.Table = field(repr=False)
    label_summary: LabelSummary
    memory: InMemory = field(repr=False, compare=False)

    @property
    def issues(self) -> Any:
        """The label issues; see `Result.issues`."""
        return as_frame(list_issues(self.table, None), self.memory)

    @property
    def ranked(self) -> Any:
        """All labels, lowest quality first; see `Result.ranked`."""
        return as_frame(rank_labels(self.table), self.memory)

    def summary(self) -> str:
        """Return how many labels are wrong, as text."""
        return str(self.label_summary)

    def _repr_html_(self) -> str:
        return _as_html(self.summary(), list_issues(self.table, None), None)


def _as_html(summary: str, table: pa.Table, views: Views | None) -> str:
    """Return a summary and the first issues as HTML, with their images or texts."""
    shown = table.slice(0, _SHOWN)
    names = [name for name in shown.column_names if name != "index"]
    rows = []
    for row in shown.to_pylist():
        view = ""
        if views is not None and row["index"] is not None:
            picture = views.picture(row["index"])
            text, columns = views.row(row["index"])
            words = text or ", ".join(f"{name}: {value}" for name, value in columns)
            view = f'<img src="{picture}" height="64" alt="">' if picture else escape(words)
        cells = "".join(f"<td>{escape(_cell(name, row[name]))}</td>" for name in names)
        rows.append(f"<tr><td>{view}</td>{cells}</tr>")
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in ("", *names))
    more = f"<p>{len(table) - len(shown):,} more: <code>.issues</code></p>" if len(table) > len(shown) else ""
    return f"<pre>{escape(summary)}</pre><table><tr>{head}</tr>{''.join(rows)}</table>{more}"


def _cell(name: str, value: Any) -> str:
    if name == "label_quality" and value is not None:
        return written_quality(value)
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def load(folder: str | Path) -> Result:
    """Open a finished run.

    >>> load("nowhere")
    Traceback (most recent call last):
        ...
    unflip.errors.RunFolderError: nowhere: not a finished run (no result.json)
    """
    return Result(finished_run(Path(folder)).folder)
