"""The demo's figure: test accuracy of each method by epoch, and the most doubtful labels."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from unflip.data.loaders.digits import training_images
from unflip.report.curves_figure import draw_metric
from unflip.report.figure_file import save
from unflip.runs.folder import Run

_ROWS, _COLUMNS = 4, 6


def draw_demo(path: Path, runs: Mapping[str, Run]) -> None:
    """Draw the learning curves of all runs, and the most doubtful digits of the last run."""
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    grid = figure.add_gridspec(1, 2)
    axes = figure.add_subplot(grid[0, 0])
    draw_metric(axes, runs, "test_accuracy")
    axes.set_title("Trained on partly wrong labels, tested on correct ones")
    axes.legend()

    method, run = list(runs.items())[-1]
    table = run.labels().sort_by("quality").slice(0, _ROWS * _COLUMNS)
    panel = figure.add_subfigure(grid[0, 1])
    panel.suptitle(f"Labels that {method} doubts most: given → corrected")
    images = training_images()
    for axes, row in zip(panel.subplots(_ROWS, _COLUMNS).flat, table.to_pylist(), strict=True):
        axes.imshow(images[row["index"]], cmap="gray_r")
        axes.set_title(f"{row['given_name']} → {row['current_name']}", fontsize=9)
        axes.axis("off")
    save(figure, path)
