"""Known-wrong controls against the loop of their definition, and on data where the truth is known."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import assert_same_tree
from unflip import KnownWrongControls
from unflip.errors import ConfigError, InputError
from unflip.methods.unflip import controls as module
from unflip.methods.unflip.controls import margins

COUNT, CLASSES = 2000, 4


def problem(seed: int = 0, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(COUNT, classes, generator=random)).softmax(1)
    given = torch.where(torch.rand(COUNT, generator=random) < 0.7, probs.argmax(1), torch.arange(COUNT) % classes)
    return given, probs


def test_controls_carry_the_second_choice_of_a_view_that_agrees() -> None:
    given, probs = problem()
    controls = KnownWrongControls(given, probs, share=0.1)
    rows = controls.chosen.nonzero()[:, 0]
    assert len(rows) == 200
    assert (probs.argmax(1) == given)[rows].all()
    assert controls[rows].equal(probs.topk(2, 1).indices[rows, 1])
    assert controls.labels[~controls.chosen].equal(given[~controls.chosen])


def test_members_have_controls_that_do_not_overlap() -> None:
    given, probs = problem()
    chosen = [KnownWrongControls(given, probs, member=i, members=4).chosen for i in range(4)]
    assert int(torch.stack(chosen).sum(0).max()) == 1
    assert [int(part.sum()) for part in chosen] == [160] * 4
    given = probs.argmin(1).where(torch.arange(COUNT) >= 40, probs.argmax(1))  # the view agrees with 40 labels
    chosen = [KnownWrongControls(given, probs, member=i, members=4).chosen for i in range(4)]
    assert [int(part.sum()) for part in chosen] == [10] * 4


def test_a_class_that_the_view_excludes_is_doubtful_by_a_finite_margin() -> None:
    given = torch.arange(60) % 3
    assert KnownWrongControls((given + 1) % 3, torch.eye(3)[given]).doubt.isfinite().all()


def test_margins_are_the_label_minus_the_best_other() -> None:
    assert margins(torch.tensor([[1.0, 3.0, 2.0], [5.0, 1.0, 4.0]]), torch.tensor([1, 2])).tolist() == [1.0, -1.0]


@pytest.mark.parametrize(("classes", "surest"), [(CLASSES, 1.0), (2, 0.995)])
def test_scores_are_those_of_a_loop_over_bins(monkeypatch: pytest.MonkeyPatch, classes: int, surest: float) -> None:
    given, probs = problem(classes=classes)
    probs = probs.clamp(1 - surest, surest)  # with two classes, the most doubtful labels and controls are equally so
    controls = KnownWrongControls(given, probs, share=0.2)
    random, total = torch.Generator().manual_seed(1), np.zeros(COUNT)
    for _ in range(3):
        logits = torch.randn(COUNT, classes, generator=random)
        total += margins(logits, controls.labels).double().numpy() / 3
        for index in torch.randperm(COUNT, generator=random).split(300):
            controls.record(index, logits[index])
    doubt, chosen = margins(probs.log(), controls.labels).double().numpy(), controls.chosen.numpy()
    doubtful = (doubt < 0) & ~chosen
    edges, expected = np.quantile(doubt[doubtful], np.linspace(0, 1, 9)), np.full(COUNT, np.nan)
    places = [
        (doubt >= low) & ((doubt < high) if number < 7 else (doubt < 0))
        for number, (low, high) in enumerate(itertools.pairwise(edges))
    ]
    counts = [int((inside & chosen).sum()) for inside in places]
    fewest = min(count for count in counts if count >= 15)
    monkeypatch.setattr(module, "_MIN_CONTROLS", fewest)
    for inside in places:
        c, d = inside & chosen, inside & doubtful
        if c.sum() >= fewest:
            line = np.polyfit(doubt[c], total[c], 1) if c.sum() > 40 else (0.0, total[c].mean())
            expected[d] = (total[d] - np.polyval(line, doubt[d])) / total[c].std()
    np.testing.assert_allclose(controls.score().numpy(), expected, atol=1e-4)
    assert np.isfinite(expected).sum() > 100


def test_right_but_hard_labels_are_learned_faster_than_wrong_ones() -> None:
    """Two blobs and a small third one of class 0 beside the other class: its labels are right, the view doubts them."""
    random = torch.Generator().manual_seed(0)
    clean = torch.arange(COUNT) % 2
    hard = (torch.rand(COUNT, generator=random) < 0.1) & (clean == 0)
    inputs = torch.randn(COUNT, 8, generator=random)
    inputs[:, 0] += 4 * clean.float()
    inputs[hard, 0] += 2.5
    inputs[hard, 1] += 5.0
    wrong = (torch.rand(COUNT, generator=random) < 0.1) & ~hard
    given = torch.where(wrong, 1 - clean, clean)
    view = torch.stack([torch.zeros(COUNT), 2 * (inputs[:, 0] - 2)], 1).softmax(1)  # knows the first column only
    controls = KnownWrongControls(given, view, share=0.2)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(10):
        for index in torch.randperm(COUNT, generator=random).split(100):
            logits = network(inputs[index])
            optimizer.zero_grad()
            F.cross_entropy(logits, controls[index]).backward()
            optimizer.step()
            controls.record(index, logits)
    scores = controls.score()
    known = scores.isfinite()
    assert float(scores[hard & known].mean()) > float(scores[wrong & known].mean()) + 1.0
    assert abs(float(scores[wrong & known].mean())) < 0.5


def test_a_saved_state_continues() -> None:
    given, probs = problem()
    one, other = KnownWrongControls(given, probs), KnownWrongControls(given, probs)
    one.record(torch.arange(COUNT), probs)
    other.load_state_dict(one.state_dict())
    assert_same_tree(one.state_dict(), other.state_dict())
    assert one.score().nan_to_num(9).equal(other.score().nan_to_num(9))


def test_without_doubtful_labels_nothing_is_scored() -> None:
    probs = torch.eye(3)[torch.arange(60) % 3] * 0.8 + 0.1
    controls = KnownWrongControls(torch.arange(60) % 3, probs / probs.sum(1, keepdim=True))
    controls.record(torch.arange(60), probs)
    assert controls.score().isnan().all()


def test_what_cannot_be_is_refused() -> None:
    given, probs = problem()
    with pytest.raises(InputError, match=r"probs have shape \(3, 4\); expected \(2000, k\)"):
        KnownWrongControls(given, probs[:3])
    with pytest.raises(ConfigError, match="member = 2: must be a fraction, and from 0 to 1"):
        KnownWrongControls(given, probs, member=2, members=2)
