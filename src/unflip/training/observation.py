"""Observation: what the trainer observed in one epoch, for the method to read."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unflip.compute.passes import Scan, scan
from unflip.nn.base import bare
from unflip.training.epoch_progress import EpochProgress

if TYPE_CHECKING:
    from unflip.training.trainer import Trainer


class Observation:
    """What the trainer observed in one epoch; see :class:`unflip.methods.base.Observed`."""

    def __init__(self, trainer: "Trainer", progress: EpochProgress) -> None:
        self._trainer = trainer
        self._progress = progress
        self.phases_done = progress.phase
        self._features: dict[int, Tensor] = {}

    def record(self, order: Tensor, recorded: Tensor) -> None:
        """Keep the probabilities that this process recorded in a pass which visited the examples in ``order``."""
        train = self._trainer.method.setting.train
        position = torch.empty(len(self._trainer.labels), dtype=torch.long, device=train.device)
        position[train] = torch.arange(len(train), device=train.device)
        before = self._progress.probs
        # a copy: the method may have kept the tensor of an earlier phase
        self._progress.probs = recorded.new_zeros(len(train), recorded.shape[1]) if before is None else before.clone()
        self._progress.probs[position[order]] = self._trainer.processes.interleave(recorded, len(order))

    @property
    def probs(self) -> Tensor:
        """Softmax of the training passes."""
        if self._progress.probs is None:
            raise RuntimeError(f"{type(self._trainer.method).__name__} reads probs without records_probs = True")
        return self._progress.probs

    def features(self, network: int = 0) -> Tensor:
        """Features of the training examples, cached until the networks are trained again."""
        if network not in self._features:
            self._features[network] = self._scan(
                self._trainer.networks[network], self._trainer.method.setting.train
            ).features
        return self._features[network]

    def logits(self, network: int = 0) -> Tensor:
        """Logits of the training examples from the current head, without keeping the features."""
        if network not in self._features:
            return self.outputs(self._trainer.networks[network], self._trainer.method.setting.train)
        with torch.no_grad():  # calibration trains heads between phases
            logits: Tensor = bare(self._trainer.networks[network]).head(self._features[network])
            return logits.float()

    def validation(self, network: int = 0) -> tuple[Scan, Tensor] | None:
        """Features, logits and given labels of the validation examples."""
        rows = self._trainer.val_rows
        if not len(rows):
            return None
        return self._scan(self._trainer.networks[network], rows), self._trainer.labels.initial[rows]

    def outputs(self, network: nn.Module, rows: Tensor) -> Tensor:
        """Logits of any network."""
        return self._scan(network, rows, keep_features=False).logits

    def inputs(self, rows: Tensor) -> Tensor:
        """Inputs without augmentation."""
        return self._trainer.source.fetch(rows)

    def forget_features(self) -> None:
        """Drop cached features after a phase has changed the networks."""
        self._features = {}

    def _scan(self, network: nn.Module, rows: Tensor, *, keep_features: bool = True) -> Scan:
        trainer = self._trainer
        return scan(network, trainer.source, rows, trainer.processes, keep_features=keep_features)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor."""
        return self._trainer.processes.broadcast(tensor)
