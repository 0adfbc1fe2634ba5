"""Small tools for tests: data that is easy to learn, quick runs, and new processes."""

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

if TYPE_CHECKING:
    from unflip.data.dataset import Dataset
    from unflip.engine.trainer import Trainer
    from unflip.nn.base import Network
    from unflip.runs.folder import Run

QUICK: dict[str, Any] = {
    "optimizer.batch_size": 32,
    "optimizer.lr": 0.05,
    "mlp.hidden": [16],
}
"""Settings with which a run on `blobs` takes a fraction of a second."""


class Outcome(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


def blobs(
    *, classes: int = 3, train: int = 150, test: int = 60, columns: int = 6, seed: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """Gaussian blobs whose centers are many deviations apart; every class has as many examples, give or take one."""
    random = np.random.default_rng(seed)
    centers = 6.0 * np.eye(columns)[:classes] + 3.0  # not about zero, so that standardizing has something to do
    content = {}
    for name, count in (("train", train), ("test", test)):
        labels = random.permutation(np.arange(count) % classes)
        content[name] = (centers[labels] + random.normal(size=(count, columns))).astype(np.float32)
        content[f"{name}_labels"] = labels
    return content


def write_npz(path: Path, **content: Any) -> Path:
    """Write arrays and return where."""
    np.savez(path, **content)
    return path


def spawn(*args: object, timeout: float = 600, **environment: str) -> Outcome:
    """Run a program in a new process, with the first argument as the program."""
    done = subprocess.run(
        [str(arg) for arg in args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def spawn_python(*args: object, timeout: float = 600, **environment: str) -> Outcome:
    """Run this Python in a new process."""
    return spawn(sys.executable, *args, timeout=timeout, **environment)


def quick_train(
    data: Path | str | None,
    out: Path,
    *,
    settings: dict[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
    **options: Any,
) -> "Run":
    """Train a small network for a few epochs, without a report; return the run."""
    from unflip.api.options import TRAIN, option_tree
    from unflip.api.train import layers_of
    from unflip.engine.run import train_run
    from unflip.runs.config import check_section, read_toml
    from unflip.runs.folder import Claim, Run
    from unflip.runs.options import Execution

    run = Run(Path(out))
    run.check_free(resume=resume, force=force)
    tree = option_tree(TRAIN, {"settings": QUICK | (settings or {}), "device": "cpu"} | options)
    execution = check_section(Execution, tree.pop("execution"))
    config = layers_of(data, tree, read_toml(run.config_path) if resume else None).resolve()
    with Claim(run, resume=resume, force=force) as claim:
        return train_run(claim, config, execution)


def forget_quality(folder: Path, rows: Sequence[int]) -> None:
    """Rewrite the labels of a run as if nothing could be said of some examples, and no Gaussians had been asked."""
    table = pyarrow.parquet.read_table(folder / "labels.parquet")
    quality = [None if i in set(rows) else value for i, value in enumerate(table["label_quality"].to_pylist())]
    odds = [None if i in set(rows) else value for i, value in enumerate(table["log_odds"].to_pylist())]
    changed = {"label_quality": quality, "log_odds": odds} | dict.fromkeys(
        ("gaussian_prob_given", "gaussian_prob_suggested"), [None] * len(table)
    )
    for name, values in changed.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    pyarrow.parquet.write_table(table, folder / "labels.parquet")


def open_dataset(options: Any, seed: int = 0, noise: Any = None) -> "Dataset":
    """Load, encode, corrupt and split a data set."""
    from unflip.data.corrupt import corrupt_labels
    from unflip.data.labeling import label_data
    from unflip.data.loaders import load_raw
    from unflip.data.split import split
    from unflip.encoders.table import encode_raw

    data = label_data(encode_raw(load_raw(options), options), options)
    if noise is not None and noise.recipe is not None:
        data = corrupt_labels(data, noise, None, seed)
    return split(data, options.val_fraction, seed)


def without_times(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop what differs between two runs that are the same."""
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in metrics]


def assert_same_run(one: "Run", other: "Run") -> None:
    """Two runs gave the same model, bit for bit, the same labels and the same figures."""
    assert without_times(one.metrics) == without_times(other.metrics)
    for name in ("labels.parquet", "history.parquet"):
        first, second = (pyarrow.parquet.read_table(run.folder / name) for run in (one, other))
        assert first.equals(second), name
    model, same = ((run.folder / "model.safetensors").read_bytes() for run in (one, other))
    assert model == same


def shrink_cifar(monkeypatch: pytest.MonkeyPatch, train: int, test: int) -> None:
    """Let CIFAR's files hold so many records, since the real ones are large."""
    from unflip.data.loaders import cifar

    for name in ("CIFAR10", "CIFAR100"):
        monkeypatch.setattr(cifar, name, replace(getattr(cifar, name), records=(train, test)))


class Crash(BaseException):
    """What a test raises where a process would have died; nothing catches it."""


def crash_after(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """Save every epoch's end, and let training die right after that of ``epoch``, until ``monkeypatch.undo()``."""
    from unflip.engine import checkpoints

    save = checkpoints.Checkpoints.save

    def save_then_crash(self: Any, tree: Any, number: int, midway: Any = None) -> None:
        save(self, tree, number, midway)
        if number == epoch and midway is None:
            raise Crash

    monkeypatch.setattr(checkpoints, "MAX_OVERHEAD", math.inf)
    monkeypatch.setattr(checkpoints.Checkpoints, "save", save_then_crash)


def crash_at_save(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let training die right after it saved ``count`` times; for runs that save after every step."""
    from unflip.engine.checkpoints import Checkpoints

    save, saves = Checkpoints.save, itertools.count(1)

    def save_then_crash(*args: Any) -> None:
        save(*args)
        if next(saves) == count:
            raise Crash

    monkeypatch.setattr(Checkpoints, "save", save_then_crash)


def capture_trainers(monkeypatch: pytest.MonkeyPatch) -> "list[Trainer]":
    """Return a list to which every trainer made from now on is added."""
    from unflip.engine import run as module
    from unflip.engine.trainer import Trainer

    made: list[Trainer] = []

    class Captured(Trainer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(module, "Trainer", Captured)
    return made


def assert_same_tree(one: Any, other: Any) -> None:
    """Two trees have the same structure and the same values; tuples count as lists."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key, value in one.items():
            assert_same_tree(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same_tree(first, second)
    else:
        assert type(one) is type(other)
        assert one == other or (one != one and other != other)


def passthrough(num_classes: int) -> "Network":
    """Return a network whose logits are its inputs, so that a test chooses them."""
    from unflip.nn.base import Network

    class Passthrough(Network):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(num_classes, num_classes, bias=False)
            torch.nn.init.eye_(self.head.weight)

        def encode(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs

    return Passthrough()


def result_line(axes: dict[str, Any], accuracy: float | None, **more: Any) -> dict[str, Any]:
    """Make up a line of results.jsonl; every call is a cell of its own."""
    return {
        "grid": "made up",
        "cell": f"cell{next(_CELLS)}",
        "axes": axes,
        "data": "made-up.npz",
        "method": axes["method"],
        "network": "mlp",
        "noise": None,
        "seed": axes["seed"],
        "selection": "noisy-val",
        "epochs": 15,
        "protocol": "noisy-val",
        "test_accuracy": dict.fromkeys(("selected", "last", "best"), accuracy),
        "tests": {"test": {"top1": accuracy, "top5": 1.0}},
    } | more


_CELLS = itertools.count()


def write_results(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write lines of results.jsonl and return where."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path
