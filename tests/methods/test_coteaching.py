"""Co-teaching+: what is picked, who learns from it, and how much is forgotten."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from epoch_outputs import Unseen
from helpers import blobs, passthrough, quick_train, write_npz
from unflip.errors import ConfigError
from unflip.methods.base import Batch, LabelStore, Phase, TrainContext
from unflip.methods.coteaching import Coteaching, CoteachingOptions, forget_rate, noise_rate, pick
from unflip.methods.losses import cross_entropy
from unflip.runs.config import RunConfig

BATCHES = st.lists(st.tuples(st.floats(0, 9, width=32), st.booleans()), min_size=1, max_size=20)


class Scans(Unseen):
    """Logits to observe, one tensor a network."""

    def __init__(self, *logits: Tensor) -> None:
        self.chosen = logits
        self.shared: list[Tensor] = []

    def logits(self, network: int = 0) -> Tensor:
        return self.chosen[network]

    def broadcast(self, tensor: Tensor) -> Tensor:
        self.shared.append(tensor)
        return tensor


class Two(torch.nn.Module):
    """A network whose logits are one half of its inputs, so that a test chooses both networks'."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.position = half
        self.network = passthrough(3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs[:, self.position])
        return logits


def make(count: int = 6, **options: Any) -> Coteaching:
    context = TrainContext(3, torch.arange(count), 10, 0, count, lambda epoch: 1.0, torch.device("cpu"))
    method = Coteaching(CoteachingOptions(**options), context)
    method.set_networks([Two(0), Two(1)])
    return method


def batch_of(inputs: Tensor, labels: Tensor, epoch: int) -> Batch:
    return Batch(torch.arange(len(labels)), (inputs,), labels, epoch, epoch - 1.0, 0)


def slow_pick(losses: list[float], among: list[bool], rate: float) -> list[int]:
    """Sort, cut, and fall back to all."""
    for candidates in ([i for i, chosen in enumerate(among) if chosen], list(range(len(losses)))):
        count = int((1 - rate) * len(candidates) + 1e-9)
        if count >= 1:
            return sorted(candidates, key=lambda i: losses[i])[:count]
    return [losses.index(min(losses))]


@given(BATCHES, st.sampled_from([0.0, 0.1, 0.35, 0.5, 0.9, 0.99]))
def test_the_pick_is_the_small_losses_among_those_allowed(batch: list[tuple[float, bool]], rate: float) -> None:
    losses, among = [loss for loss, _ in batch], [chosen for _, chosen in batch]
    picked = pick(torch.tensor(losses), torch.tensor(among), rate).nonzero()[:, 0].tolist()
    expected = slow_pick(losses, among, rate)
    assert len(picked) == len(set(picked)) == len(expected)
    assert sorted(losses[i] for i in picked) == sorted(losses[i] for i in expected)  # of equal losses, either
    assert all(among[i] for i in picked) or len(picked) == max(1, int((1 - rate) * len(losses) + 1e-9))


def test_the_first_example_is_picked_like_any_other() -> None:
    picked = pick(torch.tensor([0.1, 2.0, 3.0]), torch.tensor([True, False, True]), 0.5)
    assert picked.tolist() == [True, False, False]


@pytest.mark.parametrize("epoch", [2, 3])
def test_each_network_learns_from_what_the_other_picked(epoch: int) -> None:
    method = make(warmup=2, forget_rate=0.5, ramp_epochs=1)
    inputs = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    losses = [[float(value) for value in cross_entropy(inputs[:, i], labels)] for i in (0, 1)]
    differ = [int(inputs[i, 0].argmax()) != int(inputs[i, 1].argmax()) for i in range(6)]
    assert 2 <= sum(differ) < 6
    among = differ if epoch > 2 else [True] * 6
    picks = [slow_pick(values, among, 0.5) for values in losses]
    terms = method.loss(batch_of(inputs, labels, epoch), Phase(torch.arange(6), learns=(0, 1))).terms
    for network, term in enumerate(terms.values()):
        chosen = picks[1 - network]
        assert term.item() == pytest.approx(sum(losses[network][i] for i in chosen) / len(chosen), rel=1e-5)


def test_where_nothing_disagrees_the_whole_batch_is_selected_from() -> None:
    method = make(warmup=0, forget_rate=0.5, ramp_epochs=1)
    scores = torch.randn(6, 1, 3, generator=torch.Generator().manual_seed(2)).expand(6, 2, 3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    step = method.loss(batch_of(scores, labels, 1), Phase(torch.arange(6), learns=(0, 1)))
    expected = cross_entropy(scores[:, 0], labels).sort().values[:3].mean()
    for term in step.terms.values():
        torch.testing.assert_close(term, expected)
        assert term.requires_grad


def test_a_networks_loss_teaches_that_network_alone() -> None:
    method = make(warmup=0, forget_rate=0.3, ramp_epochs=1)
    inputs = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(3))
    step = method.loss(batch_of(inputs, torch.tensor([0, 1, 2, 0, 1, 2]), 1), Phase(torch.arange(6), learns=(0, 1)))
    next(iter(step.terms.values())).backward()
    taught = [any(p.grad is not None for p in network.parameters()) for network in method.networks]
    assert taught == [True, False]


def test_the_forget_rate_grows_in_equal_steps() -> None:
    assert [forget_rate(epoch, 0.4, 4) for epoch in range(1, 7)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_auto_finds_the_share_of_wrong_labels() -> None:
    draws = torch.Generator().manual_seed(0)
    losses = torch.rand(2, 1000, generator=draws) * 0.3
    losses[:, 700:] += 3
    assert float(noise_rate(losses, seed=0)) == pytest.approx(0.3, abs=0.01)
    assert float(noise_rate(torch.ones(2, 10), seed=0)) == 0


def test_auto_estimates_in_the_warm_up_only_and_from_the_first_process() -> None:
    method, labels = make(40, warmup=2), LabelStore(torch.arange(40) % 3, 3)
    logits = 8.0 * torch.nn.functional.one_hot(labels.given, 3).float()
    logits[:10] = logits[:10].roll(1, dims=1)  # so a quarter of the labels looks wrong
    seen = Scans(logits, logits + 0.1 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))
    assert method.noise_rate == 0
    assert method.end_epoch(1, seen, labels) == {"forget_rate": 0.0}
    assert method.noise_rate == pytest.approx(0.25, abs=0.02)
    assert len(seen.shared) == 1
    method.end_epoch(2, seen, labels)
    method.end_epoch(3, Scans(), labels)  # would fail if it looked
    assert len(seen.shared) == 2
    other = make(40, warmup=2)
    other.load_state_dict(method.state_dict())
    assert other.noise_rate == method.noise_rate


def test_a_rate_that_is_given_is_not_estimated() -> None:
    method = make(warmup=2, forget_rate=0.3, ramp_epochs=2)
    figures = method.end_epoch(1, Scans(), LabelStore(torch.zeros(6, dtype=torch.long), 3))
    assert figures == {"forget_rate": pytest.approx(0.15)}


@pytest.mark.parametrize("rate", [1.0, -0.1, "some"])
def test_a_rate_that_cannot_be_names_its_key(rate: float | str) -> None:
    with pytest.raises(ConfigError, match=r"coteaching\+\.forget_rate"):
        RunConfig.resolve([{"method": "coteaching+", "data": {"path": "x"}, "coteaching+": {"forget_rate": rate}}])


def test_it_learns_despite_wrong_labels(tmp_path: Path) -> None:
    content = blobs(train=300)
    wrong = torch.arange(0, 300, 3).numpy()
    content["train_labels"][wrong] = (content["train_labels"][wrong] + 1) % 3
    data = write_npz(tmp_path / "a.npz", **content)
    settings = {"coteaching+.warmup": 3, "coteaching+.ramp_epochs": 3}
    run = quick_train(data, tmp_path / "run", method="coteaching+", epochs=8, settings=settings)
    assert run.result["test_accuracy"]["last"] > 0.95
    assert 0.2 < run.metrics[-1]["forget_rate"] < 0.45
