"""dry_run: what `train` would do, and how long that would take on this machine; writes nothing."""

from pathlib import Path
from typing import Unpack

from unflip.runs.config import check_section
from unflip.runs.folder import Run
from unflip.runs.options import Execution
from unflip.tasks.options import TrainOptions, option_tree
from unflip.tasks.train import configure, layers_of, load_without_network
from unflip.training.rehearsal import DryRun, rehearse


def dry_run(
    data: str | Path | None, out: str | Path, *, force: bool = False, **options: Unpack[TrainOptions]
) -> DryRun:
    """Check everything that :func:`unflip.tasks.train.train` would check, and rehearse an epoch of every kind.

    The arguments are those of ``train``.
    """
    tree = option_tree(TrainOptions, options)
    execution = check_section(Execution, tree.pop("execution", {}))
    Run(Path(out)).check_free(resume=False, force=force)
    layers = layers_of(data, tree)
    config = configure(layers)
    return rehearse(config, execution, load_without_network(layers, config))
