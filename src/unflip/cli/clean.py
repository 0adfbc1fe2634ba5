"""``unflip clean``: say what will be done, do it, and say what people can do with it."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.api.options import CLEAN, COLUMNS, option_name
from unflip.cli.flags import Quiet, takes
from unflip.errors import one_line

if TYPE_CHECKING:
    from unflip.api.clean import CleanResult, Decided

_PAIRS = 5  # pairs of classes that the summary names
_NAME = 40  # characters of a class name that it shows


@takes(CLEAN, epochs="by the number of examples")
def clean(
    data: Annotated[
        str,
        typer.Argument(
            help="Images or texts (one folder per class), a table (.csv, .parquet, .jsonl) of texts, of numbers, "
            "categories and dates, or of path,label of images; or feature arrays (.npz)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run, the list of label issues and the features.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out; its features are kept.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, column by column of a table; write nothing.")
    ] = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Find the labels that look wrong: from images, texts or a table to a list, in one command.

    Says first what it will do. Images are turned into features by a pretrained network, once;
    these are kept in --out for the next call. Columns of a table are taken for what they hold; --dry-run says for what.
    The list is label_issues.csv: which example, its label, what it should be
    instead, and how likely the given label is right. --out is the folder of a run as `unflip train` writes it.
    Example: unflip clean photos --out runs/photos
    """
    from unflip.api.clean import plan_cleaning

    plan = plan_cleaning(data, out, force=force, quiet=quiet, **options)
    if dry_run:
        print("\n".join([plan.line(), *(f"  {line}" for line in plan.details())]))  # noqa: T201
        return
    if not quiet:
        print("\n".join([plan.line(), *(f"  {line}" for line in plan.left_out())]), flush=True)  # noqa: T201
    cleaned = plan.execute()
    if not quiet:
        print(summary(cleaned, _column_flags(options)))  # noqa: T201


def _column_flags(options: Mapping[str, Any]) -> list[str]:
    """Return the flags that say where labels are and what a table's columns are, as they were typed."""
    names = [name for name in ("labels", *map(option_name, COLUMNS)) if options.get(name)]
    values = [(name, options[name] if isinstance(options[name], list | tuple) else [options[name]]) for name in names]
    return [word for name, cells in values for cell in cells for word in (f"--{name.replace('_', '-')}", str(cell))]


def summary(cleaned: "CleanResult", columns: Sequence[str] = ()) -> str:
    """Return what came out, where it is and what to type next; ``columns`` are the options that a table needs."""
    from unflip.api.clean import SURE

    out, found = cleaned.run.folder, len(cleaned.label_issues)
    lines = [f"{found:,} of {cleaned.count:,} labels look wrong ({found / cleaned.count:.1%})"]
    if found:
        lines += _pairs(cleaned)
        lines.append(f"  {cleaned.sure:,} of them have a quality below {SURE:.0%}")
    lines += _expected(cleaned)
    held_out = cleaned.run.result["val_accuracy"]
    if held_out is not None:
        lines.append(f"  the model disagrees with {1 - held_out:.1%} of the labels held out from training")
    elif cleaned.run.result["out_of_sample"] == 1 and not cleaned.unscored:
        lines.append("  every label was judged by networks and statistics that had not learned it")
    if cleaned.unscored:
        one = cleaned.unscored == 1
        cannot = f"{cleaned.unscored:,} label{'' if one else 's'} cannot be judged"
        lines.append(f"  {cannot}: of {'its class' if one else 'their classes'} there are too few different examples")
    if found:
        lines.append(f"  the list, most doubtful first: {out / 'label_issues.csv'}")
    lines += [*_issues(cleaned), *_tests(cleaned.run.result["tests"])]
    if cleaned.skipped:
        lines.append(f"  {len(cleaned.skipped):,} broken images left out: {out / 'skipped.csv'}")
    lines.append(f"  what was done, with pictures: {cleaned.run.report_path}")
    if found:
        review = ["unflip", "review", str(out)]
        decided = str(out / "reviewed.csv")
        again = ["unflip", "clean", cleaned.data, *columns, "--out", f"{out}-2", "--reviewed", decided]
        lines += [
            "next:",
            f"  {shlex.join(review)}    # look at them and decide",
            f"  {shlex.join([*review, '--export', decided])}",
            f"  {shlex.join(again)}    # train again with what you decided",
        ]
    return "\n".join(lines)


def _expected(cleaned: "CleanResult") -> list[str]:
    """Return what people decided, how many labels to expect wrong, and how far down the list most of them are."""
    from unflip.runs.labels import HELD, expect_errors

    said = _decided(cleaned.decided)
    wrong, most, listed = round(cleaned.expected.total), cleaned.expected.most, len(cleaned.label_issues)
    if not wrong:
        return said
    found = f"the first {most:,} of the list hold {HELD:.0%} of them"
    if most > listed:
        share = expect_errors(cleaned.label_issues["label_quality"].to_numpy()).total / cleaned.expected.total
        found = f"the list holds {share:.0%} of them, the review page shows the others after it" if listed else ""
    others = "other " if cleaned.decided.labels else ""
    told = f"  about {wrong:,} {others}label{' is' if wrong == 1 else 's are'} wrong"
    return [*said, told + (f"; {found}" if found else "")]


def _decided(decided: "Decided") -> list[str]:
    """Return what people decided, and what that changed since the run that they looked at."""
    said = []
    if decided.labels:
        about = f"{decided.labels:,} label{'' if decided.labels == 1 else 's'}"
        said.append(f"  people decided about {about} and changed {decided.changed:,}")
    if decided.removed:
        said.append(f"  people removed {decided.removed:,} example{'' if decided.removed == 1 else 's'}")
    if decided.before is not None:
        folder, changed, wrong = decided.before
        others = f"{changed:,} other label{' is' if changed == 1 else 's are'} corrected differently"
        said.append(f"  since {folder}: {others}; about {round(wrong):,} labels were wrong then")
    return said


def _issues(cleaned: "CleanResult") -> list[str]:
    """Return what else was found, and where the list is."""
    flagged = cleaned.issues.filter(cleaned.issues["flag"])
    counts = Counter(flagged["issue"].to_pylist())
    if not counts:
        return []
    found = ", ".join(f"{count:,} {_called(name, count)}" for name, count in counts.items())
    return [f"  also worth a look: {found}: {cleaned.run.folder / 'issues.csv'}"]


def _tests(tests: Mapping[str, Any]) -> list[str]:
    """Return what became of the test examples."""
    said = []
    for name, test in tests.items():
        told = f"  labels of '{name}' were not checked; test accuracy {test['top1']:.1%}"
        if leaked := test.get("leaked"):
            others, them = test["top1_without_leakage"], f"{leaked:,} example{'' if leaked == 1 else 's'} that leaked"
            told += f", {others:.1%} without {them}" if others is not None else f"; all {them}"
        said.append(told)
    return said


def _called(issue: str, count: int) -> str:
    """Return what so many issues are called.

    >>> _called("class_quality", 2), _called("outlier", 1)
    ('weak classes', 'outlier')
    """
    words = {"ambiguous": "ambiguous example"}.get(issue, issue.replace("_", " "))
    return words if count == 1 else f"{words}{'es' if words.endswith('s') else 's'}"


def _pairs(cleaned: "CleanResult") -> list[str]:
    named = len(cleaned.pairs) if len(cleaned.pairs) == _PAIRS + 1 else _PAIRS  # one more takes no more room
    shown = [(f"{_short(given)} -> {_short(suggested)}", count) for given, suggested, count in cleaned.pairs[:named]]
    if rest := cleaned.pairs[named:]:
        shown.append((f"{len(rest)} other pairs", sum(count for _, _, count in rest)))
    width = max(len(pair) for pair, _ in shown)
    return [f"  {pair:<{width}}  {count:>6,}" for pair, count in shown]


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
