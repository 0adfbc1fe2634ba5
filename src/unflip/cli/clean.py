"""``unflip clean``: find label issues, print a summary and the next commands."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.api.options import CLEAN
from unflip.cli.flags import DryRun, Quiet, takes
from unflip.errors import count_of, shorten

if TYPE_CHECKING:
    import pyarrow as pa

    from unflip.runs.folder import Run

_MAX_PAIRS = 3  # pairs of classes in the summary
_MAX_NAME = 40  # characters of a class name


@takes(CLEAN, epochs="depends on the number of examples")
def clean(
    data: Annotated[
        str,
        typer.Argument(
            help="Images or texts (one folder per class), a table (.csv, .parquet, .jsonl), "
            "a table of image paths and labels, or feature arrays (.npz)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run, the lists of issues and the report.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run in --out; keep its image features and review decisions.")
    ] = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Find label issues in images, texts or tables.

    Trains on the data, and writes label_issues.csv (label issues, followed by labels that are worth a look), issues.csv
    (outliers, near-duplicates and more) and report.html. Images are first turned into features, which are saved in
    --out.

    Example: unflip clean photos --out runs/photos
    """
    from unflip.api.clean import plan_cleaning

    plan = plan_cleaning(data, out, force=force, quiet=quiet, **options)
    if dry_run:
        print("\n".join([plan.line(), *(f"  {line}" for line in plan.details())]))  # noqa: T201
        return
    if not quiet:
        print("\n".join([plan.line(), *(f"  {line}" for line in plan.doubtful_columns())]), flush=True)  # noqa: T201
    run = plan.execute()
    if not quiet:
        print(summary(run))  # noqa: T201


def annotators(
    data: Annotated[
        str,
        typer.Argument(
            help="One row per label (.csv, .parquet, .jsonl with the columns id, annotator, label), an export from "
            "Label Studio or Argilla (.json), or a table with --annotator-columns."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run, the table of annotators and the report.")],
    annotator_columns: Annotated[
        list[str] | None, typer.Option(help="The label column of each annotator, such as a,b,c.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out; keep its decisions.")] = False,
) -> None:
    """Estimate the true labels, and how reliable each annotator is, from labels alone.

    If you have images, texts or a table of features, use `unflip clean --annotations`, which also learns from them.

    Example: unflip annotators labels.csv --out runs/crowd
    """
    from unflip.api.annotators import annotators as annotators_task

    result = annotators_task(data, out, annotator_columns=annotator_columns or (), force=force)
    table = result.annotator_table("annotators.csv")
    assert table is not None
    print(result.label_summary)  # noqa: T201
    print(f"Annotators: {out / 'annotators.csv'} ({describe_annotators(table)})")  # noqa: T201
    print(f"  where one more label helps most, and whom to ask: {out / 'ask_next.csv'}")  # noqa: T201
    print(f"Labels: {out / 'labels.csv'}\nReport: {result.report_path}")  # noqa: T201


def summary(run: "Run") -> str:
    """Return the results, where they are, and the next commands, in at most 15 lines."""
    import numpy as np

    from unflip.report.run_report import next_commands
    from unflip.runs.labels import REMOVED, UNLABELED, label_issue_mask, lowest_quality_first, names_of

    out, result, told, table = run.folder, run.result, run.label_summary, run.labels()
    splits = np.array(table["split"].to_pylist())
    table, unlabeled = table.filter(splits != REMOVED), int((splits == UNLABELED).sum())
    lines = [str(told)]
    if told.issues:
        order = lowest_quality_first(table)
        issues = table.take(order[label_issue_mask(table)[order]])
        lines.append(_pairs(*(names_of(issues, name).to_pylist() for name in ("given_label", "suggested_label"))))
    if told.reviewed or result["removed"]:
        corrected = int((table["reviewed"].to_numpy() & table["changed"].to_numpy()).sum())
        reviewed = f"  {count_of(told.reviewed, 'reviewed label')}, {corrected:,} corrected"
        lines.append(reviewed + (f"; {count_of(result['removed'], 'example')} removed" if result["removed"] else ""))
    if since := result["since_last"]:
        new = f"{count_of(since['new'], 'new example')} ({count_of(since['label_issues'], 'label issue')})"
        lines.append(f"  since the last run: {new}, {since['gone']:,} gone")
    if result["val_accuracy"] is not None:
        lines.append(f"  the model disagrees with {1 - result['val_accuracy']:.1%} of the validation labels")
    if unscored := table["label_quality"].null_count - unlabeled:
        lines.append(f"  {count_of(unscored, 'label')} without a score: too few examples of the class")
    if unlabeled:
        lines.append(f"  {count_of(unlabeled, 'example')} without a label, with suggestions: {out / 'unlabeled.csv'}")
    lines += _tests(result["tests"])
    if result["skipped"]:
        lines.append(f"  {count_of(result['skipped'], 'broken image')} skipped: {out / 'skipped.csv'}")
    if (annotators := run.annotator_table("annotators.csv")) is not None:
        lines.append(f"Annotators: {out / 'annotators.csv'} ({describe_annotators(annotators)})")
        lines.append(f"  where one more label helps most, and whom to ask: {out / 'ask_next.csv'}")
    if told.issues or told.doubtful:
        lines.append(f"Label issues: {out / 'label_issues.csv'}")
    commands = next_commands(run)
    width = max(len(command) for command, _ in commands)
    lines += [*_issues(run), f"Report: {run.report_path}", "Next:"]
    return "\n".join([*lines, *(f"  {command:<{width}}  # {what}" for command, what in commands)])


def describe_annotators(table: "pa.Table") -> str:
    """Return how many annotators there are, and what is odd about them."""
    copying = sum(bool(cell) for cell in table["copies"].to_pylist())
    guessing = sum(table["no_better_than_chance"].to_pylist())
    parts = [count_of(len(table), "annotator"), *([f"{guessing:,} no better than chance"] if guessing else [])]
    return ", ".join([*parts, *([f"{copying:,} agree as if one copied the other"] if copying else [])])


def _issues(run: "Run") -> list[str]:
    """Return the number of other issues by kind, and where the list is."""
    counts = {name: count for name, count in run.result["other_issues"].items() if count}
    names = {"ambiguous": "ambiguous example", "leakage": "leaked test example", "class_quality": "low-quality class"}
    names |= {"image_quality": "low-quality image", "column_quality": "low-quality column"}
    names |= {"slice": "poorly labeled slice"}
    kinds = ", ".join(count_of(count, names.get(name, name.replace("_", " "))) for name, count in counts.items())
    return [f"Other issues: {run.folder / 'issues.csv'} ({kinds})"] if counts else []


def _tests(tests: Mapping[str, Any]) -> list[str]:
    """Return the accuracy on the first test set, also without leaked examples."""
    if not tests:
        return []
    name, test = next(iter(tests.items()))
    line = f"  test accuracy {test['top1']:.1%} ('{name}'; its labels are not checked)"
    if leaked := test.get("leaked"):
        clean, what = test["top1_without_leakage"], count_of(leaked, "leaked example")
        line += f", {clean:.1%} without {what}" if clean is not None else f", all {what}"
    return [line]


def _pairs(given: Sequence[Any], suggested: Sequence[Any]) -> str:
    """Return how many label issues the most frequent pairs of given and suggested class have."""
    pairs = Counter(zip(map(str, given), map(str, suggested), strict=True)).most_common()
    names = [[shorten(name, _MAX_NAME) for name in pair] for pair, _ in pairs[:_MAX_PAIRS]]
    shown = [f"{' -> '.join(pair)} ({count:,})" for pair, (_, count) in zip(names, pairs, strict=False)]
    if rest := pairs[_MAX_PAIRS:]:
        shown.append(f"{count_of(len(rest), 'other pair')} ({sum(count for _, count in rest):,})")
    return f"  {', '.join(shown)}"
