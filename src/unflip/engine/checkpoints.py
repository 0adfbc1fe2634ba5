"""Checkpoints: the state from which a run resumes bit for bit, even in the middle of an epoch.

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
from safetensors import safe_open
from torch import Tensor

from unflip.compute import generator
from unflip.data.dataset import Dataset
from unflip.errors import RunFolderError, UnflipWarning
from unflip.files import check_checksum, checksum, matching, naming_target, reading, write_tensors
from unflip.nn.base import Ensemble
from unflip.runs import layout

FORMAT = 9
"""The checkpoint format; incremented when older files can no longer be read."""
MAX_OVERHEAD = 0.02
"""Fraction of the run time that end-of-epoch checkpoints may take."""
_FINGERPRINT_VALUES = 2**25  # input values in a fingerprint: all of 65,536 rows of 512 columns
_FINGERPRINT_FILES = 64  # inputs in a fingerprint if they have to be decoded, such as image files
_BLOCK_ROWS = 1024
_MIN_SERIES = 1024
_TOLERANCE = 1e-3  # relative: other machines and versions may decode or standardize slightly differently


@dataclass
class BestEpoch:
    """The best epoch so far under the selection rule."""

    epoch: int = 0
    score: float = float("-inf")
    state: dict[str, Tensor] = field(default_factory=dict)
    """The model's state dict; see :class:`unflip.nn.base.Ensemble`."""

    def update(self, epoch: int, score: float, model: Ensemble) -> None:
        """Keep a copy of the model's state if its score is higher than that of every earlier epoch."""
        if score > self.score:
            self.epoch, self.score = epoch, score
            self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}


@dataclass
class RunState:
    """The metrics of every finished epoch, the best epoch, and the seconds that training took."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    best: BestEpoch = field(default_factory=BestEpoch)
    seconds: float = 0.0


class Series:
    """One number per step, in one tensor that grows.

    A small tensor of each step would keep the memory around it from being reused: with thousands of classes, where
    temporary tensors have megabytes, a run would grow by gigabytes.
    """

    def __init__(self, values: Tensor) -> None:
        self._values, self._count = values, len(values)

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Tensor:
        """All numbers (s,)."""
        return self._values[: self._count]

    def add(self, value: Tensor) -> None:
        """Add a number ()."""
        if self._count == len(self._values):
            self._values = torch.cat([self._values, self._values.new_empty(max(_MIN_SERIES, self._count))])
        self._values[self._count] = value
        self._count += 1


@dataclass
class EpochProgress:
    """The state of a partly trained epoch, besides that of networks, optimizers, method and labels."""

    phase: int = 0
    """Number of finished phases."""
    losses: dict[str, float] = field(default_factory=dict)
    """Mean loss terms of the finished phases."""
    probs: Tensor | None = None
    """Probabilities recorded in the finished phases (m, k)."""
    terms: dict[str, Series] = field(default_factory=dict)
    """Loss terms of each step of the current phase."""
    recorded: list[Tensor] = field(default_factory=list)
    """Probabilities (b, k) recorded in each step of the current phase."""
    started: float = field(default_factory=lambda: time.perf_counter())
    """Start time; in a resumed epoch it accounts for the time already spent."""

    @property
    def steps(self) -> int:
        """Number of finished steps of the current phase."""
        return max(map(len, self.terms.values()), default=0)

    def add(self, terms: Mapping[str, Tensor], probs: Tensor | None) -> None:
        """Keep the loss terms of a step, and the probabilities (b, k) if it recorded any."""
        for name, term in terms.items():
            if name not in self.terms:
                self.terms[name] = Series(term.new_empty(0))
            self.terms[name].add(term.detach())
        if probs is not None:
            self.recorded.append(probs)

    def end_phase(self, losses: Mapping[str, float]) -> None:
        """Count the current phase as finished."""
        self.phase += 1
        self.losses |= losses
        self.terms, self.recorded = {}, []

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {
            "phase": self.phase,
            "losses": self.losses,
            "probs": self.probs,
            "terms": {name: terms.values for name, terms in self.terms.items()},
            "recorded": torch.cat(self.recorded) if self.recorded else None,
            "seconds": time.perf_counter() - self.started,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], device: torch.device) -> Self:
        """Restore a saved state."""
        return cls(
            phase=state["phase"],
            losses=state["losses"],
            probs=None if state["probs"] is None else state["probs"].to(device),
            terms={name: Series(terms.to(device)) for name, terms in state["terms"].items()},
            recorded=[] if state["recorded"] is None else [state["recorded"].to(device)],
            started=time.perf_counter() - state["seconds"],
        )


class Checkpoints:
    """The checkpoints of a run.

    The end of an epoch is saved unless the last checkpoint is so recent that saving would take more than 2 % of the
    run time.

    Args:
        folder: the folder of the files.
        keep: how many checkpoints to keep.
        minutes: within an epoch, a checkpoint is due after this many minutes.
    """

    def __init__(self, folder: Path, keep: int, minutes: float) -> None:
        self.folder, self.keep, self.minutes = folder, keep, minutes
        self._saved, self._cost = time.monotonic(), 0.0

    def is_due(self, *, midway: bool) -> bool:
        """Whether the next checkpoint is due, at the end of an epoch or ``midway``."""
        wait = 60 * self.minutes if midway else min(60 * self.minutes, self._cost / MAX_OVERHEAD)
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
        """Return the last readable checkpoint, with a warning if a newer one is damaged; None if there are none."""
        failures: list[RunFolderError] = []
        for path in reversed(self._paths()):
            try:
                tree = load_tree(path)
            except RunFolderError as error:
                failures.append(error)
                continue
            if failures:
                warnings.warn(f"{failures[0]}; resuming from the earlier {path.name}", UnflipWarning, stacklevel=2)
            return tree
        if failures:
            raise RunFolderError(f"{failures[0]}, and there is no other; start over with --force") from failures[0]
        return None

    def _paths(self) -> list[Path]:
        return matching(self.folder, layout.CHECKPOINT)


def save_tree(path: Path, tree: Any) -> None:
    """Write nested dicts and lists of tensors, numbers, strings and None."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(tree, "", tensors))
    metadata = {"format": str(FORMAT), "structure": structure, "checksum": str(checksum(tensors, structure))}
    write_tensors(path, tensors, metadata)


def load_tree(path: Path) -> Any:
    """Read what :func:`save_tree` wrote, into CPU memory."""
    with reading(path, "checkpoint"):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("format", "1") != str(FORMAT):
            raise ValueError(f"format {metadata.get('format', '1')}, this version of unflip reads {FORMAT}")
        check_checksum(int(metadata["checksum"]), tensors, metadata["structure"])
        return _decode(json.loads(metadata["structure"]), tensors)


def _encode(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors of a tree to ``tensors``; dicts and lists become tagged lists, as JSON keys must be strings."""
    if isinstance(node, Tensor):
        name = f"{len(tensors)}{path}"  # the number makes it unique: keys may contain a slash
        tensor = node.detach().cpu().contiguous()
        memory = {other.untyped_storage().data_ptr() for other in tensors.values()}
        shared = tensor.untyped_storage().data_ptr() in memory
        tensors[name] = tensor.clone() if shared else tensor  # safetensors rejects shared memory
        return ["tensor", name]
    if isinstance(node, dict):
        return ["dict", [[key, _encode(value, f"{path}/{key}", tensors)] for key, value in node.items()]]
    if isinstance(node, list | tuple):
        return ["list", [_encode(value, f"{path}/{i}", tensors) for i, value in enumerate(node)]]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise TypeError(f"a checkpoint cannot hold {type(node).__name__} at {path}")


def _decode(node: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(node, list):
        return node
    tag, content = node
    if tag == "tensor":
        return tensors[content]
    if tag == "dict":
        return {key: _decode(value, tensors) for key, value in content}
    return [_decode(value, tensors) for value in content]


def data_fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Return a fingerprint of a run's data, so that a run is never resumed with other data.

    A digest of labels, splits and names, and the inner product (m,) of evenly spaced inputs with one random direction.
    """
    digest = hashlib.sha256(json.dumps([dataset.class_names, dataset.ids]).encode())
    for column in (dataset.given, dataset.removed, dataset.is_val, dataset.reviewed, dataset.review_weights):
        digest.update(b"none" if column is None else column.cpu().double().numpy().tobytes())
    source, size = dataset.source, prod(dataset.source.shape)
    count = min(len(source), _FINGERPRINT_FILES if source.prefetch else max(1, _FINGERPRINT_VALUES // size))
    rows = torch.arange(count) * len(source) // count
    direction = torch.randn(size, generator=generator(0, "data print")) / size**0.5
    blocks = [source.fetch(block).cpu().float().flatten(1) @ direction for block in rows.split(_BLOCK_ROWS)]
    return {"labels": digest.hexdigest(), "inputs": torch.cat(blocks)}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return how two fingerprints differ; None if they do not."""
    if before["labels"] != now["labels"]:
        return "labels, splits or names of the data have changed since the run started"
    same_shape, tolerance = before["inputs"].shape == now["inputs"].shape, float(before["inputs"].abs().mean())
    if not same_shape or not torch.allclose(before["inputs"], now["inputs"], _TOLERANCE, _TOLERANCE * tolerance):
        return "inputs of the data have changed since the run started"
    return None
