"""A callback for Hugging Face's Trainer: label correction and calibration; and a collator that adds the index."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from unflip.adapters.corrected_training import CorrectedTraining
from unflip.compute import repair_torchvision
from unflip.engine.checkpoints import load_tree, save_tree
from unflip.errors import ConfigError
from unflip.methods.plc import LabelCorrection

repair_torchvision()  # which transformers imports if it is installed

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # noqa: E402

STATE_FILE = "label_correction.safetensors"
"""Labels and calibration in a checkpoint folder of the Trainer."""
_INDEX = "index"


class Indexed(Dataset[dict[str, Any]]):
    """A data set whose rows, dictionaries, also hold their ``index``; wrap the training set in it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row with its index."""
        return {**self.dataset[index], _INDEX: index}


class IndexCollator:
    """A collator that adds the indices of a batch to what another collator returns; rows without one are fine.

    Args:
        collator: the one for everything else, such as ``DataCollatorWithPadding``.
    """

    def __init__(self, collator: Callable[[list[dict[str, Any]]], Mapping[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a batch."""
        batch = dict(self.collator([{key: row[key] for key in row if key != _INDEX} for row in rows]))
        if all(_INDEX in row for row in rows):
            batch[_INDEX] = torch.tensor([row[_INDEX] for row in rows])
        return batch


class LabelCorrectionCallback(TrainerCallback):
    """Trains a classifier on labels that are corrected, and calibrates its head.

    Wrap the training set in ``Indexed`` and the collator in ``IndexCollator``, and set ``remove_unused_columns=False``.
    In training, the labels of a batch are replaced by the current ones just before the model is called; the model
    computes the loss, as usual. At an epoch's end the head is calibrated, then labels are corrected. Both are saved
    with the Trainer's checkpoints, and restored by ``resume_from_checkpoint``.

    Args:
        labels: a ``LabelCorrection``; read the corrected labels from it when training is over.
        head: the name of the model's layer that maps features (b, d) to logits (b, k).
        calibration: ``"mean"`` for MDDC, ``"covariance"`` for CDDC, None for label correction alone.
        features: a function that returns the features of all examples (n, d); by default those of the training pass.
        options: of ``DistributionCalibration``, such as ``head_lr``.
    """

    def __init__(
        self,
        labels: LabelCorrection,
        head: str = "classifier",
        calibration: Literal["mean", "covariance"] | None = None,
        *,
        features: Callable[[], Tensor] | None = None,
        **options: Any,
    ) -> None:
        self.training = CorrectedTraining(labels, head, calibration, features, **options)
        self._hooks: list[Any] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Watch the model; restore labels and calibration of a resumed training."""
        if args.remove_unused_columns:
            raise ConfigError(
                "the Trainer drops the index of examples; set remove_unused_columns=False in its arguments"
            )
        saved = _folder(args, state) / STATE_FILE
        if state.global_step and saved.exists():
            self.training.load_state_dict(load_tree(saved))
        self.training.attach(model, args.device)
        self._hooks = [
            model.register_forward_pre_hook(self._replace, with_kwargs=True),
            model.register_forward_hook(self._record),
        ]

    def _replace(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        index = kwargs.pop(_INDEX, None)
        if model.training:
            if index is None:
                raise ConfigError(
                    "batches have no index; wrap the training set in Indexed, the collator in IndexCollator"
                )
            kwargs["labels"] = self.training.begin_batch(index)
        return args, kwargs

    def _record(self, model: nn.Module, *_: Any) -> None:
        if model.training:
            self.training.end_batch()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Calibrate, and correct labels."""
        self.training.end_epoch()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save labels and calibration beside the model."""
        if state.is_world_process_zero:
            save_tree(_folder(args, state) / STATE_FILE, self.training.state_dict())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop watching the model."""
        self.training.detach()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
