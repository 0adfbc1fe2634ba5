"""train: from data whose labels may be wrong to a finished run, with its report."""

from pathlib import Path
from typing import Any, Unpack

from unflip.data.hugging_face import write_dataset
from unflip.runs import layout
from unflip.runs.config import RunConfig, Tree, check_section, read_toml, resolve_layers
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
        data = write_dataset(
            data, run.folder / layout.DATA, label_column=own.pop("label_column", None), ignore=own.pop("ignore", ())
        )
    config = configure(data, tree, read_toml(run.config_path) if resume else None)
    finished = train_run(run, config, execution, resume=resume, force=force)
    report_finished(finished)
    return finished


def configure(data: str | Path | None, tree: Tree, base: Tree | None = None) -> RunConfig:
    """Resolve a run's configuration from the options of :func:`train`, over that of a run that is resumed."""
    layers = {name: tree.pop(name, None) for name in ("preset", "config", "settings")}
    if data is not None:
        tree = tree | {"data": tree.get("data", {}) | {"path": str(Path(data))}}
    return resolve_layers(tree, base=base, **layers)
