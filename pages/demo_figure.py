"""Draw the runs of `unflip demo`: learning curves, label quality, and the digits of lowest quality.

unflip demo --out demo && python pages/demo_figure.py demo docs/images/demo.png
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from curves_figure import draw_metric
from drawing import save
from unflip.api.demo import METHODS
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.runs.folder import Run
from unflip.runs.labels import lowest_quality_first

_ROWS, _COLUMNS = 5, 5
_BINS = 20


def draw_demo(path: Path, runs: Mapping[str, Run]) -> None:
    """Draw the learning curves of all runs, and the label quality and top label issues of the last one."""
    figure = Figure(figsize=(16, 4.8), layout="constrained")
    grid = figure.add_gridspec(1, 3)
    axes = figure.add_subplot(grid[0, 0])
    draw_metric(axes, runs, "test_accuracy")
    axes.set_title("Trained on noisy labels, tested on clean ones")
    axes.grid(alpha=0.3)
    axes.legend()

    method, run = list(runs.items())[-1]
    table = run.labels()
    quality, given = (table[name].to_numpy() for name in ("label_quality", "given_label"))
    digits = load_raw(DataOptions(path="digits")).train
    assert digits.labels is not None
    right = given == digits.labels[table["index"].to_numpy()]
    axes = figure.add_subplot(grid[0, 1])
    parts, names = [quality[right], quality[~right]], ["correct label", "wrong label"]
    axes.hist(parts, bins=_BINS, range=(0, 1), stacked=True, label=names)
    axes.set(title=f"Label quality by {method}, out of sample", xlabel="label quality", ylabel="labels")
    axes.legend()

    table = table.take(lowest_quality_first(table)[: _ROWS * _COLUMNS])
    panel = figure.add_subfigure(grid[0, 2])
    panel.suptitle("Lowest label quality: given → corrected")
    images = np.asarray(digits.inputs).reshape(-1, 8, 8)
    for axes, row in zip(panel.subplots(_ROWS, _COLUMNS).flat, table.to_pylist(), strict=True):
        axes.imshow(images[row["index"]], cmap="gray_r")
        axes.set_title(f"{row['given_label']} → {row['current_label']}", fontsize=9)
        axes.axis("off")
    save(figure, path)


if __name__ == "__main__":
    draw_demo(Path(sys.argv[2]), {method: Run(Path(sys.argv[1], method)) for method in METHODS})
