"""train: from arguments to a finished run folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from unflip.data.dataset import Dataset, open_dataset
from unflip.data.decoding import Track, untracked
from unflip.data.hugging_face import write_dataset
from unflip.data.noisy import PosteriorEstimator
from unflip.errors import ConfigError
from unflip.training.config import RunConfig, Tree, check_safety, nest, parse_setting, read_preset, read_toml
from unflip.training.folder import Run
from unflip.training.posterior import PosteriorFit
from unflip.training.processes import Processes
from unflip.training.progress import make_reporter
from unflip.training.selection import check_selection
from unflip.training.session import Session


def train(
    data: Any,
    out: str | Path,
    *,
    labels: str | Path | None = None,
    reviewed: str | Path | None = None,
    label_column: str | None = None,
    ignore: Iterable[str] = (),
    take: int | None = None,
    skip_broken: bool | None = None,
    noise: str | None = None,
    method: str | None = None,
    network: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    select: str | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] = (),
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    threads: int | None = None,
    checkpoint_minutes: float = 10.0,
    keep: int = 2,
    on_nan: str = "stop",
    quiet: bool = True,
) -> Run:
    """Train on data whose labels may be wrong; write a run folder and return it.

    ``data`` is a path, the name of an embedded data set, or a ``Dataset`` or ``DatasetDict`` of Hugging Face, which is
    written to the run's folder first.

    Does what ``unflip train`` does, with the same defaults and the same errors, as exceptions of
    :class:`unflip.errors.UnflipError`. ``settings`` are what ``--set`` takes: ``"key=value"`` strings, or a mapping
    from dotted keys to values. Arguments left at None come from ``settings``, ``config``, ``preset`` or the
    defaults, in this order. With ``resume``, ``data`` may be None: everything comes from the run folder.
    ``reviewed`` is a table of labels that people decided, which are kept. Where ``data`` is a table, ``label_column``
    says which of its columns holds the labels, and ``ignore`` which are no features.
    ``checkpoint_minutes``, ``keep`` and ``on_nan`` are :class:`unflip.training.config.Safety`. Ctrl-C and SIGTERM, in
    the main thread, save and raise :class:`unflip.errors.Stopped`.
    """
    safety = check_safety(checkpoint_minutes=checkpoint_minutes, keep=keep, on_nan=on_nan)
    run = Run(Path(out))
    run.check_free(resume=resume, force=force)
    if data is not None and not isinstance(data, str | Path):
        data = write_dataset(data, run.folder / "data", label_column=label_column, ignore=tuple(ignore))
        label_column, ignore = None, ()
    resolved = resolve_config(
        data, labels=labels, reviewed=reviewed, label_column=label_column, ignore=ignore, take=take,
        skip_broken=skip_broken, noise=noise, method=method, network=network, epochs=epochs, seed=seed, select=select,
        preset=preset, config=config, settings=settings,
        base=read_toml(run.config_path) if resume else None,
    )  # fmt: skip
    if resume:
        _check_same(run, resolved)
        if run.is_finished and run.result["epochs"] >= resolved.common.epochs:
            return run
    processes = start_processes(resolved, device, threads)
    reporter = make_reporter(quiet or not processes.is_first)
    dataset = open_checked(resolved, posterior_fit(resolved, processes, quiet), reporter.track)
    return Session(run, resolved, dataset, processes, quiet, safety).execute(resume=resume, force=force)


def resolve_config(
    data: str | Path | None,
    *,
    labels: str | Path | None = None,
    reviewed: str | Path | None = None,
    label_column: str | None = None,
    ignore: Iterable[str] = (),
    take: int | None = None,
    skip_broken: bool | None = None,
    noise: str | None = None,
    method: str | None = None,
    network: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    select: str | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] = (),
    base: Tree | None = None,
) -> RunConfig:
    """Lay ``base``, preset, config file, settings and the other arguments over each other: the later wins."""
    paths = {"path": data, "labels": labels, "reviewed": reviewed}
    flags = _given({"method": method, "network": network, "epochs": epochs, "seed": seed, "select": select}) | {
        "data": {key: str(Path(path)) for key, path in paths.items() if path is not None}
        | _given({"take": take, "skip_broken": skip_broken, "label_column": label_column})
        | ({"ignore": list(ignore)} if ignore else {}),
        "noise": _given({"recipe": noise}),
    }
    if isinstance(settings, Mapping):
        typed = [nest(key, value) for key, value in settings.items()]
    else:
        typed = [parse_setting(text) for text in settings]
    layers = [
        base or {},
        read_preset(preset) if preset else {},
        {} if config is None else read_toml(Path(config)),
        *typed,
        flags,
    ]
    explicit = [key for layer in typed for key, value in layer.items() if isinstance(value, dict)]
    return RunConfig.resolve(layers, explicit)


def start_processes(config: RunConfig, device: str, threads: int | None) -> Processes:
    """Find the device and the precision, and join the other processes of the run."""
    if threads is not None:
        torch.set_num_threads(threads)
    return Processes(device, config.common.precision)


def posterior_fit(config: RunConfig, processes: Processes, quiet: bool) -> PosteriorFit:
    """Return how posteriors for pmd noise are estimated: with the run's own network and optimiser."""
    common = config.common
    return PosteriorFit(
        network=common.network,
        network_options=config.network_options,
        optimizer=common.optimizer,
        seed=common.seed,
        processes=processes,
        reporter=make_reporter(quiet or not processes.is_first),
    )


def open_checked(config: RunConfig, estimate: PosteriorEstimator, track: Track = untracked) -> Dataset:
    """Open the data, and refuse a selection rule for which it has not what the rule looks at."""
    common = config.common
    dataset = open_dataset(common.data, common.seed, common.noise, estimate, track)
    check_selection(
        common.select,
        has_val=bool(dataset.is_val.any()),
        has_truth=dataset.clean is not None or dataset.clean_val,
        has_test=bool(dataset.tests),
    )
    return dataset


def _given(values: Mapping[str, Any]) -> Tree:
    return {key: value for key, value in values.items() if value is not None}


def _check_same(run: Run, resolved: RunConfig) -> None:
    """A resumed run is the same run; it may only be made longer."""
    before, now = _flat(read_toml(run.config_path)), _flat(resolved.tree())
    if now["epochs"] < before["epochs"]:
        raise ConfigError(f"{run.folder} was started for {before['epochs']} epochs; a resumed run can only be longer")
    keys = [*before, *(key for key in now if key not in before)]  # whole before part: the method before its options
    for key in (key for key in keys if key != "epochs"):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{run.folder} was started with {key} = {before.get(key)}, now it is {now.get(key)}; "
                "resume with the same, or start anew with --force"
            )


def _flat(tree: Tree, prefix: str = "") -> Tree:
    flat: Tree = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
