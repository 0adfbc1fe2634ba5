"""Passes without gradients: features, logits and probabilities of many examples."""

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unflip.compute.ahead import prepared
from unflip.compute.processes import Processes
from unflip.data.sources import Source
from unflip.networks.base import bare
from unflip.networks.ensemble import Ensemble
from unflip.stats.members import NotFiniteError

_BATCH, _VALUES = 1024, 2**23  # examples, and values in them, per batch; affects only memory

_NOT_FINITE = "the network's outputs became NaN or infinite"


class Scan(NamedTuple):
    """One network's output for some examples, without augmentation, in evaluation mode."""

    features: Tensor  # (m, d)
    logits: Tensor  # (m, k)


@torch.no_grad()
def scan(
    network: nn.Module, source: Source, indices: Tensor, processes: Processes, *, keep_features: bool = True
) -> Scan:
    """Return the features and logits of the examples at ``indices``, in evaluation mode, without augmentation.

    Args:
        network: the network, which may be wrapped.
        source: inputs of all examples.
        indices: which examples (m,).
        processes: the device, and the processes that share the work.
        keep_features: if false, the features are (m, 0): they may take far more memory than the logits.
    """
    encoder = bare(network)
    was_training = encoder.training
    encoder.eval()
    count = len(indices)
    share = -(-count // processes.count)
    features = logits = None
    start = 0
    for inputs in _batches(source, indices, processes):
        batch = encoder.encode(inputs).float()
        scores = encoder.head(batch).float()
        if features is None or logits is None:
            features, logits = (
                batch.new_empty(share, batch.shape[1] if keep_features else 0),
                scores.new_empty(share, scores.shape[1]),
            )
        logits[start : start + len(batch)] = scores
        if keep_features:
            features[start : start + len(batch)] = batch
        start += len(batch)
    encoder.train(was_training)
    if features is None or logits is None:
        empty = torch.empty(0, encoder.head.in_features, device=processes.device)
        return Scan(empty, encoder.head(empty))
    features, logits = processes.interleave(features, count), processes.interleave(logits, count)
    if not bool(logits.isfinite().all()):  # after the last step of an epoch no loss would show it
        raise NotFiniteError(_NOT_FINITE)
    return Scan(features, logits)


def _batches(source: Source, indices: Tensor, processes: Processes) -> Iterator[Tensor]:
    """Yield this process's share of the inputs at ``indices``, a batch at a time."""
    share = torch.cat([indices, indices[: -len(indices) % processes.count]])[processes.rank :: processes.count]
    size = max(1, min(_BATCH, _VALUES // prod(source.shape)))
    fetches = (partial(source.fetch, share[start : start + size]) for start in range(0, len(share), size))
    yield from prepared(fetches, source.ahead)


def predict_probs(model: Ensemble, source: Source, processes: Processes, indices: Tensor | None = None) -> Tensor:
    """Return a model's class probabilities (n, k) at ``indices``, by default of all examples."""
    if indices is None:
        indices = torch.arange(len(source), device=processes.device)
    found = [model.probs(inputs) for inputs in _batches(source, indices, processes)]
    if not found:
        return torch.empty(0, bare(model.networks[0]).head.out_features, device=processes.device)
    probs = processes.interleave(torch.cat(found), len(indices))
    if not bool(probs.isfinite().all()):  # after the last step of an epoch no loss would show it
        raise NotFiniteError(_NOT_FINITE)
    return probs
