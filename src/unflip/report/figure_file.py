"""What all figures share: colours that are safe for colour-blind readers, and saving."""

import warnings
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from unflip.files import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B3A100")
"""The palette of Okabe and Ito, with a darker yellow for white paper."""
MARKERS = "osD^vP*X"
FORMATS = (".png", ".svg", ".pdf")


def save(figure: Figure, path: Path) -> None:
    """Write the figure atomically in the format of its file extension."""
    form = path.suffix.lower().removeprefix(".")
    content = BytesIO()  # drawn in memory: a full disk would break the drawing in ways that name no file
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a class name in a script that the font lacks
        figure.savefig(content, dpi=150, format=form)
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))
