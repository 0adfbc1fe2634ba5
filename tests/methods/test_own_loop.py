"""The parts for a loop of one's own: the same labels and weights as our loop, states, devices, what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import own_loop
from epoch_outputs import Unseen
from helpers import assert_same_tree, blobs, capture_trainers, quick_train, spawn_python, write_npz
from unflip import DistributionCalibration, LabelCorrection, LabelStore, find_label_errors
from unflip.compute import generator
from unflip.engine.trainer import shuffled
from unflip.errors import ConfigError, InputError
from unflip.methods.base import TrainContext
from unflip.methods.lrt import LRT, LRTOptions
from unflip.methods.mddc import MeanCalibrator, MeanOptions
from unflip.nn.base import build_network, initial_seed, unwrap
from unflip.nn.mlp import MLPOptions

COUNT, CLASSES, DIMS = 60, 3, 5


@pytest.mark.parametrize(("method", "kind"), [("plc", None), ("mddc", "mean"), ("cddc", "covariance")])
def test_a_loop_of_ones_own_ends_with_the_labels_and_weights_of_ours(
    method: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = blobs(train=300)
    content["train_labels"][::3] = (content["train_labels"][::3] + 1) % 3
    path = write_npz(tmp_path / "data.npz", **content)
    trainers = capture_trainers(monkeypatch)
    settings = {"data.val_fraction": 0.0, "plc.warmup": 2, "optimizer.batch_size": 128, "optimizer.lr": 0.05}
    settings |= {"calibration.head_lr": 0.05} if kind else {}
    quick_train(path, tmp_path / "run", method=method, epochs=6, seed=7, select="last", settings=settings)
    (ours,) = trainers
    ours_network = unwrap(ours.networks[0])
    hidden = (ours_network.head.in_features,)
    network = build_network("mlp", MLPOptions(hidden=hidden), (6,), CLASSES, initial_seed(7, 0))
    rows = torch.arange(300)
    labels = own_loop.train(
        network, ours.source.fetch(rows), ours.labels.given, kind,
        lambda epoch: shuffled(rows, generator(7, "order", epoch, 0)), 6, 2, jitter=0.0, lr=0.05, seed=7,
    )  # fmt: skip
    assert_same_tree(network.state_dict(), ours_network.state_dict())
    assert torch.equal(labels.current, ours.labels.current)
    assert_same_tree(labels.history(), ours.labels.history())
    assert len(labels.history()["index"]) > 30


def some_epochs(count: int = 4, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(COUNT, CLASSES, generator=random) for _ in range(count)]


def fed(labels: LabelCorrection, epochs: list[Tensor], sizes: int = 7) -> list[int]:
    changed = []
    for number, logits in enumerate(epochs):
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(number))
        for index in order.split(sizes):
            labels.record(index, logits[index])
        changed.append(labels.step())
    return changed


def recorded(labels: LabelCorrection, index: Tensor) -> LabelCorrection:
    labels.record(index, torch.zeros(len(index), CLASSES))
    return labels


def make(**options: Any) -> LabelCorrection:
    return LabelCorrection(torch.arange(COUNT) % CLASSES, CLASSES, **({"warmup": 2} | options))


def test_labels_first_change_at_the_end_of_the_warm_up_and_calibration_begins_after_it() -> None:
    labels = make(warmup=3, threshold=0.9)
    seen = [(labels.correcting, fed(labels, [logits])[0] > 0) for logits in some_epochs(5)]
    assert seen == [(False, False), (False, False), (False, True), (True, True), (True, True)]
    assert set(labels.history()["epoch"].tolist()) == {3, 4, 5}


def test_epochs_are_counted_from_zero_and_the_count_is_restored() -> None:
    labels, other = make(), make()
    counts = [labels.epoch]
    for logits in some_epochs(3):
        fed(labels, [logits])
        counts.append(labels.epoch)
    assert counts == [0, 1, 2, 3]
    other.load_state_dict(labels.state_dict())
    assert (other.epoch, other.correcting) == (3, True)
    fed(other, some_epochs(1, seed=1))
    assert other.epoch == int(other.history()["epoch"].max()) == 4


def test_the_order_and_size_of_batches_do_not_matter() -> None:
    one, other = make(), make()
    assert fed(one, some_epochs(), 7) == fed(other, some_epochs(), 60)
    assert_same_tree(one.state_dict(), other.state_dict())


def test_an_example_that_was_left_out_keeps_its_last_probabilities() -> None:
    labels, rows = make(warmup=1, window=1), torch.arange(COUNT)
    labels.record(rows, F.one_hot((rows + 1) % CLASSES, CLASSES).float() * 9)
    assert labels.step() == COUNT
    labels.record(rows[:40], F.one_hot(rows[:40] % CLASSES, CLASSES).float() * 9)
    assert labels.step() == 40
    assert labels.current[40:].tolist() == ((rows[40:] + 1) % CLASSES).tolist()


def test_an_example_that_an_epoch_leaves_out_counts_as_in_the_epoch_before() -> None:
    first, second, third = some_epochs(3)
    partly, whole, rest = make(window=3), make(window=3), torch.arange(20, COUNT)
    for labels in (partly, whole):
        fed(labels, [first, second])
    partly.record(rest, third[rest])
    whole.record(torch.arange(COUNT), torch.cat([second[:20], third[20:]]))
    for labels in (partly, whole):
        labels.step()
    quality = whole.to_frame()["label_quality"].to_numpy()
    assert partly.to_frame()["label_quality"].to_numpy() == pytest.approx(quality, rel=1e-5)


def test_an_example_that_was_never_seen_keeps_its_label() -> None:
    for rule in ("ratio", "margin"):
        labels = make(warmup=1, rule=rule)
        labels.record(torch.arange(1), torch.tensor([[0.0, 9.0, 0.0]]))
        assert labels.step() == 1
        assert labels.current[1:].equal(labels.given[1:])


def test_a_saved_state_continues_as_if_nothing_had_happened() -> None:
    whole, first, second = make(), make(), make()
    epochs = some_epochs(6)
    fed(whole, epochs)
    fed(first, epochs[:3])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number, logits in enumerate(epochs[3:], 3):
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(number))
        second.record(order, logits[order])
        second.step()
    assert_same_tree(whole.state_dict(), second.state_dict())


def test_reviewed_labels_never_change() -> None:
    reviewed = torch.full((COUNT,), -1)
    reviewed[:5] = 2
    labels = make(reviewed=reviewed, warmup=1)
    fed(labels, some_epochs())
    assert labels.current[:5].tolist() == [2] * 5


class Probs(Unseen):
    def __init__(self, probs: Tensor) -> None:
        self.seen = probs

    @property
    def probs(self) -> Tensor:
        return self.seen


def test_with_the_schedule_of_lrt_labels_are_those_of_the_method() -> None:
    context = TrainContext(CLASSES, torch.arange(COUNT), 9, 0, 8, lambda epoch: 1.0, torch.device("cpu"))
    method, store = LRT(LRTOptions(warmup=3, window=10, delta=1.2, delta_step=0.5), context), make()
    labels = make(warmup=3, window=10, schedule=lambda n: 1 / (1.2 + 0.5 * n))
    for epoch, logits in enumerate(some_epochs(7), 1):
        method.end_epoch(epoch, Probs(logits.softmax(1)), store)
        fed(labels, [logits])
        assert labels.current.equal(store.current)
    assert_same_tree(labels.history(), store.history())
    assert {3, 4} <= set(store.history()["epoch"].tolist())


def test_labels_as_a_table_have_their_history() -> None:
    labels = LabelStore(torch.tensor([0, 1, 1, 0]), 2, reviewed=torch.tensor([-1, -1, -1, 1]))
    labels.change(2, torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.75, 0.5]))
    labels.change(4, torch.tensor([0]), torch.tensor([0]), torch.tensor([0.25]))
    frame = labels.to_frame()
    assert frame.fillna(-1).to_dict("list") == {
        "index": [0, 1, 2, 3],
        "given_label": [0, 1, 1, 0],
        "current_label": [0, 0, 1, 1],
        "suggested_label": [0, 0, 1, 1],
        "changed": [False, True, False, True],
        "prob_current": [0.25, 0.5, -1, -1],
        "n_changes": [2, 1, 0, 0],
        "last_changed_epoch": [4, 2, 0, 0],
        "reviewed": [False, False, False, True],
    }
    assert LabelStore(torch.tensor([1]), 2).to_frame()["n_changes"].tolist() == [0]


def test_the_quality_of_labels_is_that_of_the_mean_probabilities() -> None:
    labels, epochs = make(warmup=2, window=3), some_epochs()
    assert labels.to_frame()["label_quality"].isna().all()
    fed(labels, epochs)
    probs = torch.stack([logits.softmax(1) for logits in epochs[-3:]]).mean(0)
    expected = find_label_errors(labels=labels.given.numpy(), pred_probs=probs.numpy()).ranked.sort_values("index")
    assert labels.to_frame()["label_quality"].to_numpy() == pytest.approx(
        expected["label_quality"].to_numpy(), rel=1e-4
    )


def test_without_pandas_the_table_is_that_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unflip.methods.base.find_spec", lambda name: None)
    assert LabelStore(torch.tensor([1, 0]), 2).to_frame()["given_label"].to_pylist() == [1, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make(rul="ratio"), "unknown option 'rul', did you mean 'rule'"),
        (lambda: make(threshold=2.0), "threshold = 2.0: must be less than 1"),
        (lambda: LabelCorrection(torch.tensor([0, 5]), 3), "row 1 holds class 5"),
        (lambda: make().step(), "nothing was recorded in this epoch"),
        (lambda: recorded(make(), torch.tensor([0, COUNT])).step(), f"index: 0 to {COUNT}; expected rows from 0 to"),
        (lambda: make().record(torch.arange(3), torch.zeros(2, 3)), r"index \(3,\) and values \(2, 3\)"),
        (lambda: make().record(torch.arange(2), torch.zeros(2, 4)), r"logits have shape \(2, 4\); expected \(b, 3\)"),
        (lambda: calibration(kind="median"), "unknown kind 'median'"),
        (lambda: calibration(disturbanc=0.1, kind="covariance"), "did you mean 'disturbance'"),
        (lambda: calibration(sample_fractoin=0.1), "did you mean 'sample_fraction'"),
        (lambda: calibration(kind=MeanCalibrator(MeanOptions()), damping=2.0), "unknown option 'damping'"),
        (lambda: calibration(damping=0.0), "damping = 0.0: must be greater than 0"),
        (lambda: calibration().step(torch.zeros(3).long(), torch.zeros(2, DIMS)), r"shape \(2, 5\); expected \(3, d\)"),
        (
            lambda: calibration(sample_fraction="auto").step(torch.arange(6) % 2, torch.randn(6, DIMS)),
            "'auto' needs validation=",
        ),
    ],
)
def test_what_cannot_work_is_said_in_one_line(call: Any, message: str) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        call()


def calibration(seed: int = 0, **options: Any) -> DistributionCalibration:
    torch.manual_seed(seed)
    return DistributionCalibration(nn.Linear(DIMS, CLASSES), CLASSES, **({"head_lr": 0.1} | options))


def weights(part: DistributionCalibration) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in part.head.state_dict().items()}


FEATURES, LABELS = torch.randn(COUNT, DIMS, generator=torch.Generator().manual_seed(5)), torch.arange(COUNT) % CLASSES


def test_features_may_be_a_tensor_a_function_or_recorded() -> None:
    halves = FEATURES.half()
    one, other, third = calibration(), calibration(), calibration()
    one.step(LABELS, halves)
    other.step(LABELS, features=lambda: halves)
    for index in torch.randperm(COUNT).split(7):
        third.record(index, FEATURES[index])
    third.step(LABELS)
    assert_same_tree(weights(one), weights(other))
    assert_same_tree(weights(one), weights(third))


def test_what_was_not_recorded_is_left_out() -> None:
    one, other = calibration(), calibration()
    one.step(LABELS[:40], FEATURES[:40].half())
    other.record(torch.arange(40), FEATURES[:40])
    other.step(LABELS)
    assert_same_tree(weights(one), weights(other))


@pytest.mark.parametrize("options", [{}, {"kind": "covariance", "disturbance": "auto", "sample_fraction": "auto"}])
def test_a_saved_calibration_continues_as_if_nothing_had_happened(options: dict[str, Any]) -> None:
    whole, first = calibration(**options), calibration(**options)
    validation = FEATURES[:20], LABELS[:20]
    for part, steps in ((whole, 4), (first, 2)):
        for number in range(steps):
            part.step(LABELS, FEATURES + number, validation=validation)
    second = calibration(seed=9, **options)
    second.head.load_state_dict(first.head.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in (2, 3):
        second.step(LABELS, FEATURES + number, validation=lambda: validation)
    assert_same_tree(weights(whole), weights(second))
    assert whole.scores == second.scores


def test_samples_derive_from_the_number_of_the_step_unless_an_epoch_is_given() -> None:
    counted, named, same, other = calibration(), calibration(), calibration(), calibration(position=1)
    for step in (1, 2):
        counted.step(LABELS, FEATURES)
        named.step(LABELS, FEATURES, epoch=step)
        same.step(LABELS, FEATURES, epoch=1)
        other.step(LABELS, FEATURES)
    assert_same_tree(weights(counted), weights(named))
    for part in (same, other):  # nor do several heads get the same
        assert not torch.equal(weights(counted)["weight"], weights(part)["weight"])


def test_there_is_a_sample_of_every_class_however_small_the_fraction() -> None:
    part, other = calibration(sample_fraction=1e-6), calibration(sample_fraction=CLASSES / COUNT)
    for each in (part, other):
        each.step(LABELS, FEATURES)
    assert_same_tree(weights(part), weights(other))
    assert not torch.equal(weights(part)["weight"], weights(calibration())["weight"])


def test_scores_are_those_of_the_restored_state() -> None:
    part = calibration(sample_fraction="auto")
    start = copy.deepcopy(part.state_dict())
    part.step(LABELS, FEATURES, validation=(FEATURES, LABELS))
    assert len(part.scores) == 4
    part.load_state_dict(start)
    assert part.scores == {}


def test_the_optimizer_is_open_to_a_schedule_and_candidates_leave_it_alone() -> None:
    part = calibration(sample_fraction="auto", optimizer=None)
    schedule = torch.optim.lr_scheduler.LambdaLR(part.optimizer, lambda done: 0.0 if done else 1.0)
    before = weights(part)
    part.step(LABELS, FEATURES, validation=(FEATURES, LABELS))
    schedule.step()
    moved = weights(part)
    part.step(LABELS, FEATURES, validation=(FEATURES, LABELS))
    assert not torch.equal(before["weight"], moved["weight"])
    assert_same_tree(moved, weights(part))
    assert all(weight.grad is None for weight in part.head.parameters())


def test_only_the_head_learns_and_gradients_need_not_be_on() -> None:
    encoder, part = nn.Linear(4, DIMS), calibration()
    before, head = copy.deepcopy(encoder.state_dict()), weights(part)
    inputs = torch.randn(COUNT, 4)
    with torch.no_grad():
        part.step(LABELS, lambda: encoder(inputs))
    assert_same_tree(before, encoder.state_dict())
    assert not torch.equal(head["weight"], weights(part)["weight"])


def test_two_processes_correct_and_calibrate_as_one(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "support" / "own_loop_processes.py"
    done = spawn_python(script, tmp_path / "verdict.json", timeout=300)
    assert done.code == 0, done.err
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict == {"processes": 2, "labels": True, "head": True, "as_one": True, "controls": True, "elr": True}
