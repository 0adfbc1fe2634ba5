"""Averaged: the running mean of weights, which says more than the last weights do."""

import copy

import torch
from torch import Tensor, nn

from unflip.nn.base import Members


class Averaged:
    """The running mean of members' weights and batch-norm statistics.

    After step t a value moves ``1 - min(decay, t / (t + 10))`` of the way to the present one, so that the first steps
    fade soon (Polyak and Juditsky 1992; the exponential form of Tarvainen and Valpola 2017).
    """

    def __init__(self, members: Members, decay: float) -> None:
        self.members = copy.deepcopy(members).requires_grad_(requires_grad=False).eval()
        self.decay = decay
        self.steps = 0

    @torch.no_grad()
    def update(self, members: Members) -> None:
        """Move towards the members' present weights."""
        self.steps += 1
        kept = min(self.decay, self.steps / (self.steps + 10))
        own, theirs = list(_values(self.members)), list(_values(members))
        torch._foreach_lerp_(own, theirs, 1 - kept)


def _values(module: nn.Module) -> list[Tensor]:
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    return [parameter.data for parameter in module.parameters()] + buffers
