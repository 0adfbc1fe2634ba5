"""The commands, and `unflip list`. Modules of commands import nothing heavy before a command runs."""

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
_NOTES = {"methods": "NAME-m, NAME-c: any of these with mean-based or covariance-based calibration, such as gce-m"}

app = typer.Typer(
    name="unflip",
    help="Train classifiers on data whose labels are partly wrong, and get the labels back, corrected.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Start with: unflip demo",
)
for command in (demo, train, predict, clean, embed, corrupt):
    app.command()(command)
noise_app = typer.Typer(help="Look at label noise.", no_args_is_help=True)
noise_app.command()(inspect)
app.add_typer(noise_app, name="noise")
for command in (report, review, export):
    app.command()(command)
app.add_typer(paper_app, name="paper")


def _show_version(wanted: bool) -> None:
    if wanted:
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
        typer.Argument(
            help="methods, networks, backbones, text-encoders, data, checks, presets or grids; everything by default.",
            metavar="[KIND]",
        ),
    ] = None,
) -> None:
    """List methods, networks, backbones, text encoders, data sets, checks, presets or grids, with one line on each."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(unknown("kind", kind, KINDS))
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, markup=False)
    for chosen in [kind] if kind else KINDS:
        rows = _rows(chosen)
        console.print(chosen, style="bold")
        width = max((len(name) for name, _ in rows), default=0)
        for name, summary in rows:
            console.print(f"  {name:<{width}}  {summary}")
        if chosen in _NOTES:
            console.print(f"  {_NOTES[chosen]}")


def _rows(kind: str) -> list[tuple[str, str]]:
    """Return name and summary of every part of a kind."""
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
    files = {"presets": (preset_names, preset_text), "grids": (grid_names, grid_text)}
    if kind in files:
        names, text = files[kind]
        return [(name, text(name).splitlines()[0].lstrip("# ")) for name in names()]
    return [(entry.name, entry.summary) for entry in registries[kind]]
