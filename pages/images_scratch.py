"""Methods on CIFAR-10 learnt from pixels, where `standard` learns wrong labels by heart; fills docs/images.md.

    python pages/images_scratch.py                 # the tables, from docs/results/images-{regime,scratch}.jsonl
    python pages/images_scratch.py --sweep SWEEP   # first take over what `unflip sweep images/cifar10` has finished

Lines of the result file are those of the sweep, with the curves of every epoch.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "images.md"
REGIME, SCRATCH = (ROOT / "docs" / "results" / f"images-{name}.jsonl" for name in ("regime", "scratch"))
GRID = "images/cifar10"
EPOCHS = (5, 10, 12, 13, 14, 16, 18, 20, 25, 30)
CURVES = {"test": "test_accuracy", "noisy_val": "val_accuracy", "labels": "label_accuracy"}
KEPT = ("axes", "cell", "test_accuracy", "label_accuracy", "quality_auroc", "seconds")
Line = dict[str, Any]


def collect(sweep: Path) -> Iterator[Line]:
    """Yield a line for each finished cell of the grid, with its curves."""
    for line in read(sweep / "results.jsonl"):
        if line["grid"] == GRID:
            metrics = read(sweep / "cells" / line["cell"] / "metrics.jsonl")
            curves = {name: [round(epoch[key], 4) for epoch in metrics] for name, key in CURVES.items()}
            yield {key: line[key] for key in KEPT} | {"curves": curves}


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def regime_table(lines: Sequence[Line]) -> str:
    """Return what was tried with `standard` alone: best and last epoch on clean labels of held-out images."""
    rows = []
    for line in lines:
        curve = line["clean_val"]
        best = max(range(len(curve)), key=curve.__getitem__)
        ended = f"{len(curve)} of {line['settings']['epochs']}"
        gap = percent(curve[best] - curve[-1])
        rows.append([line["setup"], ended, f"{percent(curve[best])} ({best + 1})", percent(curve[-1]), gap])
    return table(["set-up", "epochs run", "best (epoch)", "last", "best - last"], rows)


def method_tables(lines: Sequence[Line]) -> str:
    """Return a table of results and one of curves for each noise."""
    parts = []
    for noise in dict.fromkeys(line["axes"]["noise"] for line in lines):
        own = [line for line in lines if line["axes"]["noise"] == noise]
        rows = [
            [
                f"`{line['axes']['method']}`",
                *(percent(line["test_accuracy"][key]) for key in ("last", "selected", "best")),
                percent(line["label_accuracy"]["current"]),
                "—" if line["quality_auroc"] is None else f"{line['quality_auroc']:.3f}",
                f"{line['seconds'] / 60:.0f}",
            ]
            for line in own
        ]
        given = percent(own[0]["label_accuracy"]["given"])
        head = [
            "method",
            "last epoch",
            "selected epoch",
            "best epoch",
            f"labels right (given: {given})",
            "AUROC",
            "min",
        ]
        curves = [
            [f"`{line['axes']['method']}`", *(f"{100 * line['curves']['test'][epoch - 1]:.1f}" for epoch in EPOCHS)]
            for line in own
        ]
        parts += [f"**{noise}**", table(head, rows), "Test accuracy by epoch:"]
        parts += [table(["epoch", *map(str, EPOCHS)], curves)]
    return "\n\n".join(parts)


def fill(page: str, regime: Sequence[Line], scratch: Sequence[Line]) -> str:
    """Return the page with its tables as the result files say them."""
    for name, text in (("regime", regime_table(regime)), ("methods", method_tables(scratch))):
        start, begin, rest = page.partition(f"<!-- images {name} -->\n")
        page = f"{start}{begin}\n{text}\n\n<!-- end -->" + rest.partition("<!-- end -->")[2]
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path)
    sweep = parser.parse_args().sweep
    if sweep is not None:
        SCRATCH.write_text("".join(json.dumps(line) + "\n" for line in collect(sweep)), "utf-8")
    PAGE.write_text(fill(PAGE.read_text("utf-8"), read(REGIME), read(SCRATCH)), "utf-8")


if __name__ == "__main__":
    main()
