"""train_run: the entry point of training, for tasks and the cells of a sweep. It writes no report."""

from unflip.compute.processes import start_processes
from unflip.data.raw import RawData
from unflip.errors import ConfigError
from unflip.progress import make_reporter
from unflip.runs.config import RunConfig, Tree, read_toml
from unflip.runs.folder import Run
from unflip.runs.options import Execution
from unflip.training.posterior import posterior_fit
from unflip.training.preparation import prepare_data
from unflip.training.session import Session


def train_run(
    run: Run,
    config: RunConfig,
    execution: Execution,
    *,
    raw: RawData | None = None,
    resume: bool = False,
    force: bool = False,
) -> Run:
    """Train to the end and return the finished run.

    Args:
        run: the folder that everything is written to.
        config: what to learn, from what and how.
        execution: device, threads, checkpoints and the like.
        raw: the data, if it was read already; otherwise it is read from ``config.common.data.path``.
        resume: continue the run in the folder from its last checkpoint.
        force: replace a run that is already in the folder.
    """
    run.check_free(resume=resume, force=force, inputs=config.inputs())
    if resume:
        _check_same(run, config)
        if run.is_finished and run.result["epochs"] >= config.common.epochs:
            return run
    config.check()
    processes = start_processes(execution.device, execution.threads, config.common.precision)
    reporter = make_reporter(execution.quiet or not processes.is_first)
    estimate = posterior_fit(config.common.seed, processes, quiet=execution.quiet)
    dataset = prepare_data(config, estimate, raw, reporter.track)
    return Session(run, config, dataset, processes, execution).execute(resume=resume, force=force)


def _check_same(run: Run, config: RunConfig) -> None:
    """Check that a resumed run has the same configuration; only the number of epochs may grow."""
    before, now = _flat(read_toml(run.config_path)), _flat(config.tree())
    if now["epochs"] < before["epochs"]:
        raise ConfigError(f"{run.folder} was started with epochs = {before['epochs']}; --resume can only raise that")
    keys = [*before, *(key for key in now if key not in before)]  # top-level keys first: the method before its options
    for key in (key for key in keys if key != "epochs"):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{run.folder} was started with {key} = {before.get(key)}, now it is {now.get(key)}; "
                "resume with the same value, or start again with --force"
            )


def _flat(tree: Tree, prefix: str = "") -> Tree:
    flat: Tree = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
