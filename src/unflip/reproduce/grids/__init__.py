"""Built-in grids, one TOML file each; the first line of a file describes it."""

from importlib import resources


def grid_names() -> list[str]:
    """Return the names of the built-in grids: folder/file."""
    folders = [entry for entry in resources.files("unflip.reproduce.grids").iterdir() if entry.is_dir()]
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.toml')}"
        for folder in folders
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    )


def grid_text(name: str) -> str:
    """Return the text of the grid file ``name``."""
    return (resources.files("unflip.reproduce.grids") / f"{name}.toml").read_text("utf-8")
