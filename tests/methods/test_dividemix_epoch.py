"""DivideMix: an epoch by hand in float64, with networks that differ, labels that changed, and reviewed ones."""

import math
from typing import Any

import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from epoch_outputs import Unseen
from helpers import assert_same_tree
from unflip.compute import derive
from unflip.methods.base import Batch, LabelStore, Phase, TrainContext
from unflip.methods.dividemix import DivideMix, DivideMixOptions
from unflip.methods.losses import mix
from unflip.nn.mlp import MLP, MLPOptions

ROWS, CLASSES, SEED = 40, 4, 5
TRAIN = torch.arange(4, ROWS)
REVIEWED = {6: 1, 9: 0, 30: 2}


class Scans(Unseen):
    """Logits to observe, one tensor for each network."""

    def __init__(self, *logits: Tensor) -> None:
        self.chosen = logits

    def logits(self, network: int = 0) -> Tensor:
        return self.chosen[network]

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


def some_labels() -> LabelStore:
    """Labels of three of four classes; some are reviewed, some were corrected before."""
    given = torch.arange(ROWS) % 3
    reviewed = torch.full_like(given, -1)
    for row, label in REVIEWED.items():
        reviewed[row] = label
    labels = LabelStore(given, CLASSES, reviewed)
    rows = torch.arange(5, ROWS, 2)
    labels.change(1, rows, (given[rows] + 1) % 3, torch.ones(len(rows)))
    return labels


def some_logits(labels: LabelStore, seed: int) -> Tensor:
    """Logits (36, 4) of a network that agrees with most given labels, and with others from seed to seed."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(TRAIN), CLASSES, generator=random)
    agrees = torch.rand(len(TRAIN), generator=random) < 0.7
    return logits + 4.0 * torch.eye(CLASSES)[labels.initial[TRAIN]] * agrees[:, None]


def make(**options: Any) -> DivideMix:
    context = TrainContext(CLASSES, TRAIN, 10, SEED, 6, lambda epoch: 1.0, torch.device("cpu"))
    method = DivideMix(DivideMixOptions(**options), context)
    torch.manual_seed(1)
    method.set_networks([MLP(MLPOptions(hidden=(5,)), (3,), CLASSES).double().eval() for _ in range(2)])
    return method


def slow_clean(losses: list[float], epoch: int) -> list[float]:
    """The probability of the lower of two Gaussians fitted to losses between 0 and 1, by Bayes' rule."""
    column = [[(loss - min(losses)) / (max(losses) - min(losses))] for loss in losses]
    seed = derive(SEED, "mixture", epoch) % 2**32
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed).fit(column)
    low = int(mixture.means_.argmin())
    return [float(p) for p in mixture.predict_proba(column)[:, low]]


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_end_of_an_epoch_is_that_by_hand(window: int) -> None:
    options: dict[str, Any] = {"warmup": 2, "window": window, "p_threshold": 0.6}
    labels, method = some_labels(), make(**options)
    seen = [[some_logits(labels, 10 * epoch + network) for network in (0, 1)] for epoch in (0, 1, 2, 3)]
    assert method.end_epoch(1, Scans(*seen[1]), labels) == {}
    assert method.train_probs() is None
    history: list[list[list[float]]] = []
    for epoch in (2, 3):
        before = labels.current.clone()
        metrics = method.end_epoch(epoch, Scans(*seen[epoch]), labels)
        probs = [logits.double().softmax(1).tolist() for logits in seen[epoch]]
        initial = labels.initial[TRAIN].tolist()
        scaled = []
        for network in (0, 1):
            losses = [-math.log(p[y]) for p, y in zip(probs[network], initial, strict=True)]
            scaled.append([(loss - min(losses)) / (max(losses) - min(losses)) for loss in losses])
        history = [*history, scaled][-window:]
        means = [
            [sum(each) / len(history) for each in zip(*(past[n] for past in history), strict=True)] for n in (0, 1)
        ]
        clean = [slow_clean(values, epoch) for values in means]
        for row in REVIEWED:
            for own in clean:
                own[row - 4] = 1.0
        assert method.clean is not None
        torch.testing.assert_close(method.clean, torch.tensor(clean), atol=1e-3, rtol=0)
        expected = []
        for i, y in enumerate(initial):
            refined = [
                [clean[1 - n][i] * (c == y) + (1 - clean[1 - n][i]) * probs[n][i][c] for c in range(CLASSES)]
                for n in (0, 1)
            ]
            expected.append([sum(pair) / 2 for pair in zip(*refined, strict=True)])
        refined_labels = method.train_probs()
        assert refined_labels is not None
        torch.testing.assert_close(refined_labels, torch.tensor(expected), atol=1e-3, rtol=0)
        proposed = [max(range(CLASSES), key=row.__getitem__) for row in expected]
        assert labels.current[TRAIN].tolist() == [
            REVIEWED.get(row, label) for row, label in zip(TRAIN.tolist(), proposed, strict=True)
        ]
        assert metrics["changed"] == int((labels.current != before).sum()) > 0
        shares = [sum(p > 0.6 for p in own) / len(own) for own in clean]
        assert metrics["labeled"] == pytest.approx(shares)
        assert [p > 0.6 for p in clean[0]] != [p > 0.6 for p in clean[1]]
        saved, method = method.state_dict(), make(**options)  # go on with another one that is restored
        method.load_state_dict(saved)
        assert_same_tree(method.state_dict(), saved)


@pytest.mark.parametrize("network", [0, 1])
def test_a_step_is_that_by_hand(network: int) -> None:
    """Weights of the other network's split, labels that the run started from, and every option off its default."""
    labels = some_labels()
    method = make(lambda_u=3.0, rampup=4, warmup=2, alpha=0.7, temperature=0.4, prior_weight=2.5)
    random = torch.Generator().manual_seed(3)
    method.clean = torch.rand(2, len(TRAIN), generator=random, dtype=torch.double)
    phase = list(method.phases(3, Scans(), labels))[network]
    assert phase.unlabeled is not None
    labeled = (method.clean[1 - network] > 0.5).tolist()
    assert phase.indices.tolist() == [row for row, kept in zip(TRAIN.tolist(), labeled, strict=True) if kept]
    assert phase.unlabeled.tolist() == [row for row, kept in zip(TRAIN.tolist(), labeled, strict=True) if not kept]
    # the phases of both networks have been made; the weights are those of the last
    for _ in zip(range(network + 1), method.phases(3, Scans(), labels), strict=False):
        pass
    views = [tuple(torch.randn(6, 3, generator=random, dtype=torch.double) for _ in range(2)) for _ in range(2)]
    rows = phase.indices[torch.tensor([7, 0, 3, 4, 2, 1])]
    other = Batch(phase.unlabeled[:6], views[1], labels.current[phase.unlabeled[:6]], 3, 3.0, 8)
    batch = Batch(rows, views[0], labels.current[rows], 3, 3.0, 7, other)
    assert bool((labels.current[rows] != labels.initial[rows]).any())
    terms = method.loss(batch, phase).terms

    own, peer = method.networks[network], method.networks[1 - network]
    with torch.no_grad():
        targets: list[Tensor] = []
        for i, row in enumerate(rows.tolist()):
            p = sum(own(view[i : i + 1]).softmax(1)[0] for view in views[0]) / 2
            w = float(method.clean[1 - network, row - 4])
            targets.append(w * torch.eye(CLASSES).double()[labels.initial[row]] + (1 - w) * p)
        guessed = [
            sum(net(view[i : i + 1]).softmax(1)[0] for net in (own, peer) for view in views[1]) / 4 for i in range(6)
        ]
        sharp = [q ** (1 / 0.4) / (q ** (1 / 0.4)).sum() for q in [*targets, *guessed]]
        again = Batch(rows, views[0], batch.labels, 3, 3.0, 7).generator
        q = torch.stack([*sharp[:6], *sharp[:6], *sharp[6:], *sharp[6:]])
        mixed, q = mix(torch.cat([*views[0], *views[1]]), q, 0.7, again)
        probs = own(mixed).softmax(1)
        means = probs.mean(0)[:3]  # no label is of the fourth class
        expected = {
            f"labeled_{network}": -(q[:12] * probs[:12].log()).sum(1).mean(),
            f"unlabeled_{network}": 3.0 * 0.25 * ((probs[12:] - q[12:]) ** 2).mean(),
            f"prior_{network}": 2.5 * sum(1 / 3 * torch.log(1 / 3 / mean) for mean in means),
        }
    assert set(terms) == set(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term.detach(), torch.as_tensor(expected[name]), msg=name)


def test_no_penalty_and_no_unlabeled_loss_without_their_weights() -> None:
    method, labels = make(prior_weight=0.0, warmup=1), some_labels()
    method.clean = torch.tensor([0.9, 0.1], dtype=torch.double).repeat(2, 18)
    phase = next(iter(method.phases(2, Scans(), labels)))
    assert phase.unlabeled is not None
    views = (torch.randn(6, 3).double(), torch.randn(6, 3).double())
    other = Batch(phase.unlabeled[:6], views, labels.current[:6], 2, 1.5, 8)
    batch = Batch(phase.indices[:6], views, labels.current[:6], 2, 1.5, 7, other)
    assert set(method.loss(batch, phase).terms) == {"labeled_0"}


def test_the_warm_up_learns_the_labels_that_the_run_started_from() -> None:
    method, labels = make(asymmetric=True), some_labels()
    phases = list(method.phases(1, Scans(), labels))
    rows = torch.tensor([5, 6, 9, 12, 30])
    assert not torch.equal(labels.current[rows], labels.initial[rows])
    assert not torch.equal(labels.given[rows], labels.initial[rows])
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    for network in (0, 1):
        terms = method.loss(Batch(rows, (inputs,), labels.current[rows], 1, 0.0, 0), phases[network]).terms
        probs = method.networks[network](inputs).softmax(1)
        expected = -sum(math.log(p[y]) for p, y in zip(probs.tolist(), labels.initial[rows].tolist(), strict=True)) / 5
        assert terms[f"warmup_{network}"].item() == pytest.approx(expected)
        entropy = -(probs * probs.log()).sum(1).mean()
        torch.testing.assert_close(terms[f"negative_entropy_{network}"], -entropy)


def test_a_resumed_epoch_goes_on_with_the_second_network() -> None:
    method, labels, seen = make(), some_labels(), Scans()
    seen.phases_done = 1
    assert [phase.learns for phase in method.phases(1, seen, labels)] == [(1,)]
    method.clean = torch.ones(2, len(TRAIN))
    assert [phase.learns for phase in method.phases(1, seen, labels)] == [(1,)]


def test_labels_of_others_change_with_a_majority_only() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.51, 0.29, 0.1, 0.1], [0.1, 0.2, 0.7, 0.0]])
    assert make().correct(probs, torch.ones(3, dtype=torch.long)).tolist() == [1, 0, 2]


def test_a_phase_has_two_views_once_there_is_a_split() -> None:
    method, labels = make(), some_labels()
    assert [phase.views for phase in method.phases(1, Scans(), labels)] == [1, 1]
    method.clean = torch.ones(2, len(TRAIN))
    phases = list(method.phases(2, Scans(), labels))
    assert [phase.views for phase in phases] == [2, 2]
    assert all(isinstance(phase, Phase) and phase.unlabeled is None for phase in phases)
