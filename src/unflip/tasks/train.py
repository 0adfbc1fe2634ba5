"""train: from data whose labels may be wrong to a finished run, with its report."""

from pathlib import Path
from typing import Any, Unpack

from unflip.data.corruption import check_noise_used
from unflip.data.hugging_face import write_dataset
from unflip.data.loader import check_used, load_raw
from unflip.data.raw import RawData
from unflip.errors import InputError, UnflipError
from unflip.runs import layout
from unflip.runs.config import Layers, RunConfig, Tree, check_section, make_layers, read_toml
from unflip.runs.folder import Run
from unflip.runs.options import Execution
from unflip.tasks.options import TrainOptions, option_tree
from unflip.tasks.report import report_finished
from unflip.training.run import train_run


def train(
    data: Any, out: str | Path, *, resume: bool = False, force: bool = False, **options: Unpack[TrainOptions]
) -> Run:
    """Train on data whose labels may be wrong; write a run folder with a report and return it.

    Does what ``unflip train`` does, with the same options, defaults and errors, which are exceptions of
    :class:`unflip.errors.UnflipError`. Ctrl-C and SIGTERM, in the main thread, save and raise
    :class:`unflip.errors.Stopped`.

    Args:
        data: a path, the name of a built-in data set, or a ``Dataset`` or ``DatasetDict`` of Hugging Face, which is
            written to the run's folder first. With ``resume`` it may be None: everything comes from the run folder.
        out: the run's folder.
        resume: continue the run in ``out`` where it stopped.
        force: replace the run in ``out``.
        options: those of :class:`unflip.tasks.options.TrainOptions`; ``unflip train --help`` describes them.
            ``settings`` are what ``--set`` takes: ``"key=value"`` strings, or a mapping from dotted keys to values.
            What is None comes from ``settings``, ``config``, ``preset`` or the defaults, in this order.
    """
    run = Run(Path(out))
    tree = option_tree(TrainOptions, options)
    execution = check_section(Execution, tree.pop("execution", {}))
    run.check_free(resume=resume, force=force)
    if data is not None and not isinstance(data, str | Path):
        own = tree.setdefault("data", {})
        run.begin()
        columns = {"label_column": own.pop("label_column", None), "ignore": own.pop("ignore", ())}
        try:
            data = write_dataset(data, run.own(layout.DATA), **columns)
            finished = _train(run, data, tree, execution, resume=resume, force=force)
        except UnflipError:
            run.abandon()
            raise
    else:
        finished = _train(run, data, tree, execution, resume=resume, force=force)
    report_finished(finished)
    return finished


def _train(run: Run, data: str | Path | None, tree: Tree, execution: Execution, *, resume: bool, force: bool) -> Run:
    layers = layers_of(data, tree, read_toml(run.config_path) if resume else None)
    config = configure(layers)
    raw = None if resume else load_without_network(layers, config)
    return train_run(run, config, execution, raw=raw, resume=resume, force=force)


def load_without_network(layers: Layers, config: RunConfig) -> RawData | None:
    """Read the data if nobody chose a network, and refuse images: the default network is for rows of numbers."""
    if any("network" in layer for layer in layers.trees):
        return None
    raw, path = load_raw(config.common.data, config.parts), config.common.data.path
    if raw.holds_images:
        raise InputError(
            f"data {path}: holds images; to find wrong labels, use unflip clean {path} --out RUN; to train on pixels, "
            "choose a network with --network"
        )
    return raw


def layers_of(data: str | Path | None, tree: Tree, base: Tree | None = None) -> Layers:
    """Return what the options of :func:`train` ask for, over the configuration of a run that is resumed."""
    sources = {name: tree.pop(name, None) for name in ("preset", "config", "settings")}
    if data is not None:
        tree = tree | {"data": tree.get("data", {}) | {"path": str(Path(data))}}
    return make_layers(tree, base=base, **sources)


def configure(layers: Layers) -> RunConfig:
    """Resolve a run's configuration; refuse options that somebody typed although nothing reads them."""
    config = layers.resolve()
    check_used(config.common.data, layers.typed("data"))
    check_noise_used(config.common.noise, layers.typed("noise"))
    return config
