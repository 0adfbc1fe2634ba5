"""What the figures here share: colors, panels, and saving."""

import warnings
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B3A100")
"""The palette of Okabe and Ito, with a darker yellow for white paper."""
MARKERS = "osD^vP*X"


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its file extension."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # class names in any script
        figure.savefig(path, dpi=150)


def make_panels(columns: int, size: tuple[float, float], *, rows: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``size`` inches and its panels, row by row."""
    figure = Figure(figsize=size, layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, panels
