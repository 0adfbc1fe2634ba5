"""Sources: inputs by index. Small data is one tensor on the device, large data stays on disk."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Array
from unflip.errors import InputError

BLOCK_VALUES = 2**24  # values read at once when a whole array is scanned
_BYTE_STD = ((256**2 - 1) / 12) ** 0.5  # standard deviation of a uniformly distributed byte
_FAR = 1e4  # a mean of so many standard deviations costs float32 four of its seven digits


@dataclass(frozen=True)
class Standardization:
    """``(x - mean) / std`` per column; stored with the model for new inputs.

    It is computed in the precision of ``mean`` and ``std``: float64 where float32 would lose differences.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, array: Array, *, one_scale: bool) -> Self:
        """Take the mean of each column and its standard deviation, or one for all; constant columns are not scaled."""
        zeros: Array = np.zeros(array.shape[1:])
        mean = sum((rows.sum(axis=0, dtype=np.float64) for _, rows in chunks(array)), zeros) / len(array)
        variance = sum((np.square(rows - mean).sum(axis=0) for _, rows in chunks(array)), zeros) / len(array)
        own = np.sqrt(variance)
        std = np.sqrt(np.full_like(variance, variance.mean())) if one_scale else own.copy()
        constant = own <= 1e-12 * np.abs(mean)
        std[std <= 1e-12 * np.abs(mean)] = 1.0
        far = ~constant & ((np.abs(mean) > _FAR * std) | (std < np.finfo(np.float32).tiny))
        kind = np.float64 if far.any() else np.float32
        return cls(torch.from_numpy(mean.astype(kind)), torch.from_numpy(std.astype(kind)))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Standardize inputs (b, *shape)."""
        return (inputs - self.mean.to(inputs.device)) / self.std.to(inputs.device)

    def to(self, device: torch.device) -> "Standardization":
        """Return it with its tensors on ``device``."""
        return Standardization(self.mean.to(device), self.std.to(device))


class Source(Protocol):
    """Examples without labels.

    Attributes:
        shape: the shape of one example.
        augments: whether every training pass uses random views; a pass with several views always does.
        prefetch: the number of batches to load in the background.
        host_indices: whether rows are looked up on the CPU; indices should be there then, since each batch would wait
            for the device otherwise.
    """

    shape: tuple[int, ...]
    augments: bool
    prefetch: int
    host_indices: bool

    def __len__(self) -> int: ...

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the inputs (b, *shape) at ``indices``, as float32 on the source's device."""

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of the inputs; the same as :meth:`fetch` without augmentation."""

    def to(self, device: torch.device) -> Self:
        """Return this source with its batches on ``device``."""


class ArraySource:
    """Rows of a float array, possibly memory-mapped; optionally standardized.

    Rows are not augmented. Where a method needs several views of a row, they differ by uniform noise of standard
    deviation ``jitter``.
    """

    prefetch, augments = 0, False

    def __init__(self, array: Array, standardize: Standardization | None = None, jitter: float = 0.0) -> None:
        self.shape = array.shape[1:]
        self._jitter = jitter
        self._standardize = standardize
        self._factor: Tensor | None = None
        self._device = torch.device("cpu")
        self.host_indices = isinstance(array, np.memmap)
        self._rows: Array | Tensor = array if self.host_indices else self._finish(np.asarray(array))

    def _finish(self, rows: Array) -> Tensor:
        if self._standardize is None:
            return torch.from_numpy(np.asarray(rows, np.float32))
        double = self._standardize.mean.dtype == torch.float64
        inputs = self._standardize(torch.from_numpy(np.asarray(rows, np.float64 if double else np.float32))).float()
        return inputs if self._factor is None else inputs.mul_(self._factor)

    def __len__(self) -> int:
        return len(self._rows)

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the rows at ``indices``."""
        if isinstance(self._rows, Tensor):  # index_select takes a third of the time of self._rows[indices]
            return self._rows.index_select(0, indices.to(self._rows.device))
        return self._finish(np.asarray(self._rows[indices.cpu().numpy()])).to(self._device)

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return the rows at ``indices``, with jitter if there is any."""
        inputs = self.fetch(indices)
        if not self._jitter:
            return inputs
        # uniform bytes, in a third of the time of Gaussian noise
        words = torch.empty(-(-inputs.numel() // 8), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        noise = words.view(torch.int8)[: inputs.numel()].to(inputs.device).view(inputs.shape)
        return inputs.add_(noise, alpha=self._jitter / _BYTE_STD)

    def rescale(self, standardize: Standardization) -> None:
        """Change the scales, but not the means; mapped rows are rounded like those in memory."""
        assert self._standardize is not None
        factor = (self._standardize.std / standardize.std).float()
        if isinstance(self._rows, Tensor):
            self._rows *= factor.to(self._rows.device)
            self._standardize = standardize
        else:
            self._factor = factor

    def to(self, device: torch.device) -> Self:
        """Move the rows or, of a memory map, the batches to ``device``."""
        self._device = device
        if isinstance(self._rows, Tensor):
            self._rows = self._rows.to(device)
        return self


class JoinedSource:
    """The concatenation of several sources."""

    host_indices = True

    def __init__(self, parts: Sequence[Source]) -> None:
        self.shape = parts[0].shape
        self.augments = parts[0].augments
        self.prefetch = parts[0].prefetch
        self._parts = list(parts)
        self._starts = torch.tensor([0, *np.cumsum([len(part) for part in parts])])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def fetch(self, indices: Tensor) -> Tensor:
        """Return the inputs at ``indices``."""
        return self._collect(indices, lambda part, rows: part.fetch(rows))

    def view(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of the inputs at ``indices``; the sources draw one after the other."""
        return self._collect(indices, lambda part, rows: part.view(rows, generator))

    def _collect(self, indices: Tensor, read: Callable[[Source, Tensor], Tensor]) -> Tensor:
        which = torch.bucketize(indices.cpu(), self._starts[1:], right=True)
        used, own = which.unique().tolist(), which.to(indices.device)
        batches = [read(self._parts[i], indices[own == i] - self._starts[i]) for i in used]
        back = which.argsort(stable=True).argsort().to(batches[0].device)
        return batches[0] if len(batches) == 1 else torch.cat(batches)[back]

    def rescale(self, standardize: Standardization) -> None:
        """Rescale every part that holds rows."""
        for part in self._parts:
            if isinstance(part, ArraySource):
                part.rescale(standardize)

    def to(self, device: torch.device) -> Self:
        """Move every part."""
        self._parts = [part.to(device) for part in self._parts]
        return self


def chunks(array: Array) -> Iterator[tuple[int, Array]]:
    """Yield (first row, rows) of a possibly mapped array, a bounded number at a time."""
    size = max(1, BLOCK_VALUES // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), size):
        yield start, np.asarray(array[start : start + size]).reshape(-1, *array.shape[1:])


def check_finite(array: Array, what: str) -> None:
    """Raise InputError for NaN, infinity, and values that are too large for float32, naming the first such row."""
    if array.dtype.kind in "iub":
        return
    for start, rows in chunks(array):
        with np.errstate(over="ignore"):
            finite = np.isfinite(rows.astype(np.float32, copy=False)).reshape(len(rows), -1)
        if not finite.all():
            row = int(finite.all(axis=1).argmin())
            value = rows[row].ravel()[~finite[row]][0]
            rule = "is too large for float32" if np.isfinite(value) else "must be finite"
            raise InputError(f"{what}, row {start + row}: {value} among the features {rule}")


def check_varied(array: Array, what: str) -> None:
    """Raise InputError for examples that are all the same: nothing can be learned from them."""
    first = np.asarray(array[:1])
    if len(array) and not any((rows != first).any() for _, rows in chunks(array)):
        raise InputError(f"{what}: the features of all {len(array)} examples are the same; nothing tells them apart")
