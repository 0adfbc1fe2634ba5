"""Built-in grids, one TOML file each; the first line of a file describes it."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def grid_names() -> list[str]:
    """Return the names of the built-in grids: folder/file."""
    return sorted(file.relative_to(_FOLDER).with_suffix("").as_posix() for file in _FOLDER.glob("*/*.toml"))


def grid_text(name: str) -> str:
    """Return the text of the grid file ``name``."""
    return (_FOLDER / f"{name}.toml").read_text("utf-8")
