"""The commands and their options; each does its work in a module of its own."""

from pathlib import Path
from typing import Annotated

import typer

from unflip._version import __version__
from unflip.errors import ConfigError, unknown

app = typer.Typer(
    name="unflip",
    help="Train classifiers on data whose labels are partly wrong, and get the labels back, corrected.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Start with: unflip demo",
)


KINDS = ("methods", "networks", "backbones", "data", "presets", "grids")
NOISE_HELP = "Make labels wrong on purpose, in steps: pmd1:0.35 + sym:0.30 (see `unflip corrupt --help`)."
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
DeviceOption = Annotated[
    str, typer.Option(help="Where to compute: auto (a GPU if there is one), cpu, cuda or mps.", metavar="DEVICE")
]
SkipBroken = Annotated[
    bool | None, typer.Option("--skip-broken", help="Leave out images that cannot be read, and list them.")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Which column of a table holds the labels; by default `label`.", metavar="NAME")
]
Ignore = Annotated[
    list[str] | None, typer.Option(help="A column of a table that is no feature; repeatable.", metavar="NAME")
]
Reviewed = Annotated[
    Path | None,
    typer.Option(help="Labels that people decided (.csv, .parquet, .jsonl: index or path, label); they are kept."),
]
Backbone = Annotated[str, typer.Option(help="The pretrained network: see `unflip list backbones`.", metavar="NAME")]
Weights = Annotated[
    Path | None,
    typer.Option(help="Its weights, where they are to come from a file: .safetensors, or what torch.save wrote."),
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Pixels of a side that it sees; by default 112 of small images, else 224.", metavar="N", min=8),
]
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
        str | None,
        typer.Option(
            help="Images (a folder a class, a .csv or .parquet table of paths, CIFAR, WebVision, Clothing1M), feature "
            "arrays (.npz, .npy or a folder of .npy), a .csv or .parquet table of numbers, or an embedded set: digits."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels (.npy, .csv, .txt) that replace the training labels; those then only evaluate."),
    ] = None,
    reviewed: Reviewed = None,
    label_column: LabelColumn = None,
    ignore: Ignore = None,
    take: Annotated[int | None, typer.Option(help="Use the first N training examples.", metavar="N", min=1)] = None,
    skip_broken: SkipBroken = None,
    noise: Annotated[str | None, typer.Option(help=NOISE_HELP, metavar="RECIPE")] = None,
    method: Annotated[str | None, typer.Option(help="How to learn: see `unflip list methods`.")] = None,
    network: Annotated[str | None, typer.Option(help="What learns: see `unflip list networks`.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Which epoch's model is kept: noisy-val, last, or (these use the truth) clean-val, best-test.",
            metavar="RULE",
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A set of values by name: see `unflip list presets`.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of values; stronger than the preset.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="One value, stronger than the file: --set optimizer.lr=0.02", metavar="KEY=VALUE"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out where it stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Write nothing: show the configuration, the phases and how long it would take."),
    ] = False,
    on_nan: Annotated[
        str,
        typer.Option(
            help="When the loss becomes NaN: stop, or restore: back an epoch, half the learning rate.", metavar="WHAT"
        ),
    ] = "stop",
    checkpoint_minutes: Annotated[
        float, typer.Option(help="Minutes between checkpoints within an epoch.", metavar="MINUTES")
    ] = 10.0,
    keep: Annotated[int, typer.Option(help="How many checkpoints stay.", metavar="N")] = 2,
    device: DeviceOption = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train on data whose labels may be wrong.

    Writes the model, the labels (as they came, as they are now, how sure), every epoch's figures, result.json and
    report.html.
    Example: unflip train --data features.npz --out runs/first
    """
    from unflip.cli.train import run_train

    run_train(
        data, out, labels=labels, reviewed=reviewed, label_column=label_column, ignore=ignore or (), take=take,
        skip_broken=skip_broken, noise=noise, method=method, network=network, epochs=epochs, seed=seed, select=select,
        preset=preset, config=config, settings=setting or (), resume=resume, force=force, rehearse=dry_run,
        device=device, threads=threads, quiet=quiet, on_nan=on_nan,
        checkpoint_minutes=checkpoint_minutes, keep=keep,
    )  # fmt: skip


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[
        str, typer.Option(help="What training takes; images need no labels here, and may lie in one folder.")
    ],
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file; by default standard output.")] = None,
    part: Annotated[
        str | None, typer.Option(help="Which set of the data: train, val, test ...; by default the first test set.")
    ] = None,
    skip_broken: SkipBroken = None,
    device: DeviceOption = "auto",
) -> None:
    """Apply a run's model: id, label, probability and all probabilities, as a table."""
    from unflip.cli.predict import run_predict

    run_predict(run, data, out, part=part, skip_broken=bool(skip_broken), device=device)


@app.command()
def clean(
    data: Annotated[
        str,
        typer.Argument(
            help="Images (a folder a class, or a .csv or .parquet table of path,label), a .csv or .parquet table of "
            "numbers, or feature arrays (.npz)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run, the list of suspects and the features.")],
    label_column: LabelColumn = None,
    ignore: Ignore = None,
    reviewed: Reviewed = None,
    backbone: Backbone = "efficientnet-lite0",
    weights: Weights = None,
    image_size: ImageSize = None,
    skip_broken: SkipBroken = None,
    method: Annotated[str, typer.Option(help="How to learn: see `unflip list methods`.")] = "unflip",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data; by default it follows from how much there is.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.", min=0)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out; its features are kept.")] = False,
    device: DeviceOption = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Find the labels that look wrong: from a folder of images or a table to a list, in one command.

    Says first what it will do and how long that takes. Images are turned into features by a pretrained network, once;
    these are kept in --out for the next call. The list is suspects.csv: which example, its label, what it should rather
    be, and how likely the given label is right. --out is the folder of a run as `unflip train` writes it.
    Example: unflip clean photos --out runs/photos
    """
    from unflip.cli.clean import run_clean

    run_clean(
        data, out, label_column=label_column, ignore=ignore or (), reviewed=reviewed, backbone=backbone,
        weights=weights, image_size=image_size, skip_broken=bool(skip_broken), method=method, epochs=epochs, seed=seed,
        force=force, device=device, threads=threads, quiet=quiet,
    )  # fmt: skip


@app.command()
def embed(
    data: Annotated[
        str, typer.Argument(help="Images: a folder a class, a .csv or .parquet of paths, CIFAR and so on.")
    ],
    out: Annotated[Path, typer.Option(help="The feature file, .npz; every other command takes it as --data.")],
    backbone: Backbone = "efficientnet-lite0",
    weights: Weights = None,
    image_size: ImageSize = None,
    image_resize: Annotated[
        int | None,
        typer.Option(
            help="Scale files to this shorter side before the centre is cut out; by default small images are seen "
            "whole, and of larger ones the central 7/8.",
            metavar="N",
            min=1,
        ),
    ] = None,
    resample: Annotated[
        str | None, typer.Option(help="How images are scaled: bilinear (default) or bicubic.", metavar="HOW")
    ] = None,
    label_column: LabelColumn = None,
    skip_broken: SkipBroken = None,
    batch_size: Annotated[int | None, typer.Option(help="Images at once.", metavar="N", min=1)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another file at --out.")] = False,
    device: DeviceOption = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Turn images into features with a pretrained network, once; training on them then takes seconds.

    Labels, class names, paths and splits go with the features. One that was stopped goes on when called again.
    Example: unflip embed photos --out features.npz, then: unflip train --data features.npz --preset features --out run
    """
    from unflip.cli.embed import run_embed

    run_embed(
        data, out, backbone=backbone, weights=weights, image_size=image_size, image_resize=image_resize,
        resample=resample, label_column=label_column, skip_broken=bool(skip_broken), batch_size=batch_size, force=force,
        device=device, threads=threads, quiet=quiet,
    )  # fmt: skip


@app.command()
def corrupt(
    data: Annotated[str, typer.Option(help="Feature arrays with clean train_labels, or an embedded set: digits.")],
    noise: Annotated[str, typer.Option(help="The recipe: steps joined by +.", metavar="RECIPE")],
    out: Annotated[Path, typer.Option(help="Where the labels go: .npy, .csv or .txt; .json and .png beside it.")],
    labels: Annotated[Path | None, typer.Option(help="Labels over which the recipe is laid.")] = None,
    take: Annotated[int | None, typer.Option(help="Use the first N examples.", metavar="N", min=1)] = None,
    posterior: Annotated[
        str, typer.Option(help="Class probabilities for pmd steps: a .npy/.npz file, cross-fit or in-sample.")
    ] = "cross-fit",
    save_posterior: Annotated[Path | None, typer.Option(help="Keep the estimated posteriors in this .npy.")] = None,
    class_map: Annotated[
        str | None, typer.Option(help="Which class is taken for which: cifar10, cifar100, mnist or a .json file.")
    ] = None,
    matrix: Annotated[
        Path | None, typer.Option(help="The .npy with the transition matrix for the step matrix.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same labels.", min=0)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    device: DeviceOption = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Make noisy labels out of clean ones, with a record of how.

    Steps: pmd1, pmd2, pmd3 (instance-dependent, the paper's types I to III), sym, asym, asym-pairs, asym-cycle, pair
    (each with its level, as in sym:0.3) and matrix. Later steps are laid over earlier ones.
    Example: unflip corrupt --data digits --noise "pmd1:0.35 + sym:0.30" --out labels.npy
    """
    from unflip.cli.noise import run_corrupt

    run_corrupt(
        data, noise, out, labels=labels, take=take, posterior=posterior, save_posterior=save_posterior,
        class_map=class_map, matrix=matrix, seed=seed, force=force, device=device, threads=threads, quiet=quiet,
    )  # fmt: skip


noise_app = typer.Typer(help="Look at label noise.", no_args_is_help=True)
app.add_typer(noise_app, name="noise")


@noise_app.command()
def inspect(
    labels: Annotated[Path, typer.Argument(help="The labels in question: .npy, .csv or .txt.")],
    clean: Annotated[Path, typer.Option(help="The true labels: .npy, .csv, .txt, or an .npz with train_labels.")],
    take: Annotated[
        int | None,
        typer.Option(help="Compare the first N only. A shorter LABELS is compared with the first rows.", min=1),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Save a picture of the transition matrix here (.png).")] = None,
) -> None:
    """Tell how wrong labels are: the rate, overall and by class, and which class became which."""
    from unflip.cli.noise import run_inspect

    run_inspect(labels, clean, take, out)


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="A table of the paper: 1 to 6.")],
    results: Annotated[
        list[Path] | None,
        typer.Option(help="A results.jsonl or the folder of a sweep, to stand beside the paper's numbers; repeatable."),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.", metavar="FORMAT")] = "text",
    show: Annotated[
        str,
        typer.Option(
            help="What: test accuracy of the selected epoch, the last, or the best (uses the truth); labels, how many "
            "training labels are right at the end; quality, the ROC area of the given labels' quality.",
            metavar="WHAT",
        ),
    ] = "selected",
    paper: Annotated[bool, typer.Option(help="The paper's numbers beside yours.")] = True,
    methods: Annotated[
        str | None, typer.Option(help="Which, by comma; by default the paper's; all: those and what else there is.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Use only results with this value: --where epochs=15; repeatable.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Print a table of the paper, with your results beside it, the difference, and what is missing.

    Without --results it is the paper's table alone. Example: unflip table 1 --results sweep --format markdown
    """
    from unflip.cli.table import run_table

    run_table(name, results or (), form=form, show=show, paper=paper, methods=methods, where=where or ())


@app.command()
def figure(
    name: Annotated[
        str, typer.Argument(help="alpha, lambda (from --results), curves, shift (from --run), pmd or level-set.")
    ],
    out: Annotated[Path, typer.Option(help="The picture: .png, .svg or .pdf.")],
    results: Annotated[
        list[Path] | None, typer.Option(help="A results.jsonl or the folder of a sweep; repeatable.")
    ] = None,
    run: Annotated[list[Path] | None, typer.Option(help="The folder of a finished run; repeatable.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Use only results with this value: --where epochs=15; repeatable.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Draw a figure: influence of alpha or lambda, learning curves, class Gaussians, PMD noise, pure level sets.

    Example: unflip figure shift --run runs/mddc --out shift.png
    """
    from unflip.cli.figure import run_figure

    run_figure(name, out, results=results or (), runs=run or (), where=where or ())


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN...")],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the run, or comparison.html here.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the run's data is by now, if it has moved: for the pictures.")
    ] = None,
) -> None:
    """Write a run's report.html anew, or a page that compares several runs.

    A page is one file, which opens without a network. Example: unflip report runs/plc runs/mddc --out compared.html
    """
    from unflip.cli.report import run_report

    run_report(runs, out, data)


@app.command()
def sweep(
    grids: Annotated[
        list[str], typer.Argument(help="Grids: FILE.toml, or a name of `unflip list grids`.", metavar="GRID...")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the cells and results.jsonl; an earlier sweep there goes on.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; by default one for each GPU, else for each core.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads of a cell.")] = 1,
    on: Annotated[str, typer.Option(help="Where cells run: local or ray.", metavar="PLACE")] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster to use; by default one is started on this machine.")
    ] = None,
    data_root: Annotated[Path, typer.Option(help="Where relative paths in the grids begin.")] = Path(),
    keep: Annotated[
        str, typer.Option(help="What stays of a finished cell: all (but checkpoints), or results.", metavar="WHAT")
    ] = "all",
    device: DeviceOption = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run nothing: list the cells and what is done.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell of a grid; what is finished is not run again, what was stopped goes on.

    Exit code 1 if a cell failed twice. Example: unflip sweep smoke/digits --out sweep --jobs 2
    """
    from unflip.cli.sweep import run_sweep

    if not run_sweep(
        grids, out, jobs=jobs, threads=threads, on=on, address=address, data_root=data_root, keep=keep, device=device,
        dry_run=dry_run, quiet=quiet,
    ):  # fmt: skip
        raise typer.Exit(1)


@app.command()
def review(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="Where the data is by now, if it has moved since training.")] = None,
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)] = 0,
    host: Annotated[
        str, typer.Option(help="Which address to listen on; any but the default can be reached by other machines.")
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open nothing.")] = False,
    reviewer: Annotated[
        str | None, typer.Option(help="The name to decide under; by default your login. The page can change it.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write what was decided to this .csv, for train --reviewed, and serve nothing.")
    ] = None,
) -> None:
    """Go through doubtful labels on a local web page, by keyboard or mouse, alone or with others.

    Example: unflip review runs/first
    """
    from unflip.cli.review import run_review

    run_review(run, data=data, host=host, port=port, browser=not no_browser, reviewer=reviewer, export=export)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The file: .csv, .parquet, .jsonl, or .json for Label Studio.")],
    form: Annotated[
        str, typer.Option("--format", help="csv, parquet, jsonl, label-studio or cleanlab.", metavar="FORMAT")
    ] = "csv",
    prefix: Annotated[
        str, typer.Option(help="For Label Studio: what stands before each image's path, as an address or folder.")
    ] = "",
) -> None:
    """Write a run's labels for other tools: tables, Label Studio tasks with predictions, cleanlab's columns.

    Example: unflip export runs/first --format label-studio --out tasks.json
    """
    from unflip.cli.export import run_export

    run_export(run, form, out, prefix)


@app.command("list")
def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="methods, networks, backbones, data, presets or grids; everything by default.", metavar="[KIND]"
        ),
    ] = None,
) -> None:
    """List methods, networks, backbones, data sets, presets or grids, with one line on each."""
    from unflip.cli.listing import run_list

    if kind is not None and kind not in KINDS:
        raise ConfigError(unknown("kind", kind, KINDS))
    run_list([kind] if kind else list(KINDS))
