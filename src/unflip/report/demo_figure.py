"""The demo's figure: test accuracy by epoch, the quality of right and wrong labels, and the most doubtful ones."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from unflip.data.loaders.digits import training_images, training_labels
from unflip.report.curves_figure import draw_metric
from unflip.report.figure_file import save
from unflip.runs.folder import Run
from unflip.runs.labels import most_doubtful_first

_ROWS, _COLUMNS = 5, 5
_BINS = 20


def draw_demo(path: Path, runs: Mapping[str, Run]) -> None:
    """Draw the learning curves of all runs, and of the last one how it judges labels and which it doubts most."""
    figure = Figure(figsize=(16, 4.8), layout="constrained")
    grid = figure.add_gridspec(1, 3)
    axes = figure.add_subplot(grid[0, 0])
    draw_metric(axes, runs, "test_accuracy")
    axes.set_title("Trained on partly wrong labels, tested on correct ones")
    axes.legend()

    method, run = list(runs.items())[-1]
    table = run.labels()
    quality, given = (table[name].to_numpy() for name in ("quality", "given"))
    right = given == training_labels()[table["index"].to_numpy()]
    axes = figure.add_subplot(grid[0, 1])
    parts, names = [quality[right], quality[~right]], ["label is right", "label is wrong"]
    axes.hist(parts, bins=_BINS, range=(0, 1), stacked=True, label=names)
    axes.set_title(f"How likely {method} finds each given label, out of sample")
    axes.set_xlabel("quality")
    axes.set_ylabel("labels")
    axes.legend()

    table = table.take(most_doubtful_first(table)[: _ROWS * _COLUMNS])
    panel = figure.add_subfigure(grid[0, 2])
    panel.suptitle(f"Labels that {method} doubts most: given → corrected")
    images = training_images()
    for axes, row in zip(panel.subplots(_ROWS, _COLUMNS).flat, table.to_pylist(), strict=True):
        axes.imshow(images[row["index"]], cmap="gray_r")
        axes.set_title(f"{row['given_name']} → {row['current_name']}", fontsize=9)
        axes.axis("off")
    save(figure, path)
