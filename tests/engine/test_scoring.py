"""Final scores of a small run, recomputed by hand from its trainer: who scores whom, under which labels."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import blobs, capture_trainers, quick_train, write_npz
from unflip.engine import scoring
from unflip.engine.scoring import FinalScores, pooled, score_examples, transition_matrix
from unflip.engine.trainer import Trainer
from unflip.stats.discriminant import Fetch, fit_discriminant, leave_group_out_log_posterior
from unflip.stats.noise_rate import lapse_rates
from unflip.stats.odds import calibrate, fit_slope

ROWS = torch.arange(150)


def scored(
    method: str, folder: Path, monkeypatch: pytest.MonkeyPatch, unlabeled: Sequence[int] = (), **settings: Any
) -> tuple[Trainer, FinalScores]:
    """Train on pairs of equal rows with some labels wrong, some reviewed, one class of one example; score them."""
    content = blobs()
    for name in ("train", "train_labels"):
        content[name][75:] = content[name][:75]
    content["train"] += np.random.default_rng(0).normal(size=(150, 6)).astype(np.float32).repeat(2, 0)[:150] * 2
    content["train"][75:] = content["train"][:75]
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    content["train_labels"][33] = 3
    content["train_labels"] = content["train_labels"].astype(np.float32)
    content["train_labels"][list(unlabeled)] = np.nan
    (folder / "reviewed.csv").write_text("index,label\n" + "".join(f"{row},{row % 3}\n" for row in range(0, 40, 3)))
    trainers = capture_trainers(monkeypatch)
    options = {"data.val_fraction": 0.2, "data.classes": 4, "select": "last"} | settings
    data = write_npz(folder / "data.npz", **content)
    quick_train(data, folder / "run", method=method, epochs=4, settings=options, reviewed=folder / "reviewed.csv")
    (trainer,) = trainers
    best: Any = SimpleNamespace(state=trainer.method.model().state_dict(), epoch=4)
    scores, features = score_examples(trainer, best, 4, clean_val=False)
    network = trainer.method.model().networks[0].eval()
    torch.testing.assert_close(features, network.encode(trainer.source.fetch(ROWS)).detach(), rtol=1e-4, atol=1e-4)
    return trainer, scores


def named(table: Tensor, trainer: Trainer, suggested: Tensor) -> Tensor:
    """Return the probabilities of the given, current and suggested label."""
    labels = trainer.labels
    return table.gather(1, torch.stack([labels.given, labels.current, suggested], 1))


def gaussian_log_probs(features: Tensor, trainer: Trainer) -> Tensor:
    """Return log-probabilities by class Gaussians of current labels; training examples and copies are left out."""
    train, current = trainer.method.context.train, trainer.labels.current
    rows, groups = features[train], trainer.method.context.groups
    assert groups is not None
    fitted = fit_discriminant(rows.__getitem__, current[train], 4)
    result = fitted.log_posterior(features)
    result[train] = leave_group_out_log_posterior(fitted, rows.__getitem__, current[train], groups)
    return result


def test_scores_of_a_method_without_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"plc.warmup": 1}
    trainer, scores = scored("plc", tmp_path, monkeypatch, **settings)
    labels, train = trainer.labels, trainer.method.context.train
    is_train = torch.zeros(150, dtype=torch.bool).index_fill_(0, train, True)
    inputs, assessment = trainer.source.fetch(ROWS), scores.assessment
    model = trainer.method.model()
    by_network = model.probs(inputs).detach()
    own = by_network.clone()
    own_train = trainer.method.train_probs()
    assert own_train is not None
    own[train] = own_train
    log_gaussian = gaussian_log_probs(inputs, trainer)
    log_probs = torch.where(is_train[:, None], log_gaussian, (own.log() + log_gaussian) / 2)
    top2_probs, top2 = log_probs.softmax(1).topk(2)
    assert torch.equal(assessment.top2, top2)
    torch.testing.assert_close(assessment.top2_probs, top2_probs, atol=1e-4, rtol=1e-3)
    pool = pooled(own, log_gaussian.exp())
    suggested = torch.where(labels.current != labels.given, labels.current, pool.argmax(1))
    assert torch.equal(assessment.suggested, suggested)
    for got, view in zip(assessment[:3], (own, by_network, log_gaussian.exp()), strict=True):
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got, named(view, trainer, suggested), atol=1e-4, rtol=1e-3)
    initial, right = labels.initial, log_probs.softmax(1)
    odds = torch.stack([right[i, y].log() - (right[i].sum() - right[i, y]).log() for i, y in enumerate(initial)])
    odds[initial == 3] = torch.nan
    kept = train[~labels.trusted[train]]
    margins = (top2_probs[:, 0] / (1 - top2_probs[:, 0]).clamp(min=1e-9)).log()
    lapses = lapse_rates(margins[kept], top2[kept, 0] != initial[kept])
    line = calibrate(odds[kept], fit_slope(odds[kept], torch.ones(len(kept))), lapses)
    seen = odds.abs() < 8  # in float32 a probability near 1 says no more
    torch.testing.assert_close(assessment.log_odds[seen], line.apply(odds)[seen], atol=0.02, rtol=0.01)
    assert assessment.log_odds.isnan().tolist() == (initial == 3).tolist()
    unreviewed = torch.cat([train, trainer.val_rows])
    unreviewed = unreviewed[~labels.trusted[unreviewed]]
    torch.testing.assert_close(scores.errors, line.wrong(odds[unreviewed]), atol=0.05, rtol=0.01)
    assert bool(assessment.out_of_sample.all())
    assert assessment.fold.tolist() == [-1] * 150
    by_features = gaussian_log_probs(model.networks[0].eval().encode(inputs).detach(), trainer)
    expected = pooled(own, by_features.exp()).gather(1, initial[:, None])[:, 0]
    torch.testing.assert_close(scores.score, expected, atol=2e-3, rtol=0)
    assert scores.transition is not None
    assert torch.equal(scores.transition, transition_matrix(labels.current, labels.given, 4))
    assert float(scores.transition.diagonal().min()) < 0.95
    val = trainer.val_rows
    corrected = trainer.method.correct(by_network[val], initial[val])
    assert torch.equal(labels.current[val], corrected.where(~labels.trusted[val], initial[val]))


def test_scores_of_a_method_with_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"unflip.warmup": 1, "unflip.members": 3, "unflip.steps": 20}
    trainer, scores = scored("unflip", tmp_path, monkeypatch, [10, 11], **settings)
    labels, train, val, assessment = trainer.labels, trainer.method.context.train, trainer.val_rows, scores.assessment
    own = trainer.method.label_scores(labels)
    assert own is not None
    assert own.gaussian_probs is not None
    assert own.fold is not None
    model, inputs = trainer.method.model(), trainer.source.fetch(val)
    assert model.gaussians is not None
    probs, pair = model.probs(inputs).detach(), torch.stack([labels.given, labels.current, labels.current], 1)[val]
    of_gaussians = model.gaussians.log_posterior(inputs).exp()
    of_train = (own.probs, own.network, own.gaussian_probs)
    for got, mine, others in zip(assessment[:3], of_train, (probs, probs, of_gaussians), strict=True):
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got[train], mine[:, [0, 1, 1]])
        torch.testing.assert_close(got[val], others.gather(1, pair), atol=1e-5, rtol=1e-4)
    assert torch.equal(assessment.top2[train], own.top2)
    torch.testing.assert_close(assessment.top2_probs[train], own.top2_probs)
    top2_probs, top2 = probs.topk(2)
    assert torch.equal(assessment.top2[val], top2)
    torch.testing.assert_close(assessment.top2_probs[val], top2_probs, atol=1e-5, rtol=1e-4)
    assert torch.equal(assessment.fold[train], own.fold)
    assert assessment.fold[val].tolist() == [-1] * len(val)
    odds = own.calibration.apply(trainer.method.odds(probs, labels.initial[val]))
    torch.testing.assert_close(assessment.log_odds[val], odds, atol=1e-3, rtol=1e-3, equal_nan=True)
    torch.testing.assert_close(assessment.log_odds[train], own.calibration.apply(own.odds), equal_nan=True)
    every = torch.cat([own.odds, trainer.method.odds(probs, labels.initial[val])])
    kept = ~labels.trusted[torch.cat([train, val])]
    torch.testing.assert_close(scores.errors, own.calibration.wrong(every[kept]), atol=1e-3, rtol=1e-3)
    assert torch.equal(assessment.suggested, labels.current.where(labels.current >= 0, assessment.top2[:, 0]))
    kept = labels.initial >= 0
    assert torch.equal(scores.score[kept].nan_to_num(), assessment.log_odds[kept].nan_to_num())
    assert bool(assessment.out_of_sample.all())
    unlabeled = (~kept).nonzero()[:, 0]
    assert unlabeled.tolist() == [10, 11]
    torch.testing.assert_close(
        assessment.top2_probs[unlabeled], model.probs(trainer.source.fetch(unlabeled)).detach().topk(2).values
    )
    assert bool(assessment.log_odds[unlabeled].isnan().all())


def test_labels_that_are_known_to_be_right_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = scored("standard", tmp_path, monkeypatch)
    monkeypatch.setattr(trainer.method, "correct", lambda probs, labels: (labels + 1) % 3)
    best: Any = SimpleNamespace(state=trainer.method.model().state_dict(), epoch=4)
    before, val = trainer.labels.current.clone(), trainer.val_rows
    scores, _ = score_examples(trainer, best, 4, clean_val=True)
    assert torch.equal(trainer.labels.current, before)
    assert scores.transition is None
    scores, _ = score_examples(trainer, best, 4, clean_val=False)
    changed = ~trainer.labels.trusted[val]
    assert torch.equal((trainer.labels.current != before)[val], changed)
    probs = trainer.method.model().probs(trainer.source.fetch(val))
    assert scores.transition is not None
    assert torch.equal(scores.transition, transition_matrix(probs.argmax(1), trainer.labels.given[val], 4))
    history = trainer.labels.history()
    assert set(history["epoch"].tolist()) == {4}
    new = trainer.labels.current[history["index"]]
    position = {int(row): i for i, row in enumerate(val)}
    expected = [float(probs[position[int(row)], label]) for row, label in zip(history["index"], new, strict=True)]
    assert history["confidence"].tolist() == pytest.approx(expected, abs=1e-5)


def test_large_features_are_scaled_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their squares would overflow; probabilities do not depend on the scale."""
    trainer, plain = scored("standard", tmp_path, monkeypatch)
    sizes: list[float] = []

    def watched(fetch: Fetch, of: Trainer) -> Any:
        sizes.append(float(fetch(ROWS).abs().max()))
        return view(fetch, of)

    view = scoring._gaussian_view
    monkeypatch.setattr(scoring, "_gaussian_view", watched)
    monkeypatch.setattr(scoring, "_LARGE", 0.5)
    best: Any = SimpleNamespace(state=trainer.method.model().state_dict(), epoch=4)
    scores, features = score_examples(trainer, best, 4, clean_val=False)
    assert sizes[0] == pytest.approx(1)
    assert float(features.abs().max()) > 1.5
    torch.testing.assert_close(scores.score, plain.score, atol=1e-3, rtol=0)

    def negative(*arguments: Any) -> tuple[Tensor, Tensor]:
        features, probs = predict(*arguments)
        return -features, probs

    predict = scoring._predict
    monkeypatch.setattr(scoring, "_predict", negative)
    scores, _ = score_examples(trainer, best, 4, clean_val=False)
    assert sizes[2] == pytest.approx(1)
    torch.testing.assert_close(scores.score, plain.score, atol=1e-3, rtol=0)
