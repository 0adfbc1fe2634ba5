"""What all figures share: colours that are safe for colour-blind readers, and saving."""

from pathlib import Path

from matplotlib.figure import Figure

from unflip.errors import ConfigError, RunFolderError
from unflip.files import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B3A100")
"""The palette of Okabe and Ito, with a darker yellow for white paper."""
MARKERS = "osD^vP*X"
_FORMATS = (".png", ".svg", ".pdf")


def check_target(path: Path) -> None:
    """Reject a path that cannot be written, before anything is computed."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--out {path}: cannot write format '{path.suffix}'; use {', '.join(_FORMATS[:-1])} or .pdf")
    if not path.absolute().parent.is_dir():
        raise RunFolderError(f"--out {path}: the folder {path.parent} does not exist; create it first")


def save(figure: Figure, path: Path) -> None:
    """Write the figure atomically in the format of its file extension."""
    form = path.suffix.lower().removeprefix(".")
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=150, format=form))
