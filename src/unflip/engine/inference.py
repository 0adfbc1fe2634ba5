"""Inference without gradients: features, logits and class probabilities of many examples."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from unflip.compute import prefetched
from unflip.data.sources import Source
from unflip.engine.distributed import Distributed
from unflip.methods.base import NetworkOutputs
from unflip.nn.base import Ensemble, unwrap
from unflip.stats.gaussians import NotFiniteError

_BATCH, _VALUES = 1024, 2**23  # maximum number of examples, and of input values, per batch
_CPU_BATCH, _CPU_VALUES = 16, 2**19  # the same on a CPU, to fit its cache: twice as fast on 32 x 32 images


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
