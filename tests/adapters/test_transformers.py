"""Hugging Face's own Trainer with the callback, on a tiny BERT: labels that get better, checkpoints, refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import assert_same_tree
from unflip import LabelCorrection
from unflip.errors import ConfigError

pytest.importorskip("accelerate")
adapter = pytest.importorskip("unflip.adapters.transformers", exc_type=ImportError)
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the Trainer, about devices and memory
COUNT, CLASSES, WORDS = 240, 3, 40


def sentences() -> tuple[list[dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Eight words each, most of them from the third of the vocabulary that belongs to the class; a sixth wrong."""
    random = torch.Generator().manual_seed(0)
    truth = torch.arange(COUNT) % CLASSES
    words = torch.randint(3, WORDS, (COUNT, 8), generator=random)
    topic = 3 + truth[:, None] * 12 + torch.randint(12, (COUNT, 8), generator=random)
    words = torch.where(torch.rand(COUNT, 8, generator=random) < 0.9, topic, words)
    given = torch.where(torch.rand(COUNT, generator=random) < 0.16, (truth + 1) % CLASSES, truth)
    rows = [{"input_ids": ids.tolist(), "labels": int(label)} for ids, label in zip(words, given, strict=True)]
    return rows, given, truth


class Problem:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.rows, self.given, self.truth = sentences()
        self.labels = LabelCorrection(self.given, CLASSES, warmup=2, threshold=0.6)
        self.callback = adapter.LabelCorrectionCallback(self.labels, **options)
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16, num_labels=CLASSES,
        )  # fmt: skip
        self.model, self.folder = transformers.BertForSequenceClassification(config), folder

    def train(self, epochs: int, checkpoint: str | None = None, **options: Any) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(self.folder), num_train_epochs=epochs, per_device_train_batch_size=16, learning_rate=2e-3,
            lr_scheduler_type="constant", save_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
            logging_strategy="no", **({"remove_unused_columns": False} | options),
        )  # fmt: skip
        trainer = transformers.Trainer(
            self.model, arguments, train_dataset=adapter.Indexed(self.rows), eval_dataset=self.rows[:30],
            data_collator=adapter.IndexCollator(transformers.DefaultDataCollator()), callbacks=[self.callback],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer


@pytest.mark.parametrize("calibration", [None, "mean"])
def test_labels_get_better(calibration: str | None, tmp_path: Path) -> None:
    problem = Problem(tmp_path, calibration=calibration, **({"head_lr": 0.01} if calibration else {}))
    trainer = problem.train(5)
    assert (problem.given == problem.truth).float().mean() < 0.9
    assert (problem.labels.current == problem.truth).float().mean() > 0.95
    assert problem.labels.epoch == 5
    part = problem.callback.training.calibration
    assert part is None or part.steps == 3
    assert "eval_loss" in trainer.evaluate()  # of rows without an index
    assert not problem.model.classifier._forward_hooks
    assert not problem.model._forward_pre_hooks


def test_a_resumed_training_is_the_undisturbed_one(tmp_path: Path) -> None:
    options = {"calibration": "mean", "head_lr": 0.01}
    whole, first = Problem(tmp_path / "whole", **options), Problem(tmp_path / "first", **options)
    whole.train(5)
    first.train(3)
    second = Problem(tmp_path / "first", **options)
    second.train(5, checkpoint=str(tmp_path / "first" / "checkpoint-45"))
    assert_same_tree(whole.model.state_dict(), second.model.state_dict())
    assert_same_tree(whole.labels.state_dict(), second.labels.state_dict())


def test_a_trainer_that_would_drop_the_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set remove_unused_columns=False"):
        Problem(tmp_path).train(1, remove_unused_columns=True)


def test_a_batch_without_an_index_is_refused(tmp_path: Path) -> None:
    problem = Problem(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "Indexed", lambda rows: rows)
        with pytest.raises(ConfigError, match="wrap the training set in Indexed"):
            problem.train(1)


def test_the_collator_adds_the_index_and_leaves_the_rest_to_another() -> None:
    rows = adapter.Indexed([{"x": 3.0}, {"x": 4.0}, {"x": 5.0}])
    batch = adapter.IndexCollator(transformers.DefaultDataCollator())([rows[2], rows[0]])
    assert batch["index"].tolist() == [2, 0]
    assert batch["x"].tolist() == [5.0, 3.0]
    assert len(rows) == 3
    assert list(adapter.IndexCollator(transformers.DefaultDataCollator())([{"x": 1.0}])) == ["x"]
