"""The commands. Each is declared in a module of its own, which imports nothing heavy before the command runs."""

from typing import Annotated

import typer

from unflip._version import __version__
from unflip.cli.clean import clean
from unflip.cli.demo import demo
from unflip.cli.embed import embed
from unflip.cli.export import export
from unflip.cli.figure import figure
from unflip.cli.listing import list_parts
from unflip.cli.noise import corrupt, inspect
from unflip.cli.predict import predict
from unflip.cli.report import report
from unflip.cli.review import review
from unflip.cli.sweep import sweep
from unflip.cli.table import table
from unflip.cli.train import train

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
for command in (table, figure, report, sweep, review, export):
    app.command()(command)
app.command("list")(list_parts)


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
