"""What a method observes of an epoch, for tests that choose it themselves."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from unflip.methods.base import NetworkOutputs


class Unseen:
    """Nothing may be looked at: a test's own class says what may."""

    phases_done = 0

    @property
    def probs(self) -> Tensor:
        raise AssertionError("the method looked at probs")

    def features(self, network: int = 0) -> Tensor:
        raise AssertionError("the method looked at features")

    def logits(self, network: int = 0) -> Tensor:
        raise AssertionError("the method looked at logits")

    def outputs(self, network: nn.Module, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        raise AssertionError("the method looked at outputs")

    def inputs(self, rows: Tensor) -> Tensor:
        raise AssertionError("the method looked at inputs")

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, Tensor] | None:
        raise AssertionError("the method looked at validation")

    def broadcast(self, tensor: Tensor) -> Tensor:
        raise AssertionError("the method shared a tensor")


@torch.no_grad()
def in_batches(network: nn.Module, inputs: Tensor, size: int = 7) -> Iterator[tuple[slice, Tensor]]:
    """Yield the logits of a network as `EpochOutputs.outputs` does."""
    for start in range(0, len(inputs), size):
        yield slice(start, start + size), network.eval()(inputs[start : start + size])
