"""Outcome: what the selected model and the method finally say about every example."""

from typing import NamedTuple

import torch
from torch import Tensor

from unflip.compute.passes import predict_probs, scan
from unflip.labels.quality import pooled, suggested_labels
from unflip.labels.store import LabelStore
from unflip.methods.base import Judgement
from unflip.networks.ensemble import Ensemble
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.runs.labels import Assessment
from unflip.stats.discriminant import Fetch, fit_discriminant, held_out_log_posterior
from unflip.training.divergence import finite
from unflip.training.state import BestEpoch
from unflip.training.trainer import Trainer

_ROWS = 4096  # examples at once
_LARGE = 1e15  # features beyond it are scaled down, since their squares may not add up to a finite number
_LEAST = 2  # examples of a class without which a label of it cannot be judged


class Outcome(NamedTuple):
    """The final assessment of every example."""

    model: Ensemble
    """What predicts: that of the selected epoch."""
    assessment: Assessment
    score: Tensor
    """The method's own score of each given label (n,), to compare methods by; where the method has no out-of-sample
    judgement, this is what it believes after it has learnt the label."""
    features: Tensor
    """Features of the selected model (n, d); with several networks, those of the first."""
    noise: NoiseProfile | None
    """The estimated noise of the given labels, if there is an estimate."""


def conclude(trainer: Trainer, best: BestEpoch, epochs: int, *, clean_val: bool) -> Outcome:
    """Score every example with the selected model, and correct the validation labels."""
    labels, method, val, train = trainer.labels, trainer.method, trainer.val_rows, trainer.method.setting.train
    model = method.model()
    model.load_state_dict(best.state)
    rows = torch.arange(len(labels), device=train.device)
    with finite(f"in the model of epoch {best.epoch}"):
        judgement = method.judgement(labels)
        features, logits = scan(model.networks[0], trainer.source, rows, trainer.processes)
        if len(model.networks) == 1 and model.weights is None:
            probs = logits.softmax(1)
        else:  # of examples that are judged already, nothing has to be predicted
            needed = rows if judgement is None else val
            probs = torch.empty_like(logits)
            probs[needed] = predict_probs(model, trainer.source, trainer.processes, needed)
        del logits
        if len(val) and not clean_val:
            corrected = method.correct(probs[val], labels.initial[val])
            labels.change(epochs, val, corrected, probs[val].gather(1, corrected[:, None])[:, 0])
        noise = _estimate_noise(labels, probs, train, val[:0] if clean_val else val)
        if judgement is None:
            return _judge(trainer, model, probs, features, noise)
        return _adopt(judgement, trainer, model, probs, features, noise)


def _adopt(
    judgement: Judgement, trainer: Trainer, model: Ensemble, probs: Tensor, features: Tensor, noise: NoiseProfile | None
) -> Outcome:
    """Adopt the method's own judgement of the training examples, and judge the validation examples by its model."""
    labels, method, val, train = trainer.labels, trainer.method, trainer.val_rows, trainer.method.setting.train
    network, votes = probs.clone(), None
    if judgement.votes is not None and model.gaussians is not None:
        votes = torch.empty_like(probs)
        votes[train] = judgement.votes.float().exp()
        for rows in val.split(_ROWS):
            votes[rows] = model.gaussians.log_posterior(trainer.source.fetch(rows)).exp()
    probs[train], network[train] = judgement.probs.exp(), judgement.network.float().exp()
    quality = torch.empty(len(labels), device=train.device)
    quality[train], quality[val] = judgement.quality, method.quality(probs[val], labels.initial[val])
    fold = torch.full_like(labels.initial, -1)
    out_of_sample = torch.ones(len(labels), dtype=torch.bool, device=train.device)
    if judgement.fold is None:
        out_of_sample[train] = False
    else:
        fold[train] = judgement.fold
    assessment = Assessment(probs, network, votes, quality, labels.current, out_of_sample, fold)
    return Outcome(model, assessment, quality, features, noise)


def _judge(trainer: Trainer, model: Ensemble, probs: Tensor, features: Tensor, noise: NoiseProfile | None) -> Outcome:
    """Assess every example where the method itself has only seen the labels that it would have to judge.

    Quality is then as out of sample as it can be at no great cost: that of class Gaussians fitted to the inputs under
    the corrected labels, which leave each training example out; validation examples are judged by the model as well.
    Images have no features that were not learnt from the labels, so training examples among them are judged in-sample.
    """
    labels, train, val = trainer.labels, trainer.method.setting.train, trainer.val_rows
    of_rows, given = trainer.method.setting.of_rows, labels.initial
    size = max(-float(features.min()), float(features.max())) if len(features) else 0.0
    votes = _votes((features / size if size > _LARGE else features).__getitem__, trainer)
    network = probs
    if (beliefs := trainer.method.beliefs()) is not None:
        probs = probs.clone()
        probs[train] = beliefs.to(probs)
    score = _pooled_own(probs, votes, given)
    if of_rows:
        votes = _votes(trainer.source.fetch, trainer)
    quality = _pooled_own(probs, votes, given)
    if of_rows:
        quality[train] = votes.gather(1, given[:, None])[train, 0]
    alone = given[train].bincount(minlength=labels.num_classes) < _LEAST
    quality[alone[given]] = torch.nan
    out_of_sample = torch.full_like(given, of_rows, dtype=torch.bool)
    out_of_sample[val] = True
    parts = zip(*(part.split(_ROWS) for part in (labels.given, labels.current, probs, votes)), strict=True)
    suggested = torch.cat([suggested_labels(*part) for part in parts])
    assessment = Assessment(probs, network, votes, quality, suggested, out_of_sample, torch.full_like(given, -1))
    return Outcome(model, assessment, score, features, noise)


def _pooled_own(probs: Tensor, votes: Tensor, labels: Tensor) -> Tensor:
    """Return the probability (n,) of each label in the pool of both views."""
    parts = zip(probs.split(_ROWS), votes.split(_ROWS), labels.split(_ROWS), strict=True)
    return torch.cat([pooled(some, others).gather(1, own[:, None])[:, 0] for some, others, own in parts])


def _votes(fetch: Fetch, trainer: Trainer) -> Tensor:
    """Return class probabilities (n, k) under class Gaussians of the training examples, each of which is left out."""
    labels, train, val = trainer.labels, trainer.method.setting.train, trainer.val_rows
    current = labels.current[train]
    groups = trainer.method.setting.groups
    fitted = fit_discriminant(lambda rows: fetch(train[rows]), current, labels.num_classes)
    votes = torch.empty(len(labels), labels.num_classes, device=train.device)
    votes[train] = held_out_log_posterior(fitted, lambda rows: fetch(train[rows]), current, groups)
    for rows in val.split(_ROWS):
        votes[rows] = fitted.log_posterior(fetch(rows))
    return votes.exp_()


def _estimate_noise(labels: LabelStore, probs: Tensor, train: Tensor, val: Tensor) -> NoiseProfile | None:
    """Estimate the noise of the given labels: its rate, the rate by class, and the transition matrix.

    If training labels were corrected, the corrected labels stand in for the truth. If not, the selected model's
    predictions do, but only on the validation examples ``val``, whose labels it did not learn from.
    """
    given, current = labels.given, labels.current
    if bool((labels.initial != current)[train].any()):  # other than reviewed ones
        rows = torch.cat([train, val])
        return measure_noise(current[rows].cpu(), given[rows].cpu(), labels.num_classes)
    if len(val):
        return measure_noise(probs[val].argmax(1).cpu(), given[val].cpu(), labels.num_classes)
    return None
