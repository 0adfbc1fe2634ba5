"""The commands and their options; each does its work in a module of its own."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from unflip._version import __version__

app = typer.Typer(
    name="unflip",
    help="Train classifiers on data whose labels are partly wrong, and get the labels back, corrected.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Start with: unflip demo",
)


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class Rule(StrEnum):
    """How the epoch whose model is kept is chosen."""

    noisy_val = "noisy-val"
    last = "last"
    clean_val = "clean-val"
    best_test = "best-test"


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    networks = "networks"
    data = "data"
    presets = "presets"


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute; auto takes a GPU if there is one.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Processor threads; by default all cores.")]


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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the figure.")] = Path("demo"),
    quiet: Quiet = False,
) -> None:
    """Train several methods on handwritten digits with wrong labels; about a minute."""
    from unflip.cli.demo import run_demo

    run_demo(out, quiet)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder for the run; everything about it is written there.")],
    data: Annotated[
        str | None, typer.Option(help="Feature arrays (.npz, .npy or a folder of .npy), or an embedded set: digits.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels (.npy, .csv, .txt) that replace the training labels; those then only evaluate."),
    ] = None,
    take: Annotated[int | None, typer.Option(help="Use the first N training examples.", metavar="N", min=1)] = None,
    method: Annotated[str | None, typer.Option(help="How to learn: see `unflip list methods`.")] = None,
    network: Annotated[str | None, typer.Option(help="What learns: see `unflip list networks`.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    select: Annotated[
        Rule | None, typer.Option(help="Which epoch's model is kept. clean-val and best-test use the truth.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A set of values by name: see `unflip list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of values; stronger than the preset.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="One value, stronger than the file: --set optimizer.lr=0.02", metavar="KEY=VALUE"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out where it stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    device: DeviceOption = Device.auto,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train on data whose labels may be wrong.

    Writes the model, the labels (as they came, as they are now, how sure), every epoch's figures and result.json.
    Example: unflip train --data features.npz --out runs/first
    """
    from unflip.cli.train import run_train

    run_train(
        data, out, labels=labels, take=take, method=method, network=network, epochs=epochs, seed=seed,
        select=None if select is None else select.value, preset=preset, config=config, settings=setting or (),
        resume=resume, force=force, device=device.value, threads=threads, quiet=quiet,
    )  # fmt: skip


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str, typer.Option(help="Feature arrays (.npz, .npy or a folder of .npy), or digits.")],
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file; by default standard output.")] = None,
    part: Annotated[
        str | None, typer.Option(help="Which set of the data: train, val, test ...; by default the first test set.")
    ] = None,
    device: DeviceOption = Device.auto,
) -> None:
    """Apply a run's model: id, label, probability and all probabilities, as a table."""
    from unflip.cli.predict import run_predict

    run_predict(run, data, out, part, device.value)


@app.command("list")
def list_parts(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; everything by default.")] = None,
) -> None:
    """List methods, networks, data sets or presets, with one line on each."""
    from unflip.cli.listing import run_list

    run_list([kind.value] if kind else [kind.value for kind in Kind])
