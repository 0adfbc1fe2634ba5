"""unflip for images: members are trained on all of them, and each on what the others predict."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from epoch_outputs import Unseen, in_batches
from helpers import Crash, assert_same_run, blobs, crash_at_save, quick_train, write_npz
from unflip.methods import find_method
from unflip.methods.base import Batch, LabelStore, TrainContext
from unflip.methods.unflip import pixels as module
from unflip.methods.unflip.method import Unflip, UnflipOptions
from unflip.methods.unflip.pixels import PixelUnflip
from unflip.methods.unflip.posterior import posterior
from unflip.nn.backbone import Pretrained, PretrainedOptions
from unflip.nn.base import build_network
from unflip.nn.mlp import MLPOptions
from unflip.stats.discriminant import SHRINKS, fit_discriminant, leave_group_out_log_posterior
from unflip.stats.odds import pool

CLASSES, COUNT, EPOCHS = 3, 60, 8


class Seen(Unseen):
    """Small images of three kinds."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self.truth = torch.arange(COUNT) % CLASSES
        centers = torch.eye(12)[self.truth].view(COUNT, 3, 2, 2)
        self.images = 1.5 * centers + torch.randn(COUNT, 3, 2, 2, generator=random)

    def outputs(self, network: nn.Module, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        return in_batches(network, self.images[rows])

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


def some_labels(seen: Seen) -> LabelStore:
    given = seen.truth.clone()
    given[::4] = (given[::4] + 1) % CLASSES
    reviewed = torch.full_like(given, -1)
    reviewed[:2] = seen.truth[:2]
    return LabelStore(given, CLASSES, reviewed)


def make(groups: Tensor | None = None, **options: Any) -> PixelUnflip:
    context = TrainContext(
        CLASSES, torch.arange(COUNT), EPOCHS, 0, 16, lambda epoch: 1.0, torch.device("cpu"), groups=groups
    )
    chosen = UnflipOptions(**({"warmup": 4, "window": 3} | options))
    method = find_method("unflip").build({"unflip": chosen}, context)
    assert isinstance(method, PixelUnflip)
    method.set_networks(
        PixelUnflip.build_networks(
            chosen,
            context,
            lambda position: build_network("mlp", MLPOptions(hidden=(8,)), (3, 2, 2), CLASSES, position),
        )
    )
    return method


def learn(method: PixelUnflip, seen: Seen, labels: LabelStore, epochs: range) -> list[list[Tensor]]:
    """Train, and return what each member predicted at the end of each epoch."""
    said = []
    optimizer = torch.optim.SGD(method.networks[0].parameters(), lr=0.3, momentum=0.9)
    for epoch in epochs:
        (phase,) = method.phases(epoch, seen, labels)
        for step, rows in enumerate(phase.indices.split(16)):
            optimizer.zero_grad()
            batch = Batch(rows, (seen.images[rows],), labels.current[rows], epoch, 0.0, step)
            method.loss(batch, phase).terms["loss"].backward()
            optimizer.step()
            method.after_step()
        members = method.ema.module.split()
        said.append([torch.cat([part.softmax(1) for _, part in in_batches(m, seen.images)]) for m in members])
        method.end_epoch(epoch, seen, labels)
    return said


def targets_of(method: PixelUnflip, labels: LabelStore) -> Tensor:
    """Restore the method from its own state, which drops cached targets, and return them computed again."""
    method.load_state_dict(method.state_dict())
    method._compute_targets(labels)
    assert method.targets is not None
    return method.targets


def slow_targets(method: PixelUnflip, said: list[list[Tensor]], labels: LabelStore, member: int) -> Tensor:
    """The posterior of each example by loops: the other members' mean over the last epochs, weighted, shifted."""
    state, given = method.posterior, labels.initial.tolist()
    assert state is not None
    assert state.weights is not None
    others = [other for other in range(method.count) if other != member] or [member]
    recent = said[-method.options.window :]
    weight, matrix = float(state.weights[0]), state.log_matrix.double().exp()
    result = torch.zeros(COUNT, CLASSES, dtype=torch.float64)
    for row in range(COUNT):
        means = [
            sum(float(epoch[other][row, c]) for epoch in recent for other in others) / len(recent) / len(others)
            for c in range(CLASSES)
        ]
        view = [mean**weight * math.exp(float(state.offset[c])) for c, mean in enumerate(means)]
        moved = [value * float(matrix[c, given[row]]) ** state.target_weight for c, value in enumerate(view)]
        share = float(state.informative[row])
        for c in range(CLASSES):
            result[row, c] = ((1 - share) * view[c] / sum(view) + share * moved[c] / sum(moved)) ** 1.5
        result[row] /= result[row].sum()
    trusted = labels.trusted
    result[trusted] = torch.eye(CLASSES, dtype=torch.float64)[labels.initial[trusted]]
    return result


def test_images_take_another_class_than_feature_vectors() -> None:
    context = TrainContext(CLASSES, torch.arange(9), 4, 0, 8, lambda epoch: 1.0, torch.device("cpu"), of_rows=True)
    assert type(find_method("unflip").build({"unflip": UnflipOptions(members=2)}, context)) is Unflip
    assert make().count == 2


@pytest.mark.parametrize("members", [1, 2, 3])
def test_targets_are_the_posterior_under_the_other_members_recent_predictions(members: int) -> None:
    seen = Seen()
    labels, method = some_labels(seen), make(members=members, prior="equal")
    said = learn(method, seen, labels, range(1, 7))
    targets = targets_of(method, labels)
    assert targets.shape == (members, COUNT, CLASSES)
    for member in range(members):
        expected = slow_targets(method, said, labels, member)
        torch.testing.assert_close(targets[member].double(), expected, atol=1e-5, rtol=1e-4)


def test_what_a_member_predicts_itself_is_not_in_its_targets() -> None:
    seen = Seen()
    labels, method = some_labels(seen), make()
    learn(method, seen, labels, range(1, 6))
    before = targets_of(method, labels)
    for probs in method.windows[0].stored:
        probs.copy_(probs.flip(1))
    after = targets_of(method, labels)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


def test_members_are_trained_on_all_images_each_in_its_own_mixture() -> None:
    seen = Seen()
    labels, rows = some_labels(seen), torch.arange(16)
    batch = Batch(rows, (seen.images[rows],), labels.current[rows], 1, 0.0, 0)
    for alpha in (0.0, 1.0):
        method = make(mixup=alpha)
        list(method.phases(1, seen, labels))
        inputs, targets, weights = method._for_members(batch)
        assert inputs.shape == (2, 16, 3, 2, 2)
        assert weights.tolist() == [1 / 16, 1 / 16]
        assert torch.equal(targets.sum(2), torch.ones(2, 16))
        assert torch.equal(inputs[0], inputs[1]) == (alpha == 0)
        if not alpha:
            assert torch.equal(inputs[0], batch.inputs)
            assert torch.equal(targets[1].argmax(1), labels.initial[rows])


def with_validation(given: Tensor) -> tuple[LabelStore, PixelUnflip]:
    """The last third of the images validates, the others train."""
    method = make(window=2, warmup=2)
    method.context = replace(method.context, train=torch.arange(COUNT * 2 // 3))
    return LabelStore(given, CLASSES), method


def test_the_validation_view_is_the_mean_of_all_members_in_the_last_epochs() -> None:
    seen = Seen()
    given = seen.truth.clone()
    given[-1] = -1  # has no label
    labels, method = with_validation(given)
    said = learn(method, seen, labels, range(1, 4))
    (view,), of_rows = method._out_of_sample(labels)
    rows = torch.arange(COUNT * 2 // 3, COUNT - 1)
    assert torch.equal(of_rows, given[rows])
    mean = torch.stack([probs[rows] for epoch in said[-2:] for probs in epoch]).mean(0)
    torch.testing.assert_close(view, mean.log(), atol=1e-4, rtol=1e-3)


def test_the_noise_rate_comes_from_validation_images_alone() -> None:
    """Memorized labels look right to the networks that were trained on them."""
    seen, random = Seen(), torch.Generator().manual_seed(0)
    given = torch.where(torch.rand(COUNT, generator=random) < 0.4, (seen.truth + 1) % CLASSES, seen.truth)
    labels, method = with_validation(given)
    learn(method, seen, labels, range(1, 4))
    sure, count = torch.eye(CLASSES) * 0.96 + 0.01, len(method.context.train)

    def rate(predicted: Tensor, of_training: Tensor) -> float:
        for window in method.windows:
            window.stored = [sure[of_training[:count]]]
        method.validation.stored = [sure[predicted[count:]]]
        return float(method._noise_rates(torch.zeros(count), labels, torch.ones(count, dtype=torch.bool)).mean())

    expected = rate(seen.truth, seen.truth)
    assert rate(seen.truth, given) == expected
    assert rate(given, seen.truth) < expected / 2


@pytest.mark.parametrize("clean_val", [False, True])
def test_without_noisy_validation_labels_the_members_own_view_is_all_there_is(clean_val: bool) -> None:
    seen = Seen()
    labels, method = some_labels(seen), make()
    if clean_val:
        labels, method = with_validation(seen.truth)
        method.context = replace(method.context, clean_val=True)
    learn(method, seen, labels, range(1, 6))
    (view,), given = method._out_of_sample(labels)
    assert torch.equal(view, method._view([0, 1]))
    assert torch.equal(given, labels.given[method.context.train])


def test_predictions_are_kept_from_the_last_epochs_of_the_warm_up_on() -> None:
    seen = Seen()
    labels, method = some_labels(seen), make()
    kept = []
    for epoch in range(1, 7):
        learn(method, seen, labels, range(epoch, epoch + 1))
        kept.append([window.count for window in method.windows])
    assert kept == [[0, 0], [1, 1], [2, 2], [3, 3], [3, 3], [3, 3]]


def test_confidence_is_that_which_fits_the_labels_however_sure_the_view_is() -> None:
    seen = Seen()
    labels, method = some_labels(seen), make()
    learn(method, seen, labels, range(1, 5))
    rates, views = [], [window.mean().log() for window in method.windows]
    for power in (1.0, 2.0):
        for window, view in zip(method.windows, views, strict=True):
            window.stored = [(power * view).softmax(1)]
        rates.append(method._noise_rates(torch.zeros(COUNT), labels, torch.ones(COUNT, dtype=torch.bool)))
    torch.testing.assert_close(rates[0], rates[1], atol=0.02, rtol=0.1)


class Known(Pretrained):
    """A network with pretrained layers: its encoder knows the classes, up to noise, before it is trained."""

    def __init__(self, *, pretrained: bool = True) -> None:
        super().__init__(PretrainedOptions(pretrained=pretrained))
        layer = nn.Linear(12, 5, bias=False)
        nn.init.eye_(layer.weight)
        self.encoder = nn.Sequential(nn.Flatten(), layer)
        self.head = nn.Linear(5, CLASSES)

    def encode(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.encoder(inputs)
        return features


def make_known(*, pretrained: bool = True, **options: Any) -> PixelUnflip:
    method = make(**options)
    method.set_networks(
        PixelUnflip.build_networks(method.options, method.context, lambda position: Known(pretrained=pretrained))
    )
    return method


@pytest.mark.parametrize("groups", [None, torch.arange(COUNT) % 30])
def test_frozen_features_score_labels_before_training_and_stay_a_view(
    groups: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 1)
    seen = Seen()
    seen.images[30:] = seen.images[:30] + 0.01 * seen.images[30:]  # near-duplicates, with the same labels
    labels = LabelStore(some_labels(seen).given[:30].repeat(2), CLASSES, torch.where(torch.arange(COUNT) < 2, 1, -1))
    method = make_known(groups=groups)
    list(method.phases(1, seen, labels))
    features, targets = seen.images.flatten(1)[:, :5], nn.functional.one_hot(labels.initial, CLASSES).float()
    fitted = fit_discriminant(
        features.__getitem__, targets, CLASSES, shrink=SHRINKS, given=labels.initial, groups=groups
    )
    assert (fitted.shrink < 1) == (groups is None)  # otherwise a copy recommends what fits best
    expected = leave_group_out_log_posterior(fitted, features.__getitem__, targets, groups)
    assert method.frozen is not None
    torch.testing.assert_close(method.frozen, expected, atol=1e-4, rtol=1e-4)
    learn(method, seen, labels, range(1, 6))
    torch.testing.assert_close(method.frozen, expected, atol=1e-4, rtol=1e-4)
    state = method.posterior
    assert state is not None
    assert state.weights is not None
    assert state.weights.shape == (2,)
    (view,), of_rows = method._out_of_sample(labels)
    torch.testing.assert_close(view, method.frozen)
    assert torch.equal(of_rows, labels.given)
    assert state.gaussian_pair is not None
    model = method.model()
    assert model.weights is not None
    torch.testing.assert_close(model.weights, state.weights.sum()[None])
    views = [method._view([1]), expected]
    pooled = pool(views, state.weights) + state.offset
    ours = posterior(pooled.log_softmax(1), labels.initial, state.informative, state.log_matrix, state.target_weight)
    ours = (1.5 * ours.log()).softmax(1)
    found = targets_of(method, labels)[0]
    kept = ~labels.trusted
    torch.testing.assert_close(found[kept], ours[kept], atol=1e-3, rtol=1e-3)


def test_members_start_from_the_posterior_of_frozen_features() -> None:
    seen = Seen()
    labels, method = some_labels(seen), make_known()
    list(method.phases(1, seen, labels))
    assert method.targets is not None
    assert torch.equal(method.targets[0], method.targets[1])
    kept = ~labels.trusted
    right = [(found == seen.truth)[kept].float().mean() for found in (labels.initial, method.targets[0].argmax(1))]
    assert right[1] > right[0]
    assert method.model().weights is None  # until there are views of networks


def test_a_network_from_scratch_has_no_frozen_view() -> None:
    seen = Seen()
    labels, method = some_labels(seen), make_known(pretrained=False)
    learn(method, seen, labels, range(1, 6))
    assert method.frozen is None
    assert method.posterior is not None
    assert method.posterior.gaussian_pair is None


def images_of(content: dict[str, Any]) -> dict[str, Any]:
    """Rows as images of one pixel."""
    return {name: value[..., None, None] if value.ndim == 2 else value for name, value in content.items()}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs()
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("images") / "noisy.npz", **images_of(content))


def test_labels_are_corrected_and_scored_in_sample(tmp_path: Path) -> None:
    content = blobs(train=600)
    truth = content["train_labels"].copy()
    content["train_labels"][::6] = (truth[::6] + 1) % 3
    data = write_npz(tmp_path / "images.npz", **images_of(content))
    run = quick_train(data, tmp_path / "run", method="unflip", epochs=12, network="mlp")
    table = run.labels()
    right, corrected = (table[name].to_numpy() == truth for name in ("given_label", "current_label"))
    assert right.mean() < 0.85
    assert corrected.mean() > 0.9  # some are kept in doubt
    assert corrected[right].all()
    assert roc_auc_score(right, table["label_quality"].to_numpy()) > 0.99
    assert set(table["fold"].to_pylist()) == {-1}
    assert set(table["out_of_sample"].to_pylist()) == {False}
    assert run.result["out_of_sample"] == 0


@pytest.mark.parametrize("saves", [9, 17, 26])  # before, at and after the end of the warm-up
def test_a_resumed_run_is_the_undisturbed_one(
    saves: int, noisy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"unflip.warmup": 3, "unflip.window": 2, "mlp.dropout": 0.1}
    options: dict[str, Any] = {"method": "unflip", "epochs": 6, "network": "mlp", "settings": settings}
    whole = quick_train(noisy, tmp_path / "whole", **options)
    crash_at_save(monkeypatch, saves)
    with pytest.raises(Crash):
        quick_train(noisy, tmp_path / "cut", checkpoint_minutes=0, **options)
    monkeypatch.undo()
    assert_same_run(whole, quick_train(noisy, tmp_path / "cut", resume=True, **options))
