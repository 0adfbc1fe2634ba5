"""The loop: what a method sees of an epoch, and what it is told when training fails."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import blobs
from unflip.data.sources import ArraySource
from unflip.engine.distributed import Distributed
from unflip.engine.trainer import Trainer, lr_factor
from unflip.errors import DivergedError
from unflip.methods.base import Batch, EpochOutputs, LabelStore, LossOutput, Method, Phase, TrainContext
from unflip.nn.base import build_network, unwrap
from unflip.nn.mlp import MLPOptions
from unflip.progress import Reporter
from unflip.runs.options import OptimizerOptions

STILL = 1e-30
"""A learning rate at which no weight moves, so that an early pass equals a late one."""


@pytest.fixture(scope="module")
def processes() -> Distributed:
    return Distributed("cpu")


class Recording(Method):
    """Remembers what it is shown."""

    records_probs = True

    def __init__(self, options: Any, context: TrainContext) -> None:
        super().__init__(options, context)
        self.batches: list[tuple[Batch, Phase]] = []
        self.observed: list[EpochOutputs] = []

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        self.batches.append((batch, phase))
        return super().loss(batch, phase)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        self.observed.append(observed)
        return {"figure": epoch}


def make_trainer(
    processes: Distributed,
    kind: type[Method] = Recording,
    *,
    lr: float = STILL,
    batch_size: int = 16,
    num_networks: int = 1,
    rows: Tensor | None = None,
    val_rows: Tensor | None = None,
    reporter: Reporter | None = None,
    network: MLPOptions | None = None,
    milestones: tuple[int, ...] = (),
) -> Trainer:
    content = blobs()
    rows = torch.arange(0, 150, 2) if rows is None else rows
    options = OptimizerOptions(lr=lr, batch_size=batch_size, weight_decay=0.0, milestones=milestones)
    context = TrainContext(
        num_classes=3,
        train=rows,
        epochs=5,
        seed=3,
        batch_size=batch_size,
        lr_factor=partial(lr_factor, options, epochs=5),
        device=processes.device,
    )
    network = network or MLPOptions(hidden=(8,), batch_norm=False)
    return Trainer(
        kind(None, context),
        [build_network("mlp", network, (6,), 3, seed) for seed in range(num_networks)],
        ArraySource(content["train"]),
        LabelStore(torch.from_numpy(content["train_labels"]), 3),
        options,
        processes,
        reporter or Reporter(),
        *([] if val_rows is None else [val_rows]),
    )


def recording(trainer: Trainer) -> Recording:
    """The trainer's method, which is one of ours."""
    assert isinstance(trainer.method, Recording)
    return trainer.method


def logits_of(trainer: Trainer, rows: Tensor, network: int = 0) -> Tensor:
    with torch.no_grad():
        logits: Tensor = unwrap(trainer.networks[network]).eval()(trainer.source.fetch(rows))
    return logits


@pytest.mark.parametrize("batch_size", [4, 7, 74, 500])
def test_recorded_probabilities_follow_the_training_rows(processes: Distributed, batch_size: int) -> None:
    rows = torch.randperm(150, generator=torch.Generator().manual_seed(0))[:75]  # neither all nor in order
    trainer = make_trainer(processes, batch_size=batch_size, rows=rows)
    trainer.train_epoch(1)
    probs = recording(trainer).observed[0].probs
    torch.testing.assert_close(probs, logits_of(trainer, rows).softmax(1))
    assert not probs.requires_grad


def test_probabilities_are_those_of_the_pass_and_not_of_its_end(processes: Distributed) -> None:
    trainer = make_trainer(processes, lr=0.5, batch_size=500)
    before = logits_of(trainer, torch.arange(0, 150, 2)).softmax(1)
    trainer.train_epoch(1)
    torch.testing.assert_close(recording(trainer).observed[0].probs, before)


def test_a_single_example_is_recorded_once(processes: Distributed) -> None:
    trainer = make_trainer(processes, rows=torch.tensor([5]))
    trainer.train_epoch(1)
    torch.testing.assert_close(recording(trainer).observed[0].probs, logits_of(trainer, torch.tensor([5])).softmax(1))


def test_a_scan_is_what_the_network_makes_of_the_training_rows(processes: Distributed) -> None:
    trainer = make_trainer(processes, lr=0.1, network=MLPOptions(hidden=(8,), dropout=0.5))
    trainer.train_epoch(1)
    observed = recording(trainer).observed[0]
    rows = trainer.method.context.train
    torch.testing.assert_close(observed.logits(), logits_of(trainer, rows))
    features = observed.features()
    with torch.no_grad():
        torch.testing.assert_close(features, unwrap(trainer.networks[0]).eval().encode(trainer.source.fetch(rows)))
    assert observed.features() is features  # not computed twice


def test_a_head_that_was_trained_since_is_seen_and_the_encoder_is_not_run_again(processes: Distributed) -> None:
    trainer = make_trainer(processes)
    trainer.train_epoch(1)
    observed = recording(trainer).observed[0]
    before = observed.features()
    with torch.no_grad():
        unwrap(trainer.networks[0]).head.weight.mul_(2.0)
    torch.testing.assert_close(observed.logits(), logits_of(trainer, trainer.method.context.train))
    assert observed.features() is before


def test_each_network_has_its_own_scan(processes: Distributed) -> None:
    trainer = make_trainer(processes, num_networks=2)
    trainer.train_epoch(1)
    observed = recording(trainer).observed[0]
    for position in (0, 1):
        torch.testing.assert_close(
            observed.logits(position), logits_of(trainer, trainer.method.context.train, position)
        )
    assert not torch.equal(observed.logits(0), observed.logits(1))


def test_the_validation_rows_come_with_their_given_labels(processes: Distributed) -> None:
    held_out = torch.arange(1, 150, 2)
    trainer = make_trainer(processes, val_rows=held_out)
    trainer.train_epoch(1)
    found = recording(trainer).observed[0].validation()
    assert found is not None
    torch.testing.assert_close(found[0].logits, logits_of(trainer, held_out))
    assert torch.equal(found[1], trainer.labels.given[held_out])


@pytest.mark.parametrize("val_rows", [None, torch.tensor([], dtype=torch.long)])
def test_without_validation_rows_there_is_nothing_to_see(processes: Distributed, val_rows: Tensor | None) -> None:
    trainer = make_trainer(processes, val_rows=val_rows)
    trainer.train_epoch(1)
    assert recording(trainer).observed[0].validation() is None


def test_reading_probabilities_that_nobody_asked_for_is_an_error_of_the_method(processes: Distributed) -> None:
    class Careless(Recording):
        records_probs = False

    trainer = make_trainer(processes, Careless)
    trainer.train_epoch(1)
    with pytest.raises(RuntimeError, match="Careless reads probs without records_probs = True"):
        recording(trainer).observed[0].probs  # noqa: B018


def test_an_epoch_visits_every_training_row_once_with_its_current_label(processes: Distributed) -> None:
    trainer = make_trainer(processes)
    trainer.labels.change(1, torch.tensor([0]), (trainer.labels.current[:1] + 1) % 3, torch.ones(1))
    trainer.train_epoch(1)
    batches = [batch for batch, _ in recording(trainer).batches]
    indices = torch.cat([batch.indices for batch in batches])
    assert sorted(indices.tolist()) == list(range(0, 150, 2))
    for batch in batches:
        assert torch.equal(batch.labels, trainer.labels.current[batch.indices])
        assert torch.equal(batch.inputs, trainer.source.fetch(batch.indices))
        assert batch.epoch == 1
    progress = [batch.progress for batch in batches]
    assert progress == sorted(progress)
    assert progress[0] == 0
    assert progress[-1] < 1


def test_every_epoch_has_another_order_and_the_same_epoch_the_same(processes: Distributed) -> None:
    def order(trainer: Trainer, epoch: int) -> list[int]:
        recording(trainer).batches.clear()
        trainer.train_epoch(epoch)
        return torch.cat([batch.indices for batch, _ in recording(trainer).batches]).tolist()

    trainer = make_trainer(processes)
    first = order(trainer, 1)
    assert order(trainer, 2) != first
    assert order(make_trainer(processes), 1) == first
    assert order(trainer, 1) == first


class TwoPhases(Recording):
    """One pass for each of two networks, each over one half, with the other half unlabeled beside it."""

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterable[Phase]:
        first, second = self.context.train[:20], self.context.train[20:]
        yield Phase(first, learns=(0,), unlabeled=second, views=2)
        yield Phase(second, learns=(1,), unlabeled=first)

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        self.batches.append((batch, phase))
        (position,) = phase.learns
        logits = self.networks[position](batch.inputs)
        loss = self.criterion(logits, batch.labels, batch.indices).mean()
        return LossOutput({f"net{position}": loss, f"penalty{position}": logits.square().mean()}, logits)


def test_phases_say_who_learns_from_what(processes: Distributed, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(processes, TwoPhases, lr=0.1, num_networks=2, network=MLPOptions(hidden=(8,)))
    start = [{name: value.clone() for name, value in unwrap(net).state_dict().items()} for net in trainer.networks]
    seen: list[list[bool]] = []
    plain = trainer.method.loss

    def watching(batch: Batch, phase: Phase) -> LossOutput:
        seen.append([unwrap(network).training for network in trainer.networks])
        if phase.learns == (0,):  # the other one stays as it is, batch statistics included
            for name, value in unwrap(trainer.networks[1]).state_dict().items():
                assert torch.equal(value, start[1][name]), name
        return plain(batch, phase)

    monkeypatch.setattr(trainer.method, "loss", watching)
    figures = trainer.train_epoch(1)
    assert {tuple(modes) for modes in seen} == {(True, False), (False, True)}
    for network, before in zip(trainer.networks, start, strict=True):
        assert not torch.equal(unwrap(network).head.weight, before["head.weight"])
    assert sorted(figures["loss"]) == ["net0", "net1", "penalty0", "penalty1"]
    assert figures["figure"] == 1


def test_what_a_method_kept_of_a_phase_stays_when_the_next_is_recorded(processes: Distributed) -> None:
    class Keeping(Recording):
        def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterable[Phase]:
            yield Phase(self.context.train)
            self.kept = observed.probs
            self.then = observed.probs.clone()
            yield Phase(self.context.train[:10])

    trainer = make_trainer(processes, Keeping, lr=0.5)
    trainer.train_epoch(1)
    now = recording(trainer).observed[0].probs
    assert isinstance(trainer.method, Keeping)
    kept, then = trainer.method.kept, trainer.method.then
    assert torch.equal(kept, then)
    assert not torch.equal(now[:10], kept[:10])
    assert torch.equal(now[10:], kept[10:])  # seen in the first phase only


def test_unlabeled_rows_accompany_every_batch_as_many_again(processes: Distributed) -> None:
    trainer = make_trainer(processes, TwoPhases, num_networks=2)
    trainer.train_epoch(1)
    train, second = trainer.method.context.train, set[int]()
    for batch, phase in recording(trainer).batches:
        assert batch.unlabeled is not None
        assert len(batch.unlabeled.indices) == len(batch.indices)
        assert len(batch.views) == len(batch.unlabeled.views) == phase.views
        other = train[20:] if phase.learns == (0,) else train[:20]
        assert set(batch.unlabeled.indices.tolist()) <= set(other.tolist())
        if phase.learns == (1,):
            second |= set(batch.unlabeled.indices.tolist())
    assert second == set(train[:20].tolist())  # gone round, all of them


def test_a_phase_over_nothing_takes_no_step(processes: Distributed) -> None:
    class Picky(Recording):
        def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterable[Phase]:
            return [Phase(self.context.train[:0])]

    trainer = make_trainer(processes, Picky, lr=0.1)
    before = logits_of(trainer, torch.arange(5))
    assert trainer.train_epoch(1)["loss"] == {}
    assert recording(trainer).batches == []
    assert torch.equal(logits_of(trainer, torch.arange(5)), before)


def test_the_loss_in_the_figures_is_the_mean_over_steps(processes: Distributed) -> None:
    trainer = make_trainer(processes, batch_size=5)
    figures = trainer.train_epoch(1)
    rows = trainer.method.context.train
    expected = torch.nn.functional.cross_entropy(logits_of(trainer, rows), trainer.labels.current[rows])
    assert figures["loss"]["loss"] == pytest.approx(float(expected), rel=1e-5)  # 75 rows in equal steps of 5
    assert figures["lr"] == STILL
    assert figures["train_seconds"] > 0


def test_the_learning_rate_follows_the_schedule(processes: Distributed) -> None:
    trainer = make_trainer(processes, lr=0.1, milestones=(1, 2))
    assert [trainer.train_epoch(epoch)["lr"] for epoch in (1, 2, 3)] == pytest.approx([0.1, 0.05, 0.025])


def test_progress_is_told_at_every_step(processes: Distributed) -> None:
    class Counting(Reporter):
        steps: list[float] = []  # noqa: RUF012

        def step(self, progress: float) -> None:
            self.steps.append(progress)

    reporter = Counting()
    make_trainer(processes, batch_size=15, reporter=reporter).train_epoch(3)
    assert reporter.steps == pytest.approx([2 + i / 5 for i in range(5)])


@pytest.mark.parametrize("lr", [1e10, 1e30])
def test_divergence_says_when(processes: Distributed, lr: float) -> None:
    trainer = make_trainer(processes, lr=lr)

    def train() -> None:
        for epoch in range(1, 6):
            trainer.train_epoch(epoch)

    with pytest.raises(DivergedError, match=r"became (nan|inf) in epoch \d+, batch \d+; try a smaller learning rate"):
        train()


def test_the_batch_in_which_the_loss_broke_is_named(processes: Distributed) -> None:
    class Breaking(Recording):
        def loss(self, batch: Batch, phase: Phase) -> LossOutput:
            step = super().loss(batch, phase)
            if batch.epoch == 2 and len(self.batches) % 5 == 4:
                return LossOutput({"loss": step.terms["loss"] * float("nan")}, step.logits)
            return step

    trainer = make_trainer(processes, Breaking, batch_size=15)
    trainer.train_epoch(1)
    with pytest.raises(DivergedError, match="the loss became nan in epoch 2, batch 4;"):
        trainer.train_epoch(2)


@pytest.mark.parametrize("batch_norm", [True, False])
def test_what_breaks_in_the_last_step_is_noticed_by_the_next_pass(processes: Distributed, batch_norm: bool) -> None:
    class Looking(Recording):
        def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
            observed.features()
            return {}

    network = MLPOptions(hidden=(8,), batch_norm=batch_norm)
    assert np.isfinite(make_trainer(processes, lr=1e37, batch_size=500, network=network).train_epoch(1)["loss"]["loss"])
    trainer = make_trainer(processes, Looking, lr=1e37, batch_size=500, network=network)
    with pytest.raises(
        DivergedError, match="became NaN or infinite at the end of epoch 1; try a smaller learning rate"
    ):
        trainer.train_epoch(1)


def test_training_changes_neither_inputs_nor_given_labels(processes: Distributed) -> None:
    trainer = make_trainer(processes, lr=0.1)
    before = trainer.source.fetch(torch.arange(150)).clone()
    trainer.train_epoch(1)
    assert torch.equal(trainer.source.fetch(torch.arange(150)), before)
    np.testing.assert_array_equal(trainer.labels.given.numpy(), blobs()["train_labels"])


@given(st.integers(1, 200), st.lists(st.integers(1, 150), max_size=4), st.floats(0.1, 1.0))
def test_the_schedule_multiplies_after_each_milestone(epoch: int, milestones: list[int], gamma: float) -> None:
    options = OptimizerOptions(milestones=tuple(milestones), gamma=gamma)
    expected = 1.0
    for milestone in milestones:
        if epoch > milestone:
            expected *= gamma
    assert lr_factor(options, epoch - 1, 200) == pytest.approx(expected)
    assert lr_factor(options, epoch - 0.5, 200) == pytest.approx(expected)


def test_the_paper_halves_at_40_and_80() -> None:
    options = OptimizerOptions()
    assert [lr_factor(options, epoch - 1, 100) for epoch in (1, 40, 41, 80, 81, 100)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_a_cosine_climbs_in_the_first_epoch_and_falls_to_nothing() -> None:
    options = OptimizerOptions(schedule="cosine")
    factors = [lr_factor(options, progress / 10, 10) for progress in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[50] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.0, abs=1e-12)
    assert factors[:10] == sorted(factors[:10])
    assert factors[10:] == sorted(factors[10:], reverse=True)
