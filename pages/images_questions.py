"""What the comparison from pixels leaves open, one option changed at a time; fills docs/results/images.md.

    python pages/images_questions.py --sweep SWEEP   # take over what `unflip paper sweep images/questions` has finished
    python pages/images_questions.py                 # the table, from docs/results/images-{questions,scratch}.jsonl

The other side of a question that changes an option is the run of images/cifar10, in the file of images_scratch.py.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marked
from images_results import PAGE, Line, percent, read, results_of, table, take_over

QUESTIONS, SCRATCH = results_of("questions"), results_of("scratch")
GRID = "images/questions"
USUAL = {"plc.warmup": 14, "calibration.head_lr": 0.05}
"""The values of images/cifar10."""


def questions_table(lines: Sequence[Line], usual: Sequence[Line]) -> str:
    """Return a row for each run, after that of images/cifar10 with the usual value where there is one."""
    head = ["noise", "method", "option", "last epoch", "selected epoch", "labels right", "AUROC"]
    rows: list[list[str]] = []
    for line in lines:
        axes = line["axes"]
        option = next((axis for axis in axes if axis in USUAL), None)
        if option is not None:
            same = {key: value for key, value in axes.items() if key != option}
            (before,) = (one for one in usual if one["axes"] == same)
            if (row := _row(before, _set(option, USUAL[option]))) not in rows:
                rows.append(row)
        rows.append(_row(line, _set(option, axes[option]) if option else ""))
    return table(head, rows)


def _set(option: str, value: Any) -> str:
    return f"`{option} = {json.dumps(value)}`"


def _row(line: Line, option: str) -> list[str]:
    return [
        line["axes"]["noise"],
        f"`{line['axes']['method']}`",
        option,
        *(percent(line["test_accuracy"][key]) for key in ("last", "selected")),
        f"{percent(line['label_accuracy']['current'])} (given: {percent(line['label_accuracy']['given'])})",
        f"{line['quality_auroc']:.3f}",
    ]


def fill(page: str, lines: Sequence[Line], usual: Sequence[Line]) -> str:
    """Return the page with its table as the result files say it."""
    return marked.fill(page, "images questions", lambda _: questions_table(lines, usual))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path)
    sweep = parser.parse_args().sweep
    if sweep is not None:
        take_over(sweep, GRID, QUESTIONS)
    PAGE.write_text(fill(PAGE.read_text("utf-8"), read(QUESTIONS), read(SCRATCH)), "utf-8")


if __name__ == "__main__":
    main()
