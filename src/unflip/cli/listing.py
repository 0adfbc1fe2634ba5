"""``unflip list``: what there is, one line each; imports none of it."""

from importlib import resources

from rich.console import Console

from unflip.data import datasets
from unflip.methods import methods
from unflip.networks import networks


def run_list(kinds: list[str]) -> None:
    """Print a line for each part of each kind."""
    registries = {"methods": methods, "networks": networks, "data": datasets}
    for kind in kinds:
        if kind == "presets":
            rows = [(name, _first_comment(name)) for name in _preset_names()]
        else:
            rows = [(entry.name, entry.summary) for entry in registries[kind]]
        console = Console(soft_wrap=True, highlight=False, markup=False)
        console.print(kind, style="bold")
        width = max((len(name) for name, _ in rows), default=0)
        for name, summary in rows:
            console.print(f"  {name:<{width}}  {summary}")


def _preset_names() -> list[str]:
    folder = resources.files("unflip") / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def _first_comment(name: str) -> str:
    text = (resources.files("unflip") / "presets" / f"{name}.toml").read_text("utf-8")
    return text.splitlines()[0].lstrip("# ")
