"""unflip: the vote withholds changes that it doubts, for plc and lrt too; the warm-up ends by itself."""

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

from helpers import blobs, quick_train, write_npz
from observing import Unseen
from unflip.labels.store import LabelStore
from unflip.methods.base import Method, Setting
from unflip.methods.lrt import LRT, LRTOptions
from unflip.methods.plc import PLC, warmup_end
from unflip.methods.recipes import find_recipe
from unflip.methods.unflip import Unflip, UnflipOptions


class Seen(Unseen):
    """Features in two far clusters of 20, and a network that takes all of them for class 1."""

    def __init__(self) -> None:
        cluster = torch.arange(40) // 20
        self.seen = 5.0 * cluster[:, None] + torch.randn(40, 2, generator=torch.Generator().manual_seed(0))

    @property
    def probs(self) -> Tensor:
        return torch.tensor([0.1, 0.9]).repeat(40, 1)

    def features(self, network: int = 0) -> Tensor:
        return self.seen

    def validation(self, network: int = 0) -> None:
        return None


def setting(epochs: int = 6, rows: int = 40) -> Setting:
    return Setting(2, torch.arange(rows), epochs, 0, 8, lambda epoch: 1.0, torch.device("cpu"))


def one_wrong_in_each_cluster() -> LabelStore:
    given = torch.arange(40) // 20
    given[[3, 33]] = given[[33, 3]]  # row 3 lies in cluster 0 and is called 1, row 33 the other way round
    return LabelStore(given, 2)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        (PLC(PLC.Options(warmup=1), setting()), 20),  # the network's word alone
        (PLC(PLC.Options(warmup=1, consent=True), setting()), 1),
        (LRT(LRTOptions(warmup=1), setting()), 20),
        (LRT(LRTOptions(warmup=1, consent=True), setting()), 1),
        (Unflip(UnflipOptions(warmup=1), setting()), 1),
    ],
    ids=["plc", "plc with consent", "lrt", "lrt with consent", "unflip"],
)
def test_a_change_needs_both_views(method: Method, changes: int) -> None:
    store = one_wrong_in_each_cluster()
    assert method.end_epoch(1, Seen(), store)["changed"] == changes
    assert int(store.current[33]) == 1
    assert int(store.current[3]) == 1  # wrong and stays so: the network sees nothing wrong with it


@pytest.mark.parametrize(
    "method",
    [PLC(PLC.Options(consent=True), setting()), LRT(LRTOptions(consent=True), setting())],
    ids=["plc", "lrt"],
)
def test_examples_that_did_not_train_need_both_views_too(method: Method) -> None:
    probs, votes = torch.tensor([[0.1, 0.9], [0.1, 0.9]]), torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    assert method.correct(probs, torch.tensor([0, 0]), votes).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("scores", "end"),
    [
        ([], 10),
        ([0.1, 0.2, 0.3, 0.4], 10),
        ([0.3, 0.2, 0.2, 0.1], 4),
        ([0.1, 0.3, 0.2, 0.3, 0.25], 5),  # as good is not better
        ([0.1, 0.3, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3], 8),
        ([0.5] + [0.1] * 20, 4),
    ],
)
def test_the_warm_up_ends_three_epochs_after_the_best_score(scores: list[float], end: int) -> None:
    assert warmup_end(scores, 10) == end
    assert warmup_end(scores, 2) == 2  # at the latest
    if end < 10:
        assert warmup_end(scores[: end - 1], 10) == 10  # not known before


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Blobs with a quarter of the labels wrong, and the file of those labels."""
    folder = tmp_path_factory.mktemp("noisy")
    content = blobs(train=400)
    random = np.random.default_rng(1)
    labels = content["train_labels"].copy()
    wrong = random.random(400) < 0.25
    labels[wrong] = (labels[wrong] + 1) % 3
    np.save(folder / "labels.npy", labels)
    return write_npz(folder / "blobs.npz", **content), folder / "labels.npy"


def test_it_finds_the_wrong_labels_without_any_setting(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    run = quick_train(noisy[0], tmp_path / "run", labels=noisy[1], method="unflip", epochs=12)
    result = run.result
    assert result["label_accuracy"]["given"] < 0.8
    assert result["label_accuracy"]["current"] > 0.97
    assert result["label_accuracy_all"]["current"] > 0.93  # those that validated too
    assert result["quality_auroc"] > 0.99
    assert "mean_shift" in run.metrics[-1]  # calibrated
    epochs = pyarrow.parquet.read_table(run.folder / "history.parquet")["epoch"].to_pylist()
    assert min(epochs) <= 4  # a third of them


def test_without_validation_examples_the_warm_up_lasts_a_third(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    run = quick_train(
        noisy[0],
        tmp_path / "run",
        labels=noisy[1],
        method="unflip",
        epochs=9,
        select="last",
        settings={"data.val_fraction": 0.0},
    )
    assert [line["changed"] > 0 for line in run.metrics[:3]] == [False, False, True]


def test_it_can_be_calibrated_otherwise_but_not_twice() -> None:
    assert set(find_recipe("unflip").sections) == {"unflip", "calibration", "mean"}
    assert set(find_recipe("unflip-c").sections) == {"unflip", "calibration", "covariance"}
    assert set(find_recipe("mddc-c").sections) == set(find_recipe("cddc").sections)
