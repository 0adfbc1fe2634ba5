"""``unflip list``: what there is, one line each; imports none of it."""

from rich.console import Console

from unflip.data import datasets
from unflip.experiments.grids import grid_names, grid_text
from unflip.methods import methods
from unflip.networks import backbones, networks
from unflip.presets import preset_names, preset_text


def run_list(kinds: list[str]) -> None:
    """Print a line for each part of each kind."""
    registries = {"methods": methods, "networks": networks, "backbones": backbones, "data": datasets}
    files = {"presets": (preset_names, preset_text), "grids": (grid_names, grid_text)}
    for kind in kinds:
        if kind in files:
            names, text = files[kind]
            rows = [(name, text(name).splitlines()[0].lstrip("# ")) for name in names()]
        else:
            rows = [(entry.name, entry.summary) for entry in registries[kind]]
        console = Console(soft_wrap=True, highlight=False, markup=False)
        console.print(kind, style="bold")
        width = max((len(name) for name, _ in rows), default=0)
        for name, summary in rows:
            console.print(f"  {name:<{width}}  {summary}")
