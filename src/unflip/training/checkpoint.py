"""Checkpoints: a tree of tensors and plain values in one safetensors file, written atomically, no pickle."""

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unflip.errors import RunFolderError, UnflipWarning
from unflip.files import write_tensors

FORMAT = 2
"""Of checkpoints. It is raised when an older version's files can no longer be read."""
_SHARE = 0.02  # of the time, for the checkpoints of epochs' ends


class Checkpoints:
    """A run's checkpoints: when the next one is due, and which are kept.

    An epoch's end is saved unless the last checkpoint is so young that saving would take more than 2 % of the time;
    within an epoch, one is due after ``minutes``. Of all, the last ``keep`` stay, and the last of an epoch's end.
    """

    def __init__(self, folder: Path, keep: int, minutes: float) -> None:
        self.folder, self.keep, self.minutes = folder, keep, minutes
        self._saved, self._cost = time.monotonic(), 0.0

    def is_due(self, *, midway: bool) -> bool:
        """Whether it is time for the next one, at an epoch's end or ``midway``."""
        wait = 60 * self.minutes if midway else min(60 * self.minutes, self._cost / _SHARE)
        return time.monotonic() - self._saved >= wait

    def save(self, tree: Any, epoch: int, midway: tuple[int, int] | None = None) -> None:
        """Write the state at the end of ``epoch``, or ``midway`` in it after so many (phases, steps)."""
        started = time.monotonic()
        place = "" if midway is None else "-phase-{:03d}-step-{:08d}".format(*midway)  # sorts before the epoch's end
        try:
            self.folder.mkdir(exist_ok=True)
            save_tree(self.folder / f"epoch-{epoch:05d}{place}.safetensors", tree)
            paths = self._paths()
            for old in set(paths[: -self.keep]) - {next((path for path in reversed(paths) if _is_whole(path)), None)}:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot write to {self.folder}: {error.strerror or error}") from error
        self._saved = time.monotonic()
        self._cost = self._saved - started

    def load_last(self, *, whole: bool = False) -> Any | None:
        """Return the last one that can be read, None if there is none at all; ``whole``: of an epoch's end."""
        damaged: list[RunFolderError] = []
        for path in reversed(self._paths()):
            if whole and not _is_whole(path):
                continue
            try:
                found = load_tree(path)
            except RunFolderError as error:
                damaged.append(error)
                continue
            for unreadable in damaged:
                warnings.warn(f"{unreadable}; going on from {path.name} before it", UnflipWarning, stacklevel=2)
            return found
        if damaged:
            raise RunFolderError(f"{damaged[0]}, and there is no other; start anew with --force") from damaged[0]
        return None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("epoch-*.safetensors"))


def _is_whole(path: Path) -> bool:
    return "phase" not in path.name


def save_tree(path: Path, tree: Any) -> None:
    """Write nested dicts and lists of tensors, numbers, strings and None, with a checksum of it all."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(tree, "", tensors))
    write_tensors(
        path, tensors, {"format": str(FORMAT), "structure": structure, "sha256": _checksum(structure, tensors)}
    )


def load_tree(path: Path) -> Any:
    """Read what :func:`save_tree` wrote, onto the processor."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("format", "1") != str(FORMAT):
            raise ValueError(f"format {metadata.get('format', '1')}, this version of unflip reads {FORMAT}")
        if metadata["sha256"] != _checksum(metadata["structure"], tensors):
            raise ValueError("its checksum does not fit")
        return _decode(json.loads(metadata["structure"]), tensors)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: not a readable checkpoint ({error})".replace("\n", " ")) from error


def _checksum(structure: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(structure.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Put the tensors of a tree aside; dict and list become tagged lists, since JSON keys are strings only."""
    if isinstance(node, Tensor):
        name = f"{len(tensors)}{path}"  # with its number: keys may hold a slash
        tensors[name] = node.detach().to("cpu", copy=True).contiguous()  # a copy: safetensors refuses shared memory
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


def copy_state(network: torch.nn.Module) -> dict[str, Tensor]:
    """Return a copy of a network's state that later training does not change."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
