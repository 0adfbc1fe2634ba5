"""A pretended accelerator, for machines without one: what a GPU would refuse fails here too, and the numbers are real.

Its tensors say that they are on a device of their own. What they hold lies on the processor, so that whole runs go
through, but an operation that mixes both kinds is an error, as on a GPU. Whatever would make a GPU wait for the
processor, or the other way round, is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric.accelerators.cpu import CPUAccelerator
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # a device that every build of torch knows; nothing of unflip has a use for it

_COPIES = {"aten::_to_copy", "aten::copy_"}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_WAITING = {
    "aten::_linalg_check_errors",  # cholesky, inv, solve: whether they succeeded
    "aten::_linalg_eigh",
    "aten::_linalg_svd",
    "aten::_local_scalar_dense",  # item, bool, int, float
    "aten::_unique2",
    "aten::allclose",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
"""Operations whose result, or its size, the processor has to know."""
_HALVED = (F.linear, F.conv2d, torch.conv2d, torch.matmul, torch.bmm, torch.baddbmm, Tensor.matmul, Tensor.__matmul__)


class Elsewhere(Tensor):
    """A tensor on the accelerator; ``host`` is what it holds."""

    host: Tensor
    is_meta = False  # it does hold something

    @staticmethod
    def __new__(cls, host: Tensor) -> "Elsewhere":
        tensor: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=DEVICE,
            requires_grad=host.requires_grad,
        )
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {}, None)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    # torch would make these tensors on the device without showing them to anybody

    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(_without_lists(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_without_lists(key), value)

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, **options: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=dtype or self.dtype).to(DEVICE)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.host})"


class Accelerator(TorchDispatchMode):
    """While it is entered, tensors asked for on ``DEVICE`` are there, and ``waits`` counts what waits for whom."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {}, self.waits)


class HalfPrecision(TorchFunctionMode):
    """What autocast does on a GPU: products of matrices and convolutions compute in bfloat16."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _HALVED:
            args, kwargs = tree_map(_halved, (args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def _halved(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _run(function: Any, args: Any, kwargs: dict[str, Any], waits: Counter[str] | None) -> Any:
    """Run an operation on what its tensors hold, if a GPU would run it; say that the result is where it would be."""
    name = function._schema.name
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    there = [value for value in tensors if isinstance(value, Elsewhere)]
    device = kwargs.get("device")
    is_there = bool(there) if device is None else torch.device(device).type == DEVICE.type
    _check(name, args, kwargs, tensors, there=is_there)
    if waits is not None and there and (name in _WAITING or _leaves(name, args, is_there) or _is_masked(name, args)):
        waits[name] += 1
    if device is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    result = function(*tree_map(_host, args), **tree_map(_host, kwargs))
    if name == "aten::copy_":
        return args[0]
    changed = {id(_host(value)): value for value in tensors} if function._schema.is_mutable else {}

    def told(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Elsewhere):
            return value
        return changed.get(id(value), Elsewhere(value) if is_there else value)

    return tree_map(told, result)


def _without_lists(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_without_lists, key))
    return torch.tensor(key) if isinstance(key, list) else key


def _host(value: Any) -> Any:
    return value.host if isinstance(value, Elsewhere) else value


def _check(name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], *, there: bool) -> None:
    """Refuse what a GPU refuses: tensors of two devices, indices elsewhere than their table, foreign generators."""
    if any(value.device == DEVICE and not isinstance(value, Elsewhere) for value in tensors):
        raise RuntimeError(f"{name}: a tensor came to the accelerator in a way that is not pretended; mend the helper")
    if there and isinstance(generator := kwargs.get("generator"), torch.Generator):
        raise RuntimeError(f"{name}: a generator of {generator.device} for a tensor on the accelerator")
    if name in _COPIES:
        return
    if name in _INDEXING:  # a table on the accelerator takes indices from the processor; not the other way round
        table, indices, *values = args
        tensors = [table, *values] if isinstance(table, Elsewhere) else [table, *filter(_is_tensor, indices), *values]
    mixed = [value for value in tensors if _is_tensor(value) and value.dim()]  # plain numbers may be anywhere
    if len({isinstance(value, Elsewhere) for value in mixed}) > 1:
        shapes = ", ".join(
            f"{tuple(value.shape)} {'there' if isinstance(value, Elsewhere) else 'here'}" for value in mixed
        )
        raise RuntimeError(f"{name}: tensors on two devices: {shapes}")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _leaves(name: str, args: Any, there: bool) -> bool:
    """Whether an operation copies from the accelerator to the processor."""
    if name == "aten::copy_":
        return isinstance(args[1], Elsewhere) and not isinstance(args[0], Elsewhere)
    return name == "aten::_to_copy" and not there


def _is_masked(name: str, args: Any) -> bool:
    """Whether an operation has to count where a mask is true; to set all of that to one number it need not."""
    if name not in _INDEXING:
        return False
    masks = any(_is_tensor(index) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return masks and (name == "aten::index" or args[2].numel() > 1)


@contextmanager
def accelerated(*, half: bool = False) -> Iterator[Accelerator]:
    """Let every run compute on the pretended accelerator; with ``half``, training passes in bfloat16."""
    from unflip import compute
    from unflip.engine.distributed import Distributed

    accelerator, start = Accelerator(), Distributed.__init__
    forward = torch.nn.Module.__call__

    def started(
        self: Distributed, device: str = "auto", precision: str = "float32", threads: int | None = None
    ) -> None:
        start(self, "cpu" if device == DEVICE.type else device, precision, threads)
        self.device = self.fabric._strategy._root_device = DEVICE  # type: ignore[attr-defined]

    def made(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make_there(*args: Any, device: Any = None, **options: Any) -> Tensor:
            tensor = make(*args, **options)
            return tensor if device is None else tensor.to(device)

        return make_there

    def in_half(self: Any, *args: Any, **options: Any) -> Any:
        with HalfPrecision():
            return forward(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch, accelerator:
        patch.setattr(Distributed, "__init__", started)
        patch.setattr(CPUAccelerator, "setup_device", lambda self, device: None)
        patch.setattr(torch, "meta", SimpleNamespace(manual_seed=lambda seed: None), raising=False)
        for maker in ("tensor", "as_tensor"):  # which torch does not show to modes
            patch.setattr(torch, maker, made(getattr(torch, maker)))
        patch.setattr(  # a mode is entered for one thread
            compute, "ThreadPoolExecutor", partial(ThreadPoolExecutor, initializer=accelerator.__enter__)
        )
        if half:
            patch.setattr(_FabricModule, "__call__", in_half)
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            yield accelerator
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
