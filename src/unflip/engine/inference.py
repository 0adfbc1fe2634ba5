"""Passes without gradients: features, logits and probabilities of many examples."""

from collections.abc import Iterator
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from unflip.data.sources import Source
from unflip.engine.distributed import Distributed
from unflip.methods.base import NetworkOutputs
from unflip.nn.base import unwrap
from unflip.nn.ensemble import Ensemble
from unflip.parallel import prefetched
from unflip.stats.rows import NotFiniteError

_BATCH, _VALUES = 1024, 2**23  # examples, and values in them, per batch
_FEW, _CACHED = 16, 2**19  # the same on a processor, whose cache should hold them: twice as fast on 32 x 32 images

_NOT_FINITE = "the network's outputs became NaN or infinite"


@torch.no_grad()
def forward(
    network: nn.Module, source: Source, indices: Tensor, processes: Distributed, *, keep_features: bool = True
) -> NetworkOutputs:
    """Return the features and logits of the examples at ``indices``, in evaluation mode, without augmentation.

    Args:
        network: the network, which may be wrapped.
        source: inputs of all examples.
        indices: which examples (m,).
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


@torch.no_grad()
def forward_batches(
    network: nn.Module, source: Source, indices: Tensor, processes: Distributed
) -> Iterator[tuple[slice, NetworkOutputs]]:
    """Yield what :func:`forward` returns batch by batch, each with its place, so that not all has to be in memory.

    Outputs that are not finite are an error after the last batch.
    """
    encoder, finite = unwrap(network), []
    was_training = encoder.training
    encoder.eval()
    try:
        for rows, inputs in _batches(source, indices, processes):
            features, size = encoder.encode(inputs).float(), rows.stop - rows.start
            logits = processes.interleave(encoder.head(features).float(), size)
            finite.append(logits.isfinite().all())
            yield rows, NetworkOutputs(processes.interleave(features, size), logits)
        _check_finite(finite)
    finally:
        encoder.train(was_training)


def _batches(source: Source, indices: Tensor, processes: Distributed) -> Iterator[tuple[slice, Tensor]]:
    """Yield this process's share of the inputs at ``indices``, a batch at a time, and which ones all processes have."""
    share = torch.cat([indices, indices[: -len(indices) % processes.count]])[processes.rank :: processes.count]
    share = share.cpu() if source.host_indices else share  # at once, so that no batch waits
    size = _batch_size(prod(source.shape), processes.device)
    fetches = (partial(source.fetch, share[start : start + size]) for start in range(0, len(share), size))
    step = size * processes.count
    for number, inputs in enumerate(prefetched(fetches, source.prefetch)):
        yield slice(number * step, min((number + 1) * step, len(indices))), inputs


def _batch_size(values: int, device: torch.device) -> int:
    """Return how many examples of ``values`` numbers go through a network at once; affects only time and memory."""
    wanted = max(_FEW, _CACHED // values) if device.type == "cpu" else _BATCH
    return max(1, min(wanted, _BATCH, _VALUES // values))


def predict_probs(model: Ensemble, source: Source, processes: Distributed, indices: Tensor | None = None) -> Tensor:
    """Return a model's class probabilities (n, k) at ``indices``, by default of all examples."""
    if indices is None:
        indices = torch.arange(len(source), device=processes.device)
    result = torch.empty(len(indices), unwrap(model.networks[0]).head.out_features, device=processes.device)
    for rows, probs in predictions(model, source, processes, indices):
        result[rows] = probs
    return result


def predictions(
    model: Ensemble, source: Source, processes: Distributed, indices: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Yield what :func:`predict_probs` returns batch by batch, each with its place."""
    finite = []
    for rows, inputs in _batches(source, indices, processes):
        probs = processes.interleave(model.probs(inputs), rows.stop - rows.start)
        finite.append(probs.isfinite().all())
        yield rows, probs
    _check_finite(finite)


def _check_finite(batches: list[Tensor]) -> None:
    """Raise if a batch was not finite: after the last step of an epoch no loss would show it.

    The device is asked once for all batches, since it has to finish its work to answer.
    """
    if batches and not bool(torch.stack(batches).all()):
        raise NotFiniteError(_NOT_FINITE)
