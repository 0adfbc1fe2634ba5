"""Lightning's own Trainer with the callback: what it does in a step, labels that get better, checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from helpers import assert_same_tree, blobs
from unflip import LabelCorrection
from unflip.errors import ConfigError

pytest.importorskip("lightning_fabric")
callbacks = pytest.importorskip("unflip.adapters.lightning", exc_type=ImportError)
lightning = pytest.importorskip("lightning.pytorch")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's, about workers, devices and progress


class Classifier(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)
        self.seen: list[Tensor] = []

    def training_step(self, batch: Any, number: int) -> Tensor:
        inputs, labels, _ = batch
        self.seen.append(labels.clone())
        return F.cross_entropy(self.head(self.encoder(inputs)), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class Problem:
    """Three blobs; a fifth of the labels is wrong. A callback, and a trainer in a folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        content = blobs(train=300)
        self.inputs, self.truth = (torch.from_numpy(content[name]) for name in ("train", "train_labels"))
        self.given = torch.where(torch.arange(300) % 5 == 0, (self.truth + 1) % 3, self.truth)
        self.labels = LabelCorrection(self.given, 3, warmup=2, threshold=0.6)
        self.callback = callbacks.LabelCorrectionCallback(self.labels, **({"head": "head"} | options))
        torch.manual_seed(0)
        self.module, self.folder = Classifier(), folder

    def fit(self, epochs: int, checkpoint: str | None = None) -> str:
        keep = lightning.callbacks.ModelCheckpoint(self.folder, save_last=True)
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", callbacks=[self.callback, keep], logger=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=self.folder,
        )  # fmt: skip
        data = TensorDataset(self.inputs, self.given.clone(), torch.arange(300))
        trainer.fit(
            self.module, DataLoader(data, 32), ckpt_path=checkpoint, **({"weights_only": False} if checkpoint else {})
        )
        return str(keep.last_model_path)


@pytest.mark.parametrize("calibration", [None, "mean", "covariance"])
def test_labels_get_better_and_the_module_trains_on_them(calibration: str | None, tmp_path: Path) -> None:
    problem = Problem(tmp_path, calibration=calibration, **({"head_lr": 0.05} if calibration else {}))
    problem.fit(6)
    assert (problem.labels.current == problem.truth).float().mean() > 0.95
    assert torch.cat(problem.module.seen[:10]).equal(problem.given)
    assert not torch.cat(problem.module.seen[-10:]).equal(problem.given)
    assert problem.labels.epoch == 6
    part = problem.callback.training.calibration
    assert (part is None) == (calibration is None)
    assert part is None or part.steps == 4
    assert not problem.module.head._forward_hooks


def test_a_resumed_training_is_the_undisturbed_one(tmp_path: Path) -> None:
    options = {"calibration": "mean", "head_lr": 0.05}
    whole, first, second = (Problem(tmp_path / name, **options) for name in ("whole", "first", "second"))
    whole.fit(6)
    second.fit(6, checkpoint=first.fit(4))
    assert_same_tree(whole.module.state_dict(), second.module.state_dict())
    assert_same_tree(whole.labels.state_dict(), second.labels.state_dict())


def test_features_of_ones_own_take_the_place_of_recorded_ones(tmp_path: Path) -> None:
    problem = Problem(tmp_path, calibration="mean")
    problem.callback.training.features = lambda: problem.module.encoder(problem.inputs)
    problem.fit(3)
    gaussians = problem.callback.training.calibration.gaussians
    assert gaussians.means.shape == (3, 16)


def test_a_head_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown head .classifier.; choose from: encoder\.0, head"):
        Problem(tmp_path, head="classifier").fit(1)


def test_a_head_that_is_not_called_is_an_error(tmp_path: Path) -> None:
    problem = Problem(tmp_path, head="spare")
    problem.module.spare = nn.Linear(2, 3)
    with pytest.raises(ConfigError, match="the layer 'spare' was not called in this step"):
        problem.fit(1)
