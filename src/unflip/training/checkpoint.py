"""Checkpoints: a tree of tensors and plain values in one safetensors file, written atomically, without pickle."""

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
from unflip.runs import layout

FORMAT = 6
"""The checkpoint format; incremented when older files can no longer be read."""
_SHARE = 0.02  # of the run time may be spent on end-of-epoch checkpoints


class Checkpoints:
    """A run's checkpoints: when the next one is due, and which ones are kept.

    The end of an epoch is saved unless the last checkpoint is so recent that saving would take more than 2 % of the
    run time; within an epoch, a checkpoint is due every ``minutes``. The last ``keep`` checkpoints are kept, and always
    the last one from the end of an epoch.
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

    def restart(self, tree: Any) -> None:
        """Write the state before the first epoch, and remove all others."""
        others = self._paths()
        self.save(tree, 0)
        for path in others:
            path.unlink(missing_ok=True)

    def load_last(self, *, whole: bool = False) -> Any | None:
        """Return the last readable checkpoint, None if there are none; ``whole``: only from the end of an epoch."""
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
                warnings.warn(f"{unreadable}; continuing from the earlier {path.name}", UnflipWarning, stacklevel=2)
            return found
        if damaged:
            raise RunFolderError(f"{damaged[0]}, and there is no other; start again with --force") from damaged[0]
        return None

    def _paths(self) -> list[Path]:
        return sorted(layout.files_within(self.folder, layout.CHECKPOINTS))


def _is_whole(path: Path) -> bool:
    return "phase" not in path.name


def save_tree(path: Path, tree: Any) -> None:
    """Write nested dicts and lists of tensors, numbers, strings and None, with a checksum."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(tree, "", tensors))
    write_tensors(
        path, tensors, {"format": str(FORMAT), "structure": structure, "sha256": _checksum(structure, tensors)}
    )


def load_tree(path: Path) -> Any:
    """Read what :func:`save_tree` wrote, into CPU memory."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("format", "1") != str(FORMAT):
            raise ValueError(f"format {metadata.get('format', '1')}, this version of unflip reads {FORMAT}")
        if metadata["sha256"] != _checksum(metadata["structure"], tensors):
            raise ValueError("its checksum does not match")
        return _decode(json.loads(metadata["structure"]), tensors)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: not a readable checkpoint ({error})") from error


def _checksum(structure: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(structure.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
