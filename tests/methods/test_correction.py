"""Correction rules against loops; the window and the threshold as they move."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.methods import base as tables
from unflip.methods import plc
from unflip.methods.base import LabelStore
from unflip.methods.plc import CorrectionOptions, Corrector, ProbabilityWindow, margin_rule, ratio_rule


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, float]:
    classes = draw(st.integers(2, 6))
    count = draw(st.integers(1, 30))
    seed = draw(st.integers(0, 10_000))
    random = torch.Generator().manual_seed(seed)
    probs = (4 * torch.randn(count, classes, generator=random)).softmax(1)
    labels = torch.randint(classes, (count,), generator=random)
    return probs, labels, draw(st.floats(0.01, 0.99))


@given(problems())
def test_the_ratio_rule_is_the_loop_of_the_released_code(problem: tuple[Tensor, Tensor, float]) -> None:
    probs, labels, threshold = problem
    expected = labels.tolist()
    for i, row in enumerate(probs.tolist()):
        best = max(range(len(row)), key=row.__getitem__)
        if row[expected[i]] / row[best] < threshold - 1e-6:
            expected[i] = best
    got = ratio_rule(probs, labels, threshold).tolist()
    near = (probs.gather(1, labels[:, None])[:, 0] / probs.max(1).values - threshold).abs() < 1e-5
    assert [e for e, skip in zip(expected, near, strict=True) if not skip] == [
        g for g, skip in zip(got, near, strict=True) if not skip
    ]


@given(problems())
def test_the_margin_rule_is_the_loop_of_appendix_b(problem: tuple[Tensor, Tensor, float]) -> None:
    probs, labels, threshold = problem
    expected = labels.tolist()
    margins = []
    for i, row in enumerate(probs.tolist()):
        best = max(range(len(row)), key=row.__getitem__)
        margins.append(row[best] - row[expected[i]])
        if margins[-1] > threshold:
            expected[i] = best
    sure = [abs(margin - threshold) > 1e-6 for margin in margins]
    got = margin_rule(probs, labels, threshold).tolist()
    assert [e for e, s in zip(expected, sure, strict=True) if s] == [g for g, s in zip(got, sure, strict=True) if s]


@given(problems())
def test_with_two_classes_the_margin_rule_is_that_of_section_3_1(problem: tuple[Tensor, Tensor, float]) -> None:
    probs, labels, threshold = problem
    f = probs[:, 1] / (probs[:, 0] + probs[:, 1])
    binary, labels = torch.stack([1 - f, f], 1), labels % 2
    far = (f - 0.5).abs()
    expected = torch.where(far > threshold / 2, (f >= 0.5).long(), labels)
    sure = (far - threshold / 2).abs() > 1e-5
    assert torch.equal(margin_rule(binary, labels, threshold)[sure], expected[sure])


@given(problems())
def test_rules_are_idempotent_and_never_leave_the_best_class(problem: tuple[Tensor, Tensor, float]) -> None:
    probs, labels, threshold = problem
    for rule in (ratio_rule, margin_rule):
        once = rule(probs, labels, threshold)
        assert torch.equal(rule(probs, once, threshold), once)
        best = probs.argmax(1)
        assert torch.equal(rule(probs, best, threshold), best)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 99))
def test_the_window_averages_what_exists_of_the_last_epochs(size: int, epochs: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    history = [torch.rand(4, 3, generator=random) for _ in range(epochs)]
    window = ProbabilityWindow(size)
    for epoch, probs in enumerate(history, 1):
        window.add(probs)
        last = history[max(0, epoch - size) : epoch]
        torch.testing.assert_close(window.mean(), sum(last) / len(last))
    torch.testing.assert_close(history[-1], window.stored[-1], rtol=0, atol=0)  # the mean spoils nothing


def test_a_large_window_is_kept_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "HALF_ABOVE", 4 * 3 * 5 - 1)
    window = ProbabilityWindow(5)
    window.add(torch.full((4, 3), 1 / 3))
    assert window.stored[0].dtype == torch.float16
    assert window.mean().dtype == torch.float32
    torch.testing.assert_close(window.mean(), torch.full((4, 3), 1 / 3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("rows", [2, 100])
def test_of_a_window_that_would_not_fit_a_running_mean_is_kept(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(tables, "HALF_ABOVE", 1)
    monkeypatch.setattr(plc, "RUNNING_MEAN_ABOVE", 1)
    monkeypatch.setattr(plc, "BLOCK_ROWS", rows)
    random = torch.Generator().manual_seed(0)
    history = [torch.rand(5, 3, generator=random) for _ in range(7)]
    window, expected = ProbabilityWindow(3), torch.zeros(5, 3)
    for epoch, probs in enumerate(history, 1):
        window.add(probs)
        expected += (probs - expected) / min(epoch, 3)
        assert len(window.stored) == 1
        torch.testing.assert_close(window.mean().float(), expected, atol=2e-3, rtol=0)
    other = ProbabilityWindow(3)
    other.load_state_dict(window.state_dict(), torch.device("cpu"))
    for each in (window, other):
        each.add(history[0])
    assert torch.equal(window.mean(), other.mean())


def _corrector(count: int = 1000, **options: Any) -> tuple[Corrector, LabelStore]:
    labels = LabelStore(torch.zeros(count, dtype=torch.long), 3)
    return Corrector(CorrectionOptions(**options), torch.arange(count)), labels


@pytest.mark.parametrize(
    ("rule", "path"), [("ratio", [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9]), ("margin", [0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1])]
)
def test_the_threshold_relaxes_by_a_step_on_every_stall_up_to_its_limit(rule: str, path: list[float]) -> None:
    corrector, labels = _corrector(rule=rule)
    corrector.window.add(torch.tensor([[0.9, 0.05, 0.05]]).repeat(1000, 1))
    seen = []
    for epoch in range(1, len(path) + 1):
        assert corrector.correct(epoch, labels) == 0
        seen.append(corrector.threshold)
    assert seen == pytest.approx(path)


@pytest.mark.parametrize(("changes", "threshold"), [(1, 0.3), (0, 0.4)])
def test_a_thousandth_of_the_labels_is_no_stall(changes: int, threshold: float) -> None:
    corrector, labels = _corrector(count=1000)
    probs = torch.tensor([[0.9, 0.05, 0.05]]).repeat(1000, 1)
    probs[:changes] = torch.tensor([0.05, 0.9, 0.05])
    corrector.window.add(probs)
    assert corrector.correct(1, labels) == changes
    assert corrector.threshold == pytest.approx(threshold)
    assert labels.history()["confidence"].tolist() == pytest.approx([0.9] * changes)


def test_a_threshold_past_its_limit_stays_where_it_is() -> None:
    corrector, labels = _corrector(threshold=0.95)
    corrector.window.add(torch.tensor([[1.0, 0.0, 0.0]]).repeat(1000, 1))
    corrector.correct(1, labels)
    assert corrector.threshold == 0.95


def test_only_the_rows_that_train_are_changed() -> None:
    labels = LabelStore(torch.zeros(6, dtype=torch.long), 2)
    corrector = Corrector(CorrectionOptions(), torch.tensor([1, 3, 4]))
    corrector.window.add(torch.tensor([[0.0, 1.0]]).repeat(3, 1))
    assert corrector.correct(1, labels) == 3
    assert labels.current.tolist() == [0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(("rule", "expected"), [("ratio", [0, 1, 0]), ("margin", [0, 1, 1])])
def test_what_is_proposed_changes_nothing_and_follows_rule_and_threshold(rule: str, expected: list[int]) -> None:
    corrector, _ = _corrector(rule=rule, threshold=0.3)
    labels = torch.zeros(3, dtype=torch.long)
    probs = torch.tensor([[0.4, 0.6, 0.0], [0.1, 0.9, 0.0], [0.3, 0.7, 0.0]])
    assert corrector.propose(probs, labels).tolist() == expected
    assert labels.tolist() == [0, 0, 0]
