"""Inference without gradients: features, logits and class probabilities of many examples, on demand in an epoch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from unflip.compute import prefetched
from unflip.data.sources import Source
from unflip.engine.checkpoints import EpochProgress
from unflip.engine.distributed import Distributed
from unflip.methods.base import LabelStore, Method, NetworkOutputs
from unflip.nn.base import Ensemble, unwrap
from unflip.stats.gaussians import NotFiniteError

_BATCH, _VALUES = 1024, 2**23  # maximum number of examples, and of input values, per batch
_CPU_BATCH, _CPU_VALUES = 16, 2**19  # the same on a CPU, to fit its cache: twice as fast on 32 x 32 images


@dataclass
class Observation:
    """The outputs of one epoch that a method may read; implements :class:`unflip.methods.base.EpochOutputs`."""

    method: Method
    source: Source
    labels: LabelStore
    processes: Distributed
    val_rows: Tensor
    progress: EpochProgress
    cached: dict[int, Tensor] = field(default_factory=dict)
    """Features by network, until a phase changes the networks."""

    def __post_init__(self) -> None:
        self.phases_done, self.train = self.progress.phase, self.method.context.train

    def record(self, order: Tensor, recorded: Tensor) -> None:
        """Store the probabilities that this process recorded for its part of the examples ``order`` (m,)."""
        train = self.train
        position = torch.empty(len(self.labels), dtype=torch.long, device=train.device)
        position[train] = torch.arange(len(train), device=train.device)
        probs = self.progress.probs  # copied, since the method may hold the tensor of an earlier phase
        probs = recorded.new_zeros(len(train), recorded.shape[1]) if probs is None else probs.clone()
        probs[position[order]] = self.processes.interleave(recorded, len(order))
        self.progress.probs = probs

    @property
    def probs(self) -> Tensor:
        """Softmax of the training passes."""
        if self.progress.probs is None:
            raise RuntimeError(f"{type(self.method).__name__} reads probs without records_probs = True")
        return self.progress.probs

    def features(self, network: int = 0) -> Tensor:
        """Features of the training examples, cached until the networks are trained again."""
        if network not in self.cached:
            self.cached[network] = self._forward(network, self.train).features
        return self.cached[network]

    def logits(self, network: int = 0) -> Tensor:
        """Logits of the training examples from the current head, without keeping the features."""
        if network not in self.cached:
            return self._forward(network, self.train, keep_features=False).logits
        with torch.no_grad():  # calibration trains heads between phases
            logits: Tensor = unwrap(self.method.networks[network]).head(self.cached[network])
            return logits.float()

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, Tensor] | None:
        """Features, logits and given labels of the validation examples; None if there are none."""
        if not len(self.val_rows):
            return None
        return self._forward(network, self.val_rows), self.labels.initial[self.val_rows]

    def outputs(self, network: nn.Module, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits of any network, batch by batch."""
        batches = forward_batches(network, self.source, rows, self.processes)
        return ((places, batch.logits) for places, batch in batches)

    def inputs(self, rows: Tensor) -> Tensor:
        """Inputs without augmentation."""
        return self.source.fetch(rows)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor."""
        return self.processes.broadcast(tensor)

    def _forward(self, network: int, rows: Tensor, *, keep_features: bool = True) -> NetworkOutputs:
        return forward(self.method.networks[network], self.source, rows, self.processes, keep_features=keep_features)


@torch.no_grad()
def forward(
    network: nn.Module, source: Source, indices: Tensor, processes: Distributed, *, keep_features: bool = True
) -> NetworkOutputs:
    """Return the features (m, d) and logits (m, k) of a network, in evaluation mode, without augmentation.

    Args:
        network: the network, which may be wrapped.
        source: inputs of all examples.
        indices: indices of the examples (m,).
        processes: the device, and the processes that share the work.
        keep_features: if false, the features are (m, 0): they may take far more memory than the logits.
    """
    count, head = len(indices), unwrap(network).head
    features = torch.empty(count, head.in_features if keep_features else 0, device=processes.device)
    logits = torch.empty(count, head.out_features, device=processes.device)
    for rows, batch in forward_batches(network, source, indices, processes):
        logits[rows] = batch.logits
        if keep_features:
            features[rows] = batch.features
    return NetworkOutputs(features, logits)


def forward_batches(
    network: nn.Module, source: Source, indices: Tensor, processes: Distributed
) -> Iterator[tuple[slice, NetworkOutputs]]:
    """Yield the result of :func:`forward` batch by batch, each with its place, to save memory."""
    encoder = unwrap(network)
    was_training = encoder.training

    def encode(inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = encoder.encode(inputs).float()
        return features, encoder.head(features).float()

    encoder.eval()
    try:
        for rows, (features, logits) in _run(encode, source, indices, processes):
            yield rows, NetworkOutputs(features, logits)
    finally:
        encoder.train(was_training)


def predict_probs(model: Ensemble, source: Source, processes: Distributed, indices: Tensor | None = None) -> Tensor:
    """Return a model's class probabilities (m, k) at ``indices`` (m,), by default of all examples."""
    if indices is None:
        indices = torch.arange(len(source), device=processes.device)
    result = torch.empty(len(indices), unwrap(model.networks[0]).head.out_features, device=processes.device)
    for rows, probs in predictions(model, source, processes, indices):
        result[rows] = probs
    return result


def predictions(
    model: Ensemble, source: Source, processes: Distributed, indices: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the result of :func:`predict_probs` batch by batch, each with its place."""
    for rows, (probs,) in _run(lambda inputs: [model.probs(inputs)], source, indices, processes):
        yield rows, probs


@torch.no_grad()
def _run(
    function: Callable[[Tensor], Sequence[Tensor]], source: Source, indices: Tensor, processes: Distributed
) -> Iterator[tuple[slice, list[Tensor]]]:
    """Yield a function's outputs for the inputs at ``indices`` batch by batch, each with its place.

    Each process computes its share. Raises NotFiniteError after the last batch if the last output was not finite in
    any of them: the device is waited for only once.
    """
    share = torch.cat([indices, indices[: -len(indices) % processes.count]])[processes.rank :: processes.count]
    share = share.cpu() if source.host_indices else share
    size = batch_size(prod(source.shape), processes.device)
    fetches = (partial(source.fetch, share[start : start + size]) for start in range(0, len(share), size))
    finite, step = [], size * processes.count
    for number, inputs in enumerate(prefetched(fetches, source.prefetch)):
        rows = slice(number * step, min((number + 1) * step, len(indices)))
        outputs = [processes.interleave(output, rows.stop - rows.start) for output in function(inputs)]
        finite.append(outputs[-1].isfinite().all())
        yield rows, outputs
    if finite and not bool(torch.stack(finite).all()):
        raise NotFiniteError("the network's outputs became NaN or infinite")


def batch_size(values: int, device: torch.device) -> int:
    """Return the batch size for examples of ``values`` numbers each; it affects only time and memory."""
    size = max(_CPU_BATCH, _CPU_VALUES // values) if device.type == "cpu" else _BATCH
    return max(1, min(size, _BATCH, _VALUES // values))
