"""``unflip clean``: say what will be done, do it, and say what people can do with it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unflip.errors import one_line
from unflip.report.reported import report
from unflip.training.clean import SURE, Cleaned, prepare_cleaning

_PAIRS = 5  # pairs of classes that the summary names
_NAME = 40  # characters of a class that it shows


def run_clean(
    data: str, out: Path, *, label_column: str | None, ignore: Sequence[str], quiet: bool, **options: Any
) -> None:
    """Plan, run and summarise."""
    cleaning = prepare_cleaning(data, out, label_column=label_column, ignore=ignore, quiet=quiet, **options)
    if not quiet:
        print(cleaning.line(), flush=True)  # noqa: T201
    cleaned = cleaning.execute(quiet=quiet)
    report(cleaned.run)
    if not quiet:
        columns = [*([] if label_column is None else ["--label-column", label_column])]
        columns += [word for name in ignore for word in ("--ignore", name)]
        print(summary(cleaned, columns))  # noqa: T201


def summary(cleaned: Cleaned, columns: Sequence[str] = ()) -> str:
    """Return what came out, where it is and what to type next; ``columns`` are the options that a table needs."""
    out, found = cleaned.run.folder, len(cleaned.suspects)
    lines = [f"{found:,} of {cleaned.count:,} labels look wrong ({found / cleaned.count:.1%})"]
    if found:
        lines += _pairs(cleaned)
        lines.append(f"  for {cleaned.sure:,} of them less than {SURE:.0%} speaks for the given label")
    held_out = cleaned.run.result["val_accuracy"]
    if held_out is not None:
        lines.append(f"  of labels that it did not learn from, the model disagrees with {1 - held_out:.1%}")
    if found:
        lines.append(f"  the list, most doubtful first: {out / 'suspects.csv'}")
    if cleaned.duplicates:
        lines.append(
            f"  the same {'picture' if cleaned.of_images else 'row'} under different labels: "
            f"{len(cleaned.duplicates):,} times: {out / 'duplicates.csv'}"
        )
    if cleaned.skipped:
        lines.append(f"  {len(cleaned.skipped):,} broken images left out: {out / 'skipped.csv'}")
    lines.append(f"  what was done, with pictures: {out / 'report.html'}")
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


def _pairs(cleaned: Cleaned) -> list[str]:
    shown = [(f"{_short(given)} -> {_short(suggested)}", count) for given, suggested, count in cleaned.pairs[:_PAIRS]]
    if rest := cleaned.pairs[_PAIRS:]:
        shown.append((f"{len(rest)} other pairs", sum(count for _, _, count in rest)))
    width = max(len(pair) for pair, _ in shown)
    return [f"  {pair:<{width}}  {count:>6,}" for pair, count in shown]


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
