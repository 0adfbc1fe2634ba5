"""Checkpoints: a tree of tensors and plain values in one safetensors file, written atomically, no pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unflip.errors import RunFolderError
from unflip.files import write_tensors

_KEEP = 2  # the last ones; the older is there for when the newer is damaged


def save_tree(path: Path, tree: Any) -> None:
    """Write nested dicts and lists of tensors, numbers, strings and None."""
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(tree, "", tensors))
    write_tensors(path, tensors, {"structure": structure})


def load_tree(path: Path) -> Any:
    """Read what :func:`save_tree` wrote, onto the processor."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return _decode(json.loads(file.metadata()["structure"]), tensors)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path}: not a readable checkpoint ({error})".replace("\n", " ")) from error


def save_checkpoint(folder: Path, epoch: int, tree: Any) -> None:
    """Write the checkpoint of an epoch's end and drop all but the last few."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write to {folder}: {error.strerror}") from error
    save_tree(folder / f"epoch-{epoch:05d}.safetensors", tree)
    for old in sorted(folder.glob("epoch-*.safetensors"))[:-_KEEP]:
        old.unlink(missing_ok=True)


def load_last_checkpoint(folder: Path) -> Any | None:
    """Return the last checkpoint that can be read, None if there is none at all."""
    error: RunFolderError | None = None
    for path in sorted(folder.glob("epoch-*.safetensors"), reverse=True):
        try:
            return load_tree(path)
        except RunFolderError as unreadable:
            error = error or unreadable
    if error:
        raise error
    return None


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
