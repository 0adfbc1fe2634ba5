"""Names for runs when several are shown."""

from collections.abc import Sequence

from unflip.runs.folder import Run


def name_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Name runs by their folder, or by its full path if two folders have the same name."""
    names = [run.folder.resolve().name for run in runs]
    return {name if names.count(name) == 1 else str(run.folder): run for name, run in zip(names, runs, strict=True)}
