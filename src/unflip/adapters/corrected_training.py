"""Label correction and calibration by a hook on a network's head: what the callbacks of all trainers share."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unflip.errors import ConfigError, unknown
from unflip.methods.mddc import DistributionCalibration
from unflip.methods.plc import LabelCorrection


class CorrectedTraining:
    """The steps of Algorithm 2 around the training loop of another library.

    A hook on the head sees features and logits of the training pass, so the network needs no change.

    Args:
        labels: the labels to train on and to correct.
        head: the name of the layer that maps features (b, d) to logits (b, k), such as ``"model.fc"``.
        calibration: ``"mean"`` for MDDC, ``"covariance"`` for CDDC, None for label correction alone.
        features: a function that returns the features of all examples (n, d) at an epoch's end; by default those of the
            training pass are used.
        options: of ``DistributionCalibration``, such as ``head_lr``.
    """

    def __init__(
        self,
        labels: LabelCorrection,
        head: str,
        calibration: Literal["mean", "covariance"] | None = None,
        features: Callable[[], Tensor] | None = None,
        **options: Any,
    ) -> None:
        self.labels, self.head, self.kind, self.features, self.options = labels, head, calibration, features, options
        self.calibration: DistributionCalibration | None = None
        self._hooks: list[Any] = []
        self._index: Tensor | None = None
        self._outputs: tuple[Tensor, Tensor] | None = None
        self._saved: dict[str, Any] | None = None

    def attach(self, network: nn.Module, device: torch.device) -> None:
        """Watch the head of a network that is about to be trained on a device."""
        layers = dict(network.named_modules())
        if self.head not in layers:
            linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
            raise ConfigError(unknown("head", self.head, linear))
        layer = layers[self.head]
        self.labels.to(device)
        if self.kind is not None and (self.calibration is None or self.calibration.head is not layer):
            self.calibration = DistributionCalibration(layer, self.labels.num_classes, self.kind, **self.options)
        if self._saved is not None:
            self.labels.load_state_dict(self._saved["labels"])
            if self.calibration is not None:
                self.calibration.load_state_dict(self._saved["calibration"])
            self._saved = None
        self._hooks = [layer.register_forward_hook(self._watch)]

    def detach(self) -> None:
        """Remove the hook."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _watch(self, layer: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        if layer.training:
            self._outputs = inputs[0].detach(), logits.detach()

    def begin_batch(self, index: Tensor) -> Tensor:
        """Return the labels to train on for the rows ``index`` (b,)."""
        self._index = index
        return self.labels[index]

    def end_batch(self) -> None:
        """Record what the head saw."""
        if self._outputs is None or self._index is None:
            raise ConfigError(f"the layer '{self.head}' was not called in this step; head= names another one")
        features, logits = self._outputs
        self.labels.record(self._index, logits)
        if self.calibration is not None and self.features is None and self.labels.correcting:
            self.calibration.record(self._index, features)
        self._index = self._outputs = None

    def end_epoch(self) -> int:
        """Calibrate the head, correct labels for the next epoch, and return the number of labels that changed."""
        if self.calibration is not None and self.labels.correcting:
            self.calibration.step(self.labels.current, self.features, epoch=self.labels.epoch + 1)
        return self.labels.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of labels and calibration."""
        calibration = None if self.calibration is None else self.calibration.state_dict()
        return {"labels": self.labels.state_dict(), "calibration": calibration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state when training begins, once the network is on its device."""
        self._saved = state
