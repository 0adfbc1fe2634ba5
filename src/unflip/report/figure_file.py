"""What figures have in common: colours that a colour-blind reader can tell apart, and how they are saved."""

from pathlib import Path

from matplotlib.figure import Figure

from unflip.errors import ConfigError, RunFolderError
from unflip.files import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B3A100")
"""Okabe and Ito's palette, its yellow darkened for white paper."""
MARKERS = "osD^vP*X"
_FORMATS = (".png", ".svg", ".pdf")


def check_target(path: Path) -> None:
    """Refuse a name that cannot be drawn to, before anything is computed."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--out {path}: cannot draw '{path.suffix}'; name a {', '.join(_FORMATS[:-1])} or .pdf file")
    if not path.absolute().parent.is_dir():
        raise RunFolderError(f"--out {path}: there is no folder {path.parent}; make it first")


def save(figure: Figure, path: Path) -> None:
    """Write the figure atomically in the format that its name says."""
    form = path.suffix.lower().removeprefix(".")
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=150, format=form))
