"""Presets: named sets of values, one TOML file each; the first line of a file describes it."""

from importlib import resources


def preset_names() -> list[str]:
    """Return the names of the presets in the package."""
    folder = resources.files("unflip.presets")
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """Return the file of the preset ``name``."""
    return (resources.files("unflip.presets") / f"{name}.toml").read_text("utf-8")
