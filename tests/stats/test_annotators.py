"""Several annotators: every step of expectation maximization against plain loops, limits, invariances, copies."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from unflip.stats import annotators as module
from unflip.stats.annotators import Annotations, AnnotatorFit, copies, fit_annotators

HABIT_PRIOR = (4.0, 1.0, 1.0)
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)


def uniform(count: int, classes: int) -> Tensor:
    """Log-probabilities that say nothing."""
    return torch.full((count, classes), -math.log(classes))


def predictions(truth: Tensor, classes: int, strength: float, seed: int) -> Tensor:
    """Log-probabilities (n, k) that favor the true class."""
    noise = torch.randn(len(truth), classes, generator=torch.Generator().manual_seed(seed))
    return (noise + strength * torch.nn.functional.one_hot(truth, classes)).log_softmax(1)


def confuse(accuracy: float, classes: int) -> Tensor:
    """A transition matrix (k, k) whose errors are spread evenly."""
    return torch.full((classes, classes), (1 - accuracy) / (classes - 1)).fill_diagonal_(accuracy)


def annotate(truth: Tensor, matrices: Sequence[Tensor], share: float = 1.0, seed: int = 0) -> Annotations:
    """Let every annotator label each example with probability ``share``, by a matrix of their own."""
    random = torch.Generator().manual_seed(seed)
    parts = []
    for number, matrix in enumerate(matrices):
        rows = (torch.rand(len(truth), generator=random) < share).nonzero()[:, 0]
        labels = matrix[truth[rows]].multinomial(1, generator=random)[:, 0] if len(rows) else rows
        parts.append(torch.stack([rows, torch.full_like(rows, number), labels]))
    example, annotator, label = torch.cat(parts, 1)
    return Annotations(example, annotator, label, tuple(f"p{number}" for number in range(len(matrices))))


def draw_truth(count: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def small() -> tuple[Annotations, Tensor]:
    """Four annotators of 40 examples in 3 classes, one of whom often says 0, and predictions."""
    truth = draw_truth(40, 3)
    lazy = 0.2 * confuse(0.9, 3) + 0.8 * torch.tensor([1.0, 0.0, 0.0]).expand(3, 3)
    long = annotate(truth, [confuse(0.9, 3), confuse(0.7, 3), lazy, confuse(0.8, 3)], share=0.7)
    return long, predictions(truth, 3, 1.5, 1)


def various() -> tuple[Annotations, Tensor]:
    """Four annotators of 300 examples, each of whom confuses the classes in their own way."""
    truth, random = draw_truth(300, 3), torch.Generator().manual_seed(5)
    matrices = [torch.eye(3)[torch.randperm(3, generator=random)] * 0.6 + 0.4 / 3 for _ in range(4)]
    return annotate(truth, matrices), predictions(truth, 3, 4.0, 1)


def as_rows(long: Annotations) -> list[tuple[int, int, int]]:
    return [*zip(long.example.tolist(), long.annotator.tolist(), long.label.tolist(), strict=True)]


def softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    whole = sum(math.exp(score - top) for score in scores)
    return [math.exp(score - top) / whole for score in scores]


def habit_matrix(fit: AnnotatorFit, person: int) -> list[list[float]]:
    """The matrix of an annotator who has habits only, entry by entry."""
    right, shared, own = fit.habits[person].tolist()
    confusions, favorites = fit.confusions.tolist(), fit.favorites[person].tolist()
    classes = range(len(favorites))
    return [[right * (c == y) + shared * confusions[c][y] + own * favorites[y] for y in classes] for c in classes]


def full_matrix(fit: AnnotatorFit, person: int) -> list[list[float]]:
    """Habits count as so many labels besides those of the annotator."""
    habits, size = habit_matrix(fit, person), len(fit.confusions)
    counts = fit.counts.view(-1, size, size)[person].T.tolist()  # by class, then label
    return [
        [
            (counts[c][y] + fit.strength * habits[c][y]) / (sum(counts[c]) + fit.strength)
            for y in range(size)
        ]
        for c in range(size)
    ]  # fmt: skip


def test_the_posterior_is_the_product_of_prediction_and_labels() -> None:
    long, log_probs = small()
    fit = fit_annotators(long, log_probs)
    matrices = [full_matrix(fit, person) for person in range(4)]
    for i, row in enumerate(log_probs.tolist()):
        scores = [fit.sharpness * value for value in row]
        for place, (example, person, label) in enumerate(as_rows(long)):
            if example == i:
                weight = fit.label_weight * float(fit.weights[place])
                scores = [s + weight * math.log(matrices[person][c][label]) for c, s in enumerate(scores)]
        assert fit.log_probs[i].exp().tolist() == pytest.approx(softmax(scores), abs=2e-5)


def test_the_first_step_is_a_plain_sum_over_labels() -> None:
    long, log_probs = small()
    fit, rows, people, classes = fit_annotators(long, log_probs, rounds=1), as_rows(long), range(4), range(3)
    q = [[math.exp(value) for value in row] for row in log_probs.tolist()]
    for example, _, label in rows:
        q[example][label] += 1
    q = [[value / sum(row) for value in row] for row in q]
    given = [[1 / 3 + sum(p == person and y == c for _, p, y in rows) for c in classes] for person in people]
    favorites = [[value / sum(row) for value in row] for row in given]
    start = [value / sum(HABIT_PRIOR) for value in HABIT_PRIOR]

    habits = [[*HABIT_PRIOR] for _ in people]
    confusions = [[1 / 3 * (c != y) for y in classes] for c in classes]
    chosen = [[1 / 3 for _ in classes] for _ in people]
    counts = [[[0.0 for _ in classes] for _ in classes] for _ in people]  # by label, then class
    for example, person, label in rows:
        for c in classes:
            kinds = [start[0] * (c == label), start[1] * (c != label) / 2, start[2] * favorites[person][label]]
            part = [q[example][c] * kind / sum(kinds) for kind in kinds]
            counts[person][label][c] += q[example][c]
            habits[person] = [before + now for before, now in zip(habits[person], part, strict=True)]
            confusions[c][label] += part[1]
            chosen[person][label] += part[2]
    for found, expected in ((fit.habits, habits), (fit.confusions, confusions), (fit.favorites, chosen)):
        torch.testing.assert_close(found, torch.tensor([[x / sum(row) for x in row] for row in expected]))
    torch.testing.assert_close(fit.counts.view(4, 3, 3), torch.tensor(counts))


@pytest.mark.parametrize(("data", "is_largest"), [(small, True), (various, False)])
def test_habits_count_as_many_labels_as_is_likely(
    data: Callable[[], tuple[Annotations, Tensor]], is_largest: bool
) -> None:
    fit = fit_annotators(*data())

    def likelihood(strength: float) -> float:
        total = 0.0
        for person in range(4):
            habits, counts = habit_matrix(fit, person), fit.counts.view(4, 3, 3)[person].T.tolist()
            for of_habits, of_labels in zip(habits, counts, strict=True):
                total += math.lgamma(strength) - math.lgamma(strength + sum(of_labels))
                total += sum(
                    math.lgamma(strength * b + n) - math.lgamma(strength * b)
                    for b, n in zip(of_habits, of_labels, strict=True)
                )
        return total

    assert fit.strength == max(STRENGTHS, key=likelihood)
    assert (fit.strength == max(STRENGTHS)) == is_largest


def test_matrices_are_columns_side_by_side_and_their_rows_sum_to_one() -> None:
    long, log_probs = small()
    fit = fit_annotators(long, log_probs)
    labels = torch.arange(3)
    for person in range(4):
        matrix = fit.matrix(person)
        torch.testing.assert_close(matrix.sum(1), torch.ones(3))
        torch.testing.assert_close(matrix, torch.tensor(full_matrix(fit, person)))
        torch.testing.assert_close(fit.columns(torch.full((3,), person), labels), matrix.T)


def test_sharpness_is_that_of_a_general_optimizer() -> None:
    long, log_probs = small()
    q = long.label_counts(40, 3) + log_probs.exp()
    q = (q / q.sum(1, keepdim=True)).double()
    fit = fit_annotators(long, log_probs, rounds=1)
    best = minimize_scalar(
        lambda b: -float((q * (b * log_probs.double()).log_softmax(1)).sum()), bounds=(0.2, 5), method="bounded"
    )
    assert fit.sharpness == pytest.approx(best.x, abs=0.02)


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_predictions_that_are_too_sure_or_not_sure_enough_are_put_right(power: float) -> None:
    truth = draw_truth(2000, 4)
    honest = (3 * torch.randn(2000, 4, generator=torch.Generator().manual_seed(1))).log_softmax(1)
    truth = honest.exp().multinomial(1, generator=torch.Generator().manual_seed(2))[:, 0]
    long = annotate(truth, [confuse(0.9, 4)] * 5)
    fit = fit_annotators(long, (power * honest).log_softmax(1))
    assert fit.sharpness == pytest.approx(1 / power, rel=0.1)


def test_the_weight_of_labels_is_that_with_which_they_predict_each_other() -> None:
    long, log_probs = small()
    fit, rows = fit_annotators(long, log_probs), as_rows(long)
    matrices = [full_matrix(fit, person) for person in range(4)]

    def likelihood(weight: float) -> float:
        total = 0.0
        for place, (example, person, label) in enumerate(rows):
            others = [j for j, row in enumerate(rows) if row[0] == example and j != place]
            if not others:
                continue
            scores = [fit.sharpness * value for value in log_probs[example].tolist()]
            for j in others:
                column = [matrices[rows[j][1]][c][rows[j][2]] for c in range(3)]
                scores = [s + weight * float(fit.weights[j]) * math.log(m) for s, m in zip(scores, column, strict=True)]
            r = softmax(scores)
            total += math.log(sum(r[c] * matrices[person][c][label] for c in range(3)))
        return total

    values = [likelihood(number / 10) for number in range(1, 11)]
    assert likelihood(fit.label_weight) == pytest.approx(max(values), abs=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_with_independent_errors_count_in_full(seed: int) -> None:
    truth = draw_truth(2000, 4, seed)
    long = annotate(truth, [confuse(accuracy, 4) for accuracy in (0.6, 0.7, 0.8, 0.7)], seed=seed)
    assert fit_annotators(long, uniform(2000, 4)).label_weight >= 0.9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_that_err_on_the_same_examples_count_for_less(seed: int) -> None:
    truth = draw_truth(1200, 4, seed)
    easy, hard = (annotate(truth, [confuse(accuracy, 4)] * 5, seed=seed) for accuracy in (0.98, 0.4))
    is_hard = torch.rand(1200, generator=torch.Generator().manual_seed(seed)) < 0.4
    long = easy._replace(label=torch.where(is_hard[easy.example], hard.label, easy.label))
    assert fit_annotators(long, predictions(truth, 4, 2.0, seed)).label_weight < 0.8
    assert fit_annotators(long, predictions(truth, 4, 2.0, seed), rounds=2).label_weight == 1.0
    assert fit_annotators(long, uniform(1200, 4), of_prior=True).label_weight < 0.8


def test_with_many_labels_the_matrices_are_the_true_ones() -> None:
    truth, random = draw_truth(6000, 3), torch.Generator().manual_seed(3)
    matrices = [0.7 * torch.eye(3) + 0.3 * torch.rand(3, 3, generator=random).softmax(1) for _ in range(5)]
    matrices[0] = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.9, 0.1], [0.1, 0.0, 0.9]])
    long = annotate(truth, matrices)
    fit = fit_annotators(long, uniform(6000, 3), of_prior=True)
    for person, matrix in enumerate(matrices):
        torch.testing.assert_close(fit.matrix(person), matrix, atol=0.04, rtol=0)
    assert float((fit.log_probs.argmax(1) == truth).float().mean()) > 0.97


@pytest.mark.parametrize("of_prior", [True, False])
@pytest.mark.parametrize("accuracies", [(0.9, 0.5, 0.5), (0.8, 0.8, 0.8, 0.4, 0.4), (0.95, 0.6, 0.6, 0.6)])
def test_the_consensus_is_better_than_the_majority(accuracies: Sequence[float], of_prior: bool) -> None:
    gains = []
    for seed in range(3):
        truth = draw_truth(1500, 5, seed)
        long = annotate(truth, [confuse(accuracy, 5) for accuracy in accuracies], share=0.8, seed=seed)
        log_probs = uniform(1500, 5) if of_prior else predictions(truth, 5, 2.0, seed)
        fit = fit_annotators(long, log_probs, of_prior=of_prior)
        counts = long.label_counts(1500, 5) + torch.rand(1500, 5, generator=torch.Generator().manual_seed(seed)) / 2
        ours, majority = (float((x.argmax(1) == truth).float().mean()) for x in (fit.log_probs, counts))
        gains.append(ours - majority)
    assert min(gains) > 0


def test_all_who_agree_are_believed() -> None:
    truth = draw_truth(300, 3)
    long = annotate(truth, [torch.eye(3)] * 3)
    fit = fit_annotators(long, uniform(300, 3), of_prior=True)
    assert torch.equal(fit.log_probs.argmax(1), truth)
    assert float(fit.log_probs.exp().amax(1).min()) > 0.95


def test_annotators_have_no_order() -> None:
    long, log_probs = small()
    fit = fit_annotators(long, log_probs)
    order = torch.tensor([2, 0, 3, 1])
    moved = fit_annotators(long._replace(annotator=order[long.annotator]), log_probs)
    torch.testing.assert_close(moved.log_probs, fit.log_probs, atol=1e-4, rtol=1e-4)
    for person in range(4):
        torch.testing.assert_close(moved.matrix(int(order[person])), fit.matrix(person), atol=1e-4, rtol=1e-4)


def test_examples_and_labels_have_no_order() -> None:
    long, log_probs = small()
    fit, random = fit_annotators(long, log_probs), torch.Generator().manual_seed(5)
    order, rows = (torch.randperm(count, generator=random) for count in (40, len(long.example)))
    moved_to = torch.empty(40, dtype=torch.long).scatter_(0, order, torch.arange(40))
    moved = Annotations(moved_to[long.example[rows]], long.annotator[rows], long.label[rows], long.names)
    torch.testing.assert_close(
        fit_annotators(moved, log_probs[order]).log_probs, fit.log_probs[order], atol=1e-4, rtol=1e-4
    )


def test_classes_have_no_order() -> None:
    long, log_probs = small()
    fit, order = fit_annotators(long, log_probs), torch.tensor([2, 0, 1])
    moved = fit_annotators(long._replace(label=order[long.label]), log_probs[:, order.argsort()])
    torch.testing.assert_close(moved.log_probs[:, order], fit.log_probs, atol=1e-4, rtol=1e-4)


def with_copies(truth: Tensor, number: int, seed: int) -> Annotations:
    """Four annotators, and ``number`` who copy the second but for one label in ten."""
    long = annotate(truth, [confuse(accuracy, 4) for accuracy in (0.8, 0.6, 0.75, 0.7)], seed=seed)
    labels = [long.label[long.annotator == 1].clone() for _ in range(number)]
    for place, copied in enumerate(labels):
        copied[place::10] = truth[place::10]
    rows = torch.arange(len(truth))
    return Annotations(
        torch.cat([long.example, *[rows] * number]),
        torch.cat([long.annotator, *(torch.full_like(rows, 4 + place) for place in range(number))]),
        torch.cat([long.label, *labels]),
        tuple("abcdef"[: 4 + number]),
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("number", [1, 2])
def test_copies_are_found_and_count_once(number: int, seed: int) -> None:
    truth = draw_truth(600, 4, seed)
    long = with_copies(truth, number, seed)
    group = [1, *range(4, 4 + number)]
    for of_prior in [True, False][number - 1 :]:  # three of six who agree are right unless features tell otherwise
        log_probs = uniform(600, 4) if of_prior else predictions(truth, 4, 2.0, seed)
        fit = fit_annotators(long, log_probs, of_prior=of_prior)
        found = copies(fit, long)
        assert [pair[:2] for pair in found] == [*combinations(group, 2)]
        for first, second, common, agreed in found:
            one, other = (long.label[long.annotator == person] for person in (first, second))
            assert (common, agreed) == (600, int((one == other).sum()))
        for person in range(4 + number):
            weight = 1 / len(group) if person in group else 1.0
            assert fit.weights[long.annotator == person].unique().tolist() == pytest.approx([weight])


@pytest.mark.parametrize("seed", range(6))
def test_independent_annotators_are_no_copies(seed: int) -> None:
    truth = draw_truth(500, 4, seed)
    long = annotate(truth, [confuse(0.4 + 0.08 * number, 4) for number in range(7)], share=0.7, seed=seed)
    for log_probs, of_prior in ((uniform(500, 4), True), (predictions(truth, 4, 2.0, seed), False)):
        fit = fit_annotators(long, log_probs, of_prior=of_prior)
        assert copies(fit, long) == []
        assert bool((fit.weights == 1).all())


def test_who_shares_few_examples_is_compared_with_nobody() -> None:
    labels = torch.arange(9) % 3
    example = torch.arange(9).repeat(2)
    long = Annotations(example, (torch.arange(18) >= 9).long(), labels.repeat(2), ("a", "b"))
    assert copies(fit_annotators(long, uniform(9, 3)), long) == []


def test_known_classes_count_as_truth() -> None:
    truth = draw_truth(400, 2)
    rates = [confuse(0.9, 2), *[confuse(0.15, 2)] * 3]  # most are wrong
    long = annotate(truth, rates)
    known = torch.where(torch.arange(400) < 200, truth, -1)
    fooled = fit_annotators(long, uniform(400, 2))
    informed = fit_annotators(long, uniform(400, 2), known=known)
    rest = slice(200, None)
    accuracy = [float((fit.log_probs[rest].argmax(1) == truth[rest]).float().mean()) for fit in (fooled, informed)]
    assert accuracy[0] < 0.2
    assert accuracy[1] > 0.9
    for person, rate in enumerate((0.9, 0.15, 0.15, 0.15)):
        torch.testing.assert_close(informed.matrix(person), confuse(rate, 2), atol=0.1, rtol=0)


def test_many_classes_and_annotators_take_as_much_memory_as_their_labels() -> None:
    truth, people, classes = draw_truth(60, 1000), 135, 1000
    random = torch.Generator().manual_seed(0)
    annotator = torch.randint(people, (60, 3), generator=random)
    annotator = (annotator[:, :1] + torch.tensor([0, 1, 2])) % people
    labels = truth.repeat_interleave(3)
    long = Annotations(torch.arange(60).repeat_interleave(3), annotator.flatten(), labels, ("",) * people)
    fit = fit_annotators(long, uniform(60, classes), rounds=4)
    assert fit.counts.shape == (len(fit.pairs), classes)
    assert len(fit.pairs) <= 180
    assert torch.equal(fit.log_probs.argmax(1), truth)
    torch.testing.assert_close(fit.matrix(7).sum(1), torch.ones(classes))


@pytest.mark.parametrize("of_prior", [True, False])
@pytest.mark.parametrize("labels", [0, 1])
def test_with_no_label_or_one_there_is_an_answer(labels: int, of_prior: bool) -> None:
    truth = draw_truth(30, 3)
    log_probs = predictions(truth, 3, 1.0, 0)
    rows = torch.arange(30)[: 30 * labels]
    long = Annotations(rows, rows % 2, truth[rows], ("a", "b"))
    fit = fit_annotators(long, log_probs, of_prior=of_prior)
    assert fit.label_weight == 1.0
    assert bool(fit.log_probs.isfinite().all())
    torch.testing.assert_close(fit.log_probs.exp().sum(1), torch.ones(30))
    if not labels and not of_prior:
        torch.testing.assert_close(fit.log_probs, log_probs, atol=1e-4, rtol=1e-4)


def test_labels_in_blocks_give_the_same_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit_annotators(*small())
    monkeypatch.setattr(module, "_BLOCK_VALUES", 2)  # a label at a time
    torch.testing.assert_close(fit_annotators(*small()).log_probs, whole.log_probs)


def test_a_class_that_nobody_chose_stays_unlikely() -> None:
    truth = draw_truth(200, 3)
    long = annotate(truth, [confuse(0.8, 3)] * 3)
    for log_probs, of_prior in ((uniform(200, 4), True), (predictions(truth, 4, 1.0, 0), False)):
        fit = fit_annotators(long, log_probs, of_prior=of_prior)
        assert bool(fit.log_probs.isfinite().all())
        assert int((fit.log_probs.argmax(1) == 3).sum()) == 0
        for person in range(3):
            torch.testing.assert_close(fit.matrix(person).sum(1), torch.ones(4))


def test_more_rounds_change_nothing_once_it_has_converged() -> None:
    long, log_probs = small()
    few, many = (fit_annotators(long, log_probs, rounds=rounds).log_probs.exp() for rounds in (200, 1000))
    torch.testing.assert_close(few, many)
    steps = [fit_annotators(long, log_probs, rounds=rounds).log_probs.exp() for rounds in (10, 20, 40)]
    first, second = (float((after - before).abs().max()) for before, after in pairwise(steps))
    assert second <= first + 1e-6


def test_labels_of_some_examples_are_counted_from_zero() -> None:
    example, annotator, label = torch.tensor([[0, 0, 3, 5], [1, 0, 1, 0], [2, 1, 0, 2]])
    long = Annotations(example, annotator, label, ("a", "b"))
    part = long.at(torch.tensor([5, 0, 4]), 6)
    assert as_rows(part) == [(1, 1, 2), (1, 0, 1), (0, 0, 2)]
    assert part.counts(3).tolist() == [1, 2, 0]
    assert part.label_counts(3, 3).tolist() == [[0, 0, 1], [0, 1, 1], [0, 0, 0]]
