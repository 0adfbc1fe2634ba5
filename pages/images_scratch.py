"""Methods on CIFAR learned from pixels, where `standard` memorizes wrong labels; fills docs/results/images.md.

    python pages/images_scratch.py                 # tables and curves, from docs/results/images-*.jsonl
    python pages/images_scratch.py --sweep SWEEP   # first take over what `unflip paper sweep images/GRID` finished

Lines of the result file are those of the sweep, with the curves of every epoch. All methods ran with seed 0, which is
what the tables and the picture show; a table of its own has the methods that ran with more seeds.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import marked
from images_results import PAGE, ROOT, Line, percent, read, results_of, table, take_over

REGIME, SCRATCH = results_of("regime"), results_of("scratch")
PICTURE = ROOT / "docs" / "images" / "cifar10-curves.png"
GRIDS = {"scratch": "images/cifar10", "shifts": "images/shifts", "cifar100": "images/cifar100"}
"""The grids by the names of their result files."""
FIRST, WARMUP = 8, 14  # epochs: where the picture begins, and the end of the warm-up in the grid
EPOCHS = (5, 10, 12, 13, 14, 16, 18, 20, 25, 30)
COLORS = {
    "standard": "#222222",
    "gce": "#9aa0a6",
    "sl": "#b58900",
    "lrt": "#7b5ea7",
    "plc": "#1f77b4",
    "mddc": "#d62728",
    "cddc": "#ff8c42",
    "dividemix": "#2a9d5c",
    "elr+": "#8c564b",
    "unflip": "#e377c2",
}


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


def by_method(lines: Sequence[Line]) -> dict[str, dict[str, Line]]:
    """Return the lines of seed 0 by noise and method."""
    found: dict[str, dict[str, Line]] = {}
    for line in lines:
        if line["axes"]["seed"] == 0:
            found.setdefault(line["axes"]["noise"], {})[line["axes"]["method"]] = line
    return found


def method_tables(lines: Sequence[Line]) -> str:
    """Return a table of results and one of curves for each noise."""
    parts = []
    for noise, methods in by_method(lines).items():
        given = percent(next(iter(methods.values()))["label_accuracy"]["given"])
        head = ["method", "last epoch", "selected epoch", "best epoch", f"labels right (given: {given})"]
        rows = [
            [
                f"`{method}`",
                *(percent(line["test_accuracy"][key]) for key in ("last", "selected", "best")),
                percent(line["label_accuracy"]["current"]),
                f"{line['quality_auroc']:.3f}",
                f"{line['seconds'] / 60:.0f}",
            ]
            for method, line in methods.items()
        ]
        last = len(next(iter(methods.values()))["curves"]["test"])
        epochs = sorted({*EPOCHS, last})
        curves = [
            [f"`{method}`", *(f"{100 * line['curves']['test'][epoch - 1]:.1f}" for epoch in epochs)]
            for method, line in methods.items()
        ]
        parts += [f"**{noise}**", table([*head, "AUROC", "min"], rows), "Test accuracy by epoch:"]
        parts += [table(["epoch", *map(str, epochs)], curves)]
    return "\n\n".join(parts)


def seeds_table(lines: Sequence[Line]) -> str:
    """Return the figures of each seed, seed 0 first, where more than one ran."""
    runs: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        runs.setdefault((line["axes"]["noise"], line["axes"]["method"]), []).append(line)
    rows = [
        [
            noise,
            f"`{method}`",
            *(
                " / ".join(percent(line[figure][which]) for line in own)
                for figure, which in (
                    ("test_accuracy", "last"),
                    ("test_accuracy", "selected"),
                    ("label_accuracy", "current"),
                )
            ),
            " / ".join(f"{line['quality_auroc']:.3f}" for line in own),
        ]
        for (noise, method), own in runs.items()
        if len(own) > 1
    ]
    return table(["noise", "method", "last epoch", "selected epoch", "labels right", "AUROC"], rows)


def digest(lines: Sequence[Line]) -> str:
    """Return a hash of what the picture shows; the picture carries it."""
    shown = [[line["axes"], line["curves"]["test"]] for line in lines if line["axes"]["seed"] == 0]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def draw(lines: Sequence[Line], picture: Path) -> None:
    """Draw test accuracy by epoch from FIRST on, one panel for each noise."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    noises = by_method(lines)
    size = (max(7.0, 4.6 * len(noises)), 5.0)
    figure, panels = plt.subplots(1, len(noises), figsize=size, squeeze=False, layout="constrained", facecolor="white")
    entries = {}
    for panel, (noise, methods) in zip(panels[0], noises.items(), strict=True):
        for method, line in methods.items():
            curve = [100 * value for value in line["curves"]["test"]][FIRST - 1 :]
            wide = 2.6 if method == "standard" else 1.6
            epochs = range(FIRST, FIRST + len(curve))
            (entries[method],) = panel.plot(epochs, curve, color=COLORS[method], linewidth=wide)
        panel.axvline(WARMUP, color="#999999", linewidth=1, linestyle=":", zorder=0)
        panel.set(title=noise, xlabel="epoch", xlim=(FIRST, 30), xticks=(10, WARMUP, 20, 25, 30))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("test accuracy, %")
    figure.suptitle(f"CIFAR-10 from pixels, 10,000 images; labels are corrected from epoch {WARMUP} on", fontsize=11)
    shown = sorted(entries, key=list(COLORS).index)
    columns = len(shown) if len(noises) > 1 else (len(shown) + 1) // 2
    figure.legend(
        [entries[method] for method in shown], shown, loc="outside lower center", ncols=columns, frameon=False
    )
    figure.savefig(picture, dpi=110, metadata={"Description": digest(lines)})
    plt.close(figure)


def fill(page: str, regime: Sequence[Line], scratch: Sequence[Line]) -> str:
    """Return the page with its tables as the result files say them."""
    page = marked.fill(page, "images regime", lambda _: regime_table(regime))
    page = marked.fill(page, "images methods", lambda name: method_tables(read(results_of(name)) if name else scratch))
    return marked.fill(page, "images seeds", lambda _: seeds_table(scratch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path)
    sweep = parser.parse_args().sweep
    for name, grid in GRIDS.items() if sweep is not None else ():
        take_over(sweep, grid, results_of(name))
    PAGE.write_text(fill(PAGE.read_text("utf-8"), read(REGIME), read(SCRATCH)), "utf-8")
    draw(read(SCRATCH), PICTURE)


if __name__ == "__main__":
    main()
