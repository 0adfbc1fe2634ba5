"""dry_run: what `train` would do, and how long that would take on this machine; writes nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unflip.api.options import TRAIN, EmbeddingOptions, option_tree
from unflip.api.train import layers_of, plan_training
from unflip.engine.rehearsal import DryRun, rehearse
from unflip.progress import duration
from unflip.runs.config import check_section
from unflip.runs.folder import Run
from unflip.runs.options import Execution


@dataclass(frozen=True)
class TrainDryRun:
    """What `train` would do."""

    run: DryRun
    embedding: str | None
    """What comes before it, where images become features, in one line."""

    def text(self) -> str:
        """Return it as text; all of it is valid TOML."""
        return "\n".join([self.run.text(), *([self.embedding] if self.embedding else [])])


def dry_run(data: str | Path | None, out: str | Path, *, force: bool = False, **options: Any) -> TrainDryRun:
    """Check everything that :func:`unflip.api.train.train` would check, and rehearse an epoch of every kind.

    The arguments are those of ``train``.
    """
    tree = option_tree(TRAIN, options)
    execution = check_section(Execution, tree.pop("execution", {}))
    Run(Path(out)).check_free(resume=False, force=force)
    embedding = check_section(EmbeddingOptions, tree.pop("embedding", {}))
    plan = plan_training(Run(Path(out)), layers_of(data, tree), embedding, execution)
    if plan.embedding is None:
        return TrainDryRun(rehearse(plan.config, execution, plan.raw), None)
    seconds, width = plan.embedding.estimate()
    assert seconds is not None  # `train` embeds on this machine
    rehearsal = rehearse(plan.config, execution, plan.embedding.stand_in(width))
    return TrainDryRun(rehearsal, f"# before it: {plan.embedding.encoder.describe()[0]}, {duration(seconds)}")
