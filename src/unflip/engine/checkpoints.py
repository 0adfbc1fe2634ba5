"""Checkpoints: what a run needs to continue bit by bit where it stopped, even in the middle of an epoch.

A checkpoint is a tree of tensors and plain values in one safetensors file, written atomically, without pickle.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unflip.data.dataset import Dataset
from unflip.data.sources import Source
from unflip.errors import RunFolderError, UnflipWarning
from unflip.files import naming_target, write_tensors
from unflip.nn.ensemble import Ensemble
from unflip.runs import layout
from unflip.seeding import generator

FORMAT = 7
"""The checkpoint format; incremented when older files can no longer be read."""
_SHARE = 0.02  # of the run time may be spent on end-of-epoch checkpoints
_VALUES = 2**25  # numbers in the inputs that are fingerprinted: all of 65,536 rows of 512 columns
_DECODED = 64  # of inputs that are read batch by batch, such as image files
_ROWS = 1024  # inputs at once
_CLOSE = 1e-3  # relative tolerance: other machines and versions may decode or standardize slightly differently


@dataclass
class BestEpoch:
    """The best epoch so far under the selection rule."""

    epoch: int = 0
    score: float = float("-inf")
    state: dict[str, Tensor] = field(default_factory=dict)
    """Of the model; see :class:`unflip.nn.ensemble.Ensemble`."""

    def consider(self, epoch: int, score: float, model: Ensemble) -> None:
        """Keep a copy of the model if its score is higher than those of all epochs before."""
        if score > self.score:
            self.epoch, self.score = epoch, score
            self.state = copy_state(model.state_dict())


@dataclass
class RunState:
    """The metrics of every finished epoch, the best epoch, and the seconds that training took."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    best: BestEpoch = field(default_factory=BestEpoch)
    seconds: float = 0.0

    @property
    def epochs_done(self) -> int:
        """Number of finished epochs."""
        return len(self.metrics)


class Growing:
    """Rows that are added one after the other, in one piece of memory.

    Many small tensors that stay, among large ones that come and go, would keep the memory of those from being used
    again.
    """

    def __init__(self, rows: Tensor) -> None:
        self._room, self._count = rows, len(rows)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Tensor:
        """All rows so far."""
        return self._room[: self._count]

    def add(self, rows: Tensor) -> None:
        """Add rows after the others."""
        count = self._count + len(rows)
        if count > len(self._room):
            before, self._room = self.rows, self._room.new_empty(2 * count, *self._room.shape[1:])
            self._room[: self._count] = before
        self._room[self._count : count] = rows
        self._count = count


@dataclass
class EpochProgress:
    """What a run resumed in the middle of an epoch needs besides networks, optimizers, method and labels."""

    phase: int = 0
    """Number of finished phases."""
    losses: dict[str, float] = field(default_factory=dict)
    """Mean loss terms of the finished phases."""
    probs: Tensor | None = None
    """Probabilities recorded in the finished phases (m, k)."""
    terms: dict[str, Growing] = field(default_factory=dict)
    """Loss terms of each step of the current phase."""
    recorded: Growing | None = None
    """Probabilities recorded in the current phase, in the order of its steps."""
    started: float = field(default_factory=lambda: time.perf_counter())
    """Start time; in a resumed epoch it accounts for the time already spent."""

    @property
    def steps(self) -> int:
        """Number of finished steps of the current phase."""
        return max(map(len, self.terms.values()), default=0)

    def add(self, terms: Mapping[str, Tensor], probs: Tensor | None) -> None:
        """Keep the loss terms of a step, and the probabilities (b, k) that it recorded."""
        for name, term in terms.items():
            self.terms.setdefault(name, Growing(term.new_empty(0))).add(term.detach()[None])
        if probs is not None:
            self.recorded = self.recorded or Growing(probs[:0])
            self.recorded.add(probs)

    def end_phase(self, losses: Mapping[str, float]) -> None:
        """Count the current phase as finished."""
        self.phase += 1
        self.losses |= losses
        self.terms, self.recorded = {}, None

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {
            "phase": self.phase,
            "losses": self.losses,
            "probs": self.probs,
            "terms": {name: column.rows for name, column in self.terms.items()},
            "recorded": None if self.recorded is None else self.recorded.rows,
            "seconds": time.perf_counter() - self.started,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> Self:
        """Restore a saved state."""
        return cls(
            phase=state["phase"],
            losses=state["losses"],
            probs=None if state["probs"] is None else state["probs"].to(device),
            terms={name: Growing(column.to(device)) for name, column in state["terms"].items()},
            recorded=None if state["recorded"] is None else Growing(state["recorded"].to(device)),
            started=time.perf_counter() - state["seconds"],
        )


class Checkpoints:
    """A run's checkpoints: when the next one is due, and which ones are kept.

    The end of an epoch is saved unless the last checkpoint is so recent that saving would take more than 2 % of the
    run time; within an epoch, a checkpoint is due every ``minutes``. The last ``keep`` checkpoints are kept.
    """

    def __init__(self, folder: Path, keep: int, minutes: float) -> None:
        self.folder, self.keep, self.minutes = folder, keep, minutes
        self._saved, self._cost = time.monotonic(), 0.0

    def is_due(self, *, midway: bool) -> bool:
        """Whether the next checkpoint is due, at the end of an epoch or ``midway``."""
        wait = 60 * self.minutes if midway else min(60 * self.minutes, self._cost / _SHARE)
        return time.monotonic() - self._saved >= wait

    def save(self, tree: Any, epoch: int, midway: tuple[int, int] | None = None) -> None:
        """Write the state at the end of ``epoch``, or ``midway`` through it, after this many (phases, steps)."""
        started = time.monotonic()
        place = "" if midway is None else "-phase-{:03d}-step-{:08d}".format(*midway)  # sorts before the epoch's end
        with naming_target(self.folder):
            self.folder.mkdir(exist_ok=True)
            save_tree(self.folder / f"epoch-{epoch:05d}{place}.safetensors", tree)
            for old in self._paths()[: -self.keep]:
                old.unlink(missing_ok=True)
        self._saved = time.monotonic()
        self._cost = self._saved - started

    def load_last(self) -> Any | None:
        """Return the last readable checkpoint; None if there are none."""
        failure: RunFolderError | None = None
        for path in reversed(self._paths()):
            try:
                found = load_tree(path)
            except RunFolderError as error:
                failure = failure or error
                continue
            if failure is not None:
                warnings.warn(f"{failure}; continuing from the earlier {path.name}", UnflipWarning, stacklevel=2)
            return found
        if failure is not None:
            raise RunFolderError(f"{failure}, and there is no other; start again with --force") from failure
        return None

    def _paths(self) -> list[Path]:
        return sorted(layout.files_within(self.folder, layout.CHECKPOINTS))


def save_tree(path: Path, tree: Any) -> None:
    """Write nested dicts and lists of tensors, numbers, strings and None."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(tree, "", tensors))
    write_tensors(path, tensors, {"format": str(FORMAT), "structure": structure})


def load_tree(path: Path) -> Any:
    """Read what :func:`save_tree` wrote, into CPU memory."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("format", "1") != str(FORMAT):
            raise ValueError(f"format {metadata.get('format', '1')}, this version of unflip reads {FORMAT}")
        return _decode(json.loads(metadata["structure"]), tensors)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: not a readable checkpoint ({error})") from error


def _encode(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors of a tree to ``tensors``; dicts and lists become tagged lists, as JSON keys must be strings."""
    if isinstance(node, Tensor):
        name = f"{len(tensors)}{path}"  # the number makes it unique: keys may contain a slash
        tensor = node.detach().cpu().contiguous()
        shared = any(_memory(tensor) == _memory(other) for other in tensors.values())
        tensors[name] = tensor.clone() if shared else tensor  # safetensors refuses shared memory
        return ["tensor", name]
    if isinstance(node, dict):
        return ["dict", [[key, _encode(value, f"{path}/{key}", tensors)] for key, value in node.items()]]
    if isinstance(node, list | tuple):
        return ["list", [_encode(value, f"{path}/{i}", tensors) for i, value in enumerate(node)]]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise TypeError(f"a checkpoint cannot hold {type(node).__name__} at {path}")


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _decode(node: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(node, list):
        return node
    tag, content = node
    if tag == "tensor":
        return tensors[content]
    if tag == "dict":
        return {key: _decode(value, tensors) for key, value in content}
    return [_decode(value, tensors) for value in content]


def copy_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a model's state, unaffected by later training."""
    return {name: value.detach().clone() for name, value in state.items()}


def data_fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Return what a checkpoint remembers of its run's data, so that no other data can take its place.

    Counts, one digest of labels, splits and names, and one number for each of many inputs: see :func:`difference`.
    """
    digest = hashlib.sha256(json.dumps([dataset.class_names, dataset.ids and list(dataset.ids)]).encode())
    for column in (dataset.given, dataset.removed, dataset.is_val, dataset.reviewed):
        digest.update(b"none" if column is None else column.cpu().to(torch.int64).numpy().tobytes())
    return {
        "examples": len(dataset.given),
        "classes": dataset.num_classes,
        "labels": digest.hexdigest(),
        "inputs": _projections(dataset.source),
    }


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say in which way data differs from a fingerprint made ``before``; None if it does not."""
    for what in ("examples", "classes"):
        if before[what] != now[what]:
            return f"the data has {now[what]:,} {what}, and had {before[what]:,} when the run began"
    if before["labels"] != now["labels"]:
        return "the labels, splits or names of the examples are not those that the run began with"
    same, tolerance = before["inputs"].shape == now["inputs"].shape, _CLOSE * float(before["inputs"].abs().mean())
    if not same or not torch.allclose(before["inputs"], now["inputs"], rtol=_CLOSE, atol=tolerance):
        return "the inputs are not those that the run began with"
    return None


def _projections(source: Source) -> Tensor:
    """Return the inner product (m,) of evenly spaced inputs with one random direction of length one."""
    size = prod(source.shape)
    most = _DECODED if source.prefetch else max(1, _VALUES // size)
    count = min(len(source), most)
    rows = torch.arange(count) * len(source) // count
    direction = torch.randn(size, generator=generator(0, "data print")) / size**0.5
    return torch.cat([source.fetch(part).cpu().float().flatten(1) @ direction for part in rows.split(_ROWS)])
