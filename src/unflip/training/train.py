"""train: from arguments to a finished run folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from unflip.data.dataset import open_dataset
from unflip.errors import ConfigError
from unflip.training.config import RunConfig, Tree, parse_setting, read_preset, read_toml
from unflip.training.folder import Run
from unflip.training.posterior import PosteriorFit
from unflip.training.processes import Processes
from unflip.training.progress import make_reporter
from unflip.training.session import Session


def train(
    data: str | Path | None,
    out: str | Path,
    *,
    labels: str | Path | None = None,
    take: int | None = None,
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
    quiet: bool = True,
) -> Run:
    """Train on data whose labels may be wrong; write a run folder and return it.

    Does what ``unflip train`` does, with the same defaults and the same errors, as exceptions of
    :class:`unflip.errors.UnflipError`. ``settings`` are what ``--set`` takes: ``"key=value"`` strings, or a mapping
    from dotted keys to values. Arguments left at None come from ``settings``, ``config``, ``preset`` or the
    defaults, in this order. With ``resume``, ``data`` may be None: everything comes from the run folder.
    """
    run = Run(Path(out))
    run.check_free(resume=resume, force=force)
    flags = {"method": method, "network": network, "epochs": epochs, "seed": seed, "select": select}
    paths = {"path": data, "labels": labels}
    data_flags: Tree = {key: str(Path(path)) for key, path in paths.items() if path is not None} | {"take": take}
    resolved = resolve_config(
        base=read_toml(run.config_path) if resume else {},
        preset=preset,
        config=None if config is None else Path(config),
        settings=settings,
        flags=_given(flags) | {"data": _given(data_flags), "noise": _given({"recipe": noise})},
    )
    if resume:
        _check_same(run, resolved)
        if run.is_finished and run.result["epochs"] >= resolved.common.epochs:
            return run
    if threads is not None:
        torch.set_num_threads(threads)
    processes = Processes(device)
    common = resolved.common
    estimate = PosteriorFit(
        network=common.network,
        network_options=resolved.network_options,
        optimizer=common.optimizer,
        seed=common.seed,
        processes=processes,
        reporter=make_reporter(quiet or not processes.is_first),
    )
    dataset = open_dataset(common.data, common.seed, common.noise, estimate)
    return Session(run, resolved, dataset, processes, quiet).execute(resume=resume, force=force)


def resolve_config(
    *,
    base: Tree,
    preset: str | None,
    config: Path | None,
    settings: Iterable[str] | Mapping[str, Any],
    flags: Tree,
) -> RunConfig:
    """Lay preset, config file, settings and flags over each other: the later wins."""
    if isinstance(settings, Mapping):
        typed = [_nest(key, value) for key, value in settings.items()]
    else:
        typed = [parse_setting(text) for text in settings]
    layers = [base, read_preset(preset) if preset else {}, read_toml(config) if config else {}, *typed, flags]
    explicit = [key for layer in typed for key, value in layer.items() if isinstance(value, dict)]
    return RunConfig.resolve(layers, explicit)


def _nest(key: str, value: Any) -> Tree:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


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
