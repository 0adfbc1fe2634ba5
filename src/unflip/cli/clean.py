"""``unflip clean``: say what will be done, do it, and say what people can do with it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unflip.cli.flags import takes
from unflip.errors import one_line
from unflip.tasks.options import CleanOptions

if TYPE_CHECKING:
    from unflip.tasks.clean import CleanResult

_PAIRS = 5  # pairs of classes that the summary names
_NAME = 40  # characters of a class name that it shows


@takes(CleanOptions)
def clean(
    data: Annotated[
        str,
        typer.Argument(
            help="Images (one folder per class, or a .csv or .parquet table of path,label), a .csv or .parquet table "
            "of numbers, or feature arrays (.npz)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run, the list of suspects and the features.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out; its features are kept.")] = False,
    quiet: bool = False,
    **options: Any,
) -> None:
    """Find the labels that look wrong: from a folder of images or a table to a list, in one command.

    Says first what it will do and how long that takes. Images are turned into features by a pretrained network, once;
    these are kept in --out for the next call. The list is suspects.csv: which example, its label, what it should be
    instead, and how likely the given label is right. --out is the folder of a run as `unflip train` writes it.
    Example: unflip clean photos --out runs/photos
    """
    from unflip.tasks.clean import plan_cleaning

    plan = plan_cleaning(data, out, force=force, quiet=quiet, **options)
    if not quiet:
        print(plan.line(), flush=True)  # noqa: T201
    cleaned = plan.execute()
    if not quiet:
        columns = ["--label-column", options["label_column"]] if "label_column" in options else []
        columns += [word for name in options.get("ignore", ()) for word in ("--ignore", name)]
        print(summary(cleaned, columns))  # noqa: T201


def summary(cleaned: "CleanResult", columns: Sequence[str] = ()) -> str:
    """Return what came out, where it is and what to type next; ``columns`` are the options that a table needs."""
    from unflip.tasks.clean import SURE

    out, found = cleaned.run.folder, len(cleaned.suspects)
    lines = [f"{found:,} of {cleaned.count:,} labels look wrong ({found / cleaned.count:.1%})"]
    if found:
        lines += _pairs(cleaned)
        lines.append(f"  {cleaned.sure:,} of them have a quality below {SURE:.0%}")
    held_out = cleaned.run.result["val_accuracy"]
    if held_out is not None:
        lines.append(f"  the model disagrees with {1 - held_out:.1%} of the labels held out from training")
    elif cleaned.run.result["judged_out_of_sample"] == 1:
        lines.append("  every label was judged by networks and statistics that had not learnt it")
    if found:
        lines.append(f"  the list, most doubtful first: {out / 'suspects.csv'}")
    if cleaned.duplicates:
        lines.append(
            f"  the same {'picture' if cleaned.of_images else 'row'} under different labels: "
            f"{len(cleaned.duplicates):,} times: {out / 'duplicates.csv'}"
        )
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


def _pairs(cleaned: "CleanResult") -> list[str]:
    shown = [(f"{_short(given)} -> {_short(suggested)}", count) for given, suggested, count in cleaned.pairs[:_PAIRS]]
    if rest := cleaned.pairs[_PAIRS:]:
        shown.append((f"{len(rest)} other pairs", sum(count for _, _, count in rest)))
    width = max(len(pair) for pair, _ in shown)
    return [f"  {pair:<{width}}  {count:>6,}" for pair, count in shown]


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
