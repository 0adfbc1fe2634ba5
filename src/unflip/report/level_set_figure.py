"""The growth of the pure level set against the bound of Lemma 1."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from unflip.report.figure_file import COLOURS, save
from unflip.reproduce.level_sets import Round


def draw_level_sets(path: Path, rounds: Sequence[Round]) -> None:
    """Draw the size and the growth of the pure level set by round, each with the lower bound of Lemma 1."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    numbers = range(1, len(rounds) + 1)
    left.plot(numbers, [r.pure for r in rounds], color=COLOURS[0], marker="o", ms=3, label="f correct, measured")
    left.plot(numbers, [r.pure_labels for r in rounds], color=COLOURS[2], ls="--", label="labels correct, measured")

    follows: dict[int, tuple[float, float]] = {}
    printed: dict[int, tuple[float, float]] = {}
    for number, r in enumerate(rounds[:-1], 1):
        promised = r.constants.promised(r.start)
        if promised is not None:
            (follows if r.constants.follows(r.start) else printed)[number + 1] = (promised, promised / r.start)
    for points, marker, label in ((follows, "_", "from its proof"), (printed, ".", "as printed")):
        for axes, column in ((left, 0), (right, 1)):
            axes.plot(list(points), [point[column] for point in points.values()], marker, color=COLOURS[1], ms=5,
                      mew=1.6, label=f"lower bound of Lemma 1, {label}" if points else None)  # fmt: skip
    growth = [after.pure / before.start for before, after in pairwise(rounds)]
    right.plot(numbers[1:], growth, color=COLOURS[0], marker="o", ms=3, label="measured")
    left.axhline(0.5, color="grey", lw=0.8)
    left.text(1, 0.493, "everything", color="grey", fontsize="small", va="top")
    left.set(xlabel="round", ylabel=r"size of the pure level set, $\frac{1}{2} - \tau$", ylim=(0, 0.53))
    left.set_title("Where the classifier gives the Bayes label")
    right.set(xlabel="round", ylabel=r"growth, $(\frac{1}{2} - \tau_{new}) / (\frac{1}{2} - \tau)$")
    right.set_title("Growth per round")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    save(figure, path)
