"""Warm-ups that end when noisy validation says so, of every method that corrects labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from epoch_outputs import Unseen
from helpers import Crash, assert_same_run, blobs, crash_after, quick_train, write_npz
from unflip.methods.base import LabelStore, NetworkOutputs, TrainContext
from unflip.methods.lrt import LRT, LRTOptions
from unflip.methods.plc import PLC, Warmup

CORRECTING = ("plc", "mddc", "cddc", "lrt")
SECTION = {"lrt": "lrt"}


class Scored(Unseen):
    """Two validation examples, of which ``right`` are as labeled; the training probabilities are ``seen``."""

    def __init__(self, right: int, seen: torch.Tensor | None = None) -> None:
        self.right, self.seen = right, seen

    @property
    def probs(self) -> torch.Tensor:
        assert self.seen is not None
        return self.seen

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, torch.Tensor]:
        given = torch.tensor([0 if self.right > 0 else 1, 0 if self.right > 1 else 1])
        return NetworkOutputs(torch.zeros(2, 0), torch.tensor([[1.0, 0.0, 0.0]] * 2)), given


@pytest.mark.parametrize(
    ("rights", "end"),
    [
        ((0, 0, 1, 2), 10),
        ((2, 1, 1, 0), 4),
        ((0, 1, 0, 1, 0), 5),  # as good is not better
        ((0, 1, 0, 0, 2, 1, 1, 1), 8),
        ((2,) + (0,) * 20, 4),
    ],
)
def test_the_warm_up_ends_three_epochs_after_the_best_score(rights: tuple[int, ...], end: int) -> None:
    warmup, short = Warmup("auto", 30), Warmup("auto", 6)
    for epoch, right in enumerate(rights, 1):
        assert warmup.end == (10 if epoch <= end else end)  # not known before
        warmup.observe(epoch, Scored(right))
        short.observe(epoch, Scored(right))
    assert warmup.end == end
    assert short.end == 2  # at the latest


def test_a_warm_up_of_given_length_looks_at_nothing() -> None:
    warmup = Warmup(0, 9)
    warmup.observe(1, Unseen())
    assert warmup.end == 1
    assert Warmup(4, 9).end == 4


def test_scores_are_noisy_validation_accuracies_and_those_after_the_end_do_not_count() -> None:
    warmup = Warmup("auto", 30)
    for epoch, right in enumerate((1, 2, 1, 0, 1, 2, 2), 1):
        warmup.observe(epoch, Scored(right))
    assert warmup.scores == [0.5, 1.0, 0.5, 0.0, 0.5]
    assert warmup.end == 5


@pytest.mark.parametrize(
    ("rights", "retro", "first"),
    [
        ((1, 0, 0, 0, 0, 0), 4, 4),  # the end comes before the loss could start five epochs before epoch 10
        ((0, 0, 0, 1, 1, 1, 1, 1), 5, 7),  # started for an end at 10, which came earlier
    ],
)
def test_lrt_starts_its_retroactive_loss_with_correction_at_the_latest(
    rights: tuple[int, ...], retro: int, first: int
) -> None:
    context = TrainContext(2, torch.arange(1), 30, 0, 8, lambda epoch: 1.0, torch.device("cpu"))
    method = LRT(LRTOptions(warmup="auto"), context)
    labels = LabelStore(torch.zeros(1, dtype=torch.long), 2)
    begun, changed, deltas = [], [], []
    for epoch, right in enumerate(rights, 1):
        figures = method.end_epoch(epoch, Scored(right, torch.tensor([[0.1, 0.9]])), labels)
        begun.append(method.updated_epoch)
        changed.append(figures["changed"])
        deltas.append(figures["threshold"])
    assert begun == [None] * (retro - 1) + [retro] * (len(rights) - retro + 1)
    assert changed == [int(epoch == first) for epoch in range(1, len(rights) + 1)]
    assert deltas[first - 1 :] == pytest.approx([1.2 + 0.02 * i for i in range(len(rights) - first + 1)])


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs()
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.mark.parametrize("method", CORRECTING)
def test_without_validation_examples_an_automatic_warm_up_lasts_a_third(
    method: str, noisy: Path, tmp_path: Path
) -> None:
    settings = {f"{SECTION.get(method, 'plc')}.warmup": "auto", "data.val_fraction": 0.0}
    run = quick_train(noisy, tmp_path / "run", method=method, epochs=9, select="last", settings=settings)
    assert [line["changed"] > 0 for line in run.metrics[:3]] == [False, False, True]


def test_a_resumed_automatic_warm_up_is_the_undisturbed_one(
    noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"method": "lrt", "epochs": 15, "settings": {"lrt.warmup": "auto"}}
    whole = quick_train(noisy, tmp_path / "whole", **options)
    first = int(np.argmax([line["changed"] > 0 for line in whole.metrics])) + 1
    assert 3 < first < 15 // 3 + 1
    crash_after(monkeypatch, first - 1)
    with pytest.raises(Crash):
        quick_train(noisy, tmp_path / "cut", **options)
    monkeypatch.undo()
    assert_same_run(whole, quick_train(noisy, tmp_path / "cut", resume=True, **options))


def test_a_run_resumed_for_more_epochs_does_not_warm_up_again(noisy: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "lrt", "settings": {"lrt.warmup": "auto"}}
    quick_train(noisy, tmp_path / "run", epochs=6, **options)
    longer = quick_train(noisy, tmp_path / "run", epochs=20, resume=True, **options)
    thresholds = [line["threshold"] for line in longer.metrics]
    assert thresholds == pytest.approx([1.2, *(1.2 + 0.02 * i for i in range(19))])  # from epoch 2 on


def test_what_has_ended_stays_ended_in_a_longer_run() -> None:
    short, longer = Warmup("auto", 6), Warmup("auto", 60)
    for epoch in (1, 2, 3):
        short.observe(epoch, Scored(2))
    longer.load_state_dict(short.state_dict())
    assert (short.end, longer.end, longer.scores) == (2, 2, [1.0, 1.0])
    longer.observe(4, Scored(2))
    assert (longer.end, longer.scores) == (2, [1.0, 1.0])


@pytest.mark.parametrize("kind", [PLC, LRT])
def test_a_restored_method_has_its_warm_up(kind: type[PLC] | type[LRT]) -> None:
    context = TrainContext(2, torch.arange(1), 30, 0, 8, lambda epoch: 1.0, torch.device("cpu"))
    method, other = (kind(kind.Options(warmup="auto"), context) for _ in range(2))  # type: ignore[arg-type]
    for epoch, right in enumerate((2, 1, 1, 0), 1):
        method.end_epoch(epoch, Scored(right, torch.tensor([[0.9, 0.1]])), LabelStore(torch.tensor([0]), 2))
    assert (method.warmup, other.warmup) == (4, 10)
    other.load_state_dict(method.state_dict())
    assert other.warmup == 4


def test_only_an_automatic_warm_up_that_has_not_ended_is_open() -> None:
    warmup, fixed = Warmup("auto", 30), Warmup(4, 30)
    assert (warmup.is_open, fixed.is_open) == (True, False)
    assert (warmup.state_dict()["ended"], fixed.state_dict()["ended"]) == (None, 4)
    for epoch, right in enumerate((2, 1, 1), 1):
        warmup.observe(epoch, Scored(right))
    restored = Warmup("auto", 30)
    restored.load_state_dict(warmup.state_dict())
    assert (restored.is_open, restored.end) == (True, 10)
    restored.observe(4, Scored(1))
    assert (restored.is_open, restored.end) == (False, 4)
    again = Warmup("auto", 30)
    again.load_state_dict(restored.state_dict())
    assert (again.is_open, again.end) == (False, 4)
