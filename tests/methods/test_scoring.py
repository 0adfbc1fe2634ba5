"""Judging labels by somebody's own probabilities."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor

from unflip import find_label_errors
from unflip.methods.unflip.posterior import disagreement, score_labels


def made_up(count: int = 3000, classes: int = 4, noise: float = 0.2) -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities of a fair model, noisy labels, and the truth."""
    random = torch.Generator().manual_seed(0)
    truth = torch.randint(classes, (count,), generator=random)
    scores = torch.randn(count, classes, generator=random)
    scores[torch.arange(count), truth] += 4
    flipped = torch.rand(count, generator=random) < noise
    labels = torch.where(flipped, torch.randint(classes, (count,), generator=random), truth)
    return (2 * scores).softmax(1), labels, truth


def test_wrong_labels_are_corrected_and_have_a_low_quality() -> None:
    probs, labels, truth = made_up()
    suggested, log_odds, _ = score_labels(probs, labels)
    before, after = (labels == truth).float().mean(), (suggested == truth).float().mean()
    assert before < 0.86
    assert after > 0.95
    assert roc_auc_score((labels == truth).numpy(), log_odds.numpy()) > 0.98


def test_right_labels_stay() -> None:
    probs, _, truth = made_up()
    assert (score_labels(probs, truth)[0] == truth).float().mean() > 0.98


def test_the_order_of_classes_and_of_examples_does_not_matter() -> None:
    probs, labels, _ = made_up()
    (suggested, log_odds, _), order = score_labels(probs, labels), torch.tensor([2, 0, 3, 1])
    renamed, other_odds, _ = score_labels(probs[:, order], order.argsort()[labels])
    assert (order[renamed] == suggested).float().mean() > 0.999
    torch.testing.assert_close(other_odds.sigmoid(), log_odds.sigmoid(), atol=1e-3, rtol=1e-2)


def test_disagreement_is_that_of_informative_labels() -> None:
    log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]).log()
    assert disagreement(log_probs, torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.5, 0.25])) == pytest.approx(
        0.75 / 1.75
    )


def test_probabilities_of_ones_own_model_take_the_place_of_features() -> None:
    inputs, truth = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    wrong = random.random(len(truth)) < 0.15
    given = np.where(wrong, (truth + random.integers(1, 10, len(truth))) % 10, truth)
    model = LogisticRegression(max_iter=50, C=0.01)
    probs = cross_val_predict(model, inputs / 16, given, cv=3, method="predict_proba")
    scores = find_label_errors(labels=given, pred_probs=probs)
    table = pa.table(scores.ranked)
    assert table.column_names == [
        "index",
        "given_label",
        "suggested_label",
        "label_quality",
        "is_label_issue",
        "wrong_so_far",
    ]
    index = table["index"].to_numpy()
    found = np.zeros(len(truth), bool)
    found[index[table["is_label_issue"].to_numpy()]] = True
    assert (found == wrong).mean() > 0.95
    assert bool((np.diff(table["label_quality"].to_numpy()) >= 0).all())
    assert pa.table(scores.issues)["index"].to_pylist() == index[table["is_label_issue"].to_numpy()].tolist()
    about = scores.label_summary
    assert about.low <= wrong.sum() <= about.high
    assert about.issues == found.sum()
    assert str(about) == scores.summary()
    assert scores.summary() in scores._repr_html_()
    assert find_label_errors(
        labels=given, pred_probs=pa.table(dict(zip(map(str, range(10)), probs.T, strict=True)))
    ).ranked.equals(table)
    named = pa.table(find_label_errors(labels=np.array(list("abcdefghij"))[given], pred_probs=probs).ranked)
    assert named["suggested_label"].to_pylist() == [
        "abcdefghij"[label] for label in table["suggested_label"].to_pylist()
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"labels": None, "pred_probs": [[1.0]]}, "give either labels"),
        ({"labels": [0, 1]}, "give either features or pred_probs"),
        ({"features": [[1.0]], "labels": [0], "pred_probs": [[1.0]]}, "give either features or pred_probs"),
        ({"labels": [0, 1], "pred_probs": [[0.5, 0.5]]}, r"shape \(1, 2\) for 2 labels"),
        ({"labels": ["a", "b"], "pred_probs": [[0.5, 0.3, 0.2]] * 2}, "3 columns for 2 classes"),
        ({"labels": [0, 1], "pred_probs": [[0.5, 0.2]] * 2}, "add up to 1"),
        ({"labels": [0, 1], "pred_probs": [[1.5, -0.5]] * 2}, "from 0 to 1"),
        ({"labels": [0, 1], "pred_probs": [[0.5, 0.5]] * 2, "epochs": 3}, "epochs: nothing is trained"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_label_errors(**arguments)  # type: ignore[call-overload]
