"""A callback for Lightning's Trainer: label correction and calibration."""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from unflip.adapters.corrected_training import CorrectedTraining
from unflip.compute import repair_torchvision
from unflip.methods.plc import LabelCorrection

repair_torchvision()  # which Lightning imports if it is installed

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402


class LabelCorrectionCallback(Callback):
    """Trains a LightningModule on labels that are corrected, and calibrates its head.

    Before each training step, the labels in the batch are replaced by the current ones, in place. At an epoch's end the
    head is calibrated, then labels are corrected. Both are part of Lightning's checkpoints.

    Args:
        labels: a ``LabelCorrection``; read the corrected labels from it when training is over.
        head: the name of the linear layer in the LightningModule that maps features to logits.
        calibration: ``"mean"`` for MDDC, ``"covariance"`` for CDDC, None for label correction alone.
        label_key: where labels (b,) are in a batch: a position, or a key.
        index_key: where the indices (b,) of the examples are in a batch.
        features: a function that returns the features of all examples (n, d); by default those of the training pass.
        options: of ``DistributionCalibration``, such as ``head_lr``.
    """

    def __init__(
        self,
        labels: LabelCorrection,
        head: str,
        calibration: Literal["mean", "covariance"] | None = None,
        *,
        label_key: int | str = 1,
        index_key: int | str = 2,
        features: Callable[[], Tensor] | None = None,
        **options: Any,
    ) -> None:
        self.training = CorrectedTraining(labels, head, calibration, features, **options)
        self.label_key, self.index_key = label_key, index_key

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the head."""
        self.training.attach(pl_module, pl_module.device)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Replace the labels of a batch by the current ones."""
        batch[self.label_key].copy_(self.training.begin_batch(batch[self.index_key]))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the logits of a batch."""
        self.training.end_batch()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate, and correct labels."""
        self.training.end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop watching the head."""
        self.training.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self.training.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.training.load_state_dict(state_dict)
