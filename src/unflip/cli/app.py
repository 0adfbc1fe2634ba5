"""All commands, and ``unflip list``."""

from typing import Annotated

import typer

from unflip._version import __version__
from unflip.cli.clean import clean
from unflip.cli.embed import embed
from unflip.cli.finished import export, predict, report, review
from unflip.cli.noise import corrupt, inspect
from unflip.cli.paper import paper_app
from unflip.cli.train import demo, train
from unflip.errors import ConfigError, unknown

KINDS = ("methods", "networks", "backbones", "text-encoders", "data", "checks", "presets", "grids")
_CALIBRATED = "  Append -m or -c to any method for mean- or covariance-based calibration, such as gce-m"

app = typer.Typer(
    name="unflip",
    help="Find label errors, and train classifiers on noisy labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Start with: unflip demo",
)
for command in (demo, clean, review, train, predict, report, export, embed, corrupt):
    app.command()(command)
noise_app = typer.Typer(help="Inspect label noise.", no_args_is_help=True)
noise_app.command()(inspect)
app.add_typer(noise_app, name="noise")
app.add_typer(paper_app, name="paper")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"unflip {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(KINDS)}; all by default.", metavar="[KIND]"),
    ] = None,
) -> None:
    """List available methods, networks, backbones, checks, presets and more."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(unknown("kind", kind, KINDS))
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, markup=False)
    for name in [kind] if kind else KINDS:
        rows = _rows(name)
        console.print(name, style="bold")
        width = max(len(part) for part, _ in rows)
        for part, summary in rows:
            console.print(f"  {part:<{width}}  {summary}")
        if name == "methods":
            console.print(_CALIBRATED)


def _rows(kind: str) -> list[tuple[str, str]]:
    """Return the name and summary of all parts of a kind."""
    from unflip.data import datasets
    from unflip.encoders import text_encoders
    from unflip.issues import checks
    from unflip.methods import methods
    from unflip.nn import backbones, networks
    from unflip.presets import preset_names, preset_text
    from unflip.reproduce.grids import grid_names, grid_text

    registries = {
        "methods": methods, "networks": networks, "backbones": backbones, "text-encoders": text_encoders,
        "data": datasets, "checks": checks,
    }  # fmt: skip
    if kind in ("presets", "grids"):
        names, text = (preset_names, preset_text) if kind == "presets" else (grid_names, grid_text)
        return [(name, text(name).splitlines()[0].lstrip("# ")) for name in names()]
    return [(entry.name, entry.summary) for entry in registries[kind]]
