"""Outcome: what the selected model and the method finally say about every example."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from unflip.engine.checkpoints import BestEpoch
from unflip.engine.inference import forward_batches, predictions
from unflip.engine.trainer import Trainer, finite
from unflip.methods.base import LabelScores, TrainContext
from unflip.methods.labels import LabelStore
from unflip.nn.ensemble import Ensemble
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.runs.labels import Assessment
from unflip.stats.discriminant import Fetch, by_group, fit_discriminant, held_out
from unflip.stats.odds import calibrate, log_odds
from unflip.stats.rows import HALF_MOST, storage_dtype

_ROWS = 1024  # examples at once
_LARGE = 1e15  # features beyond it are scaled down, since their squares may not add up to a finite number
_TINY = 1e-30
_LEAST = 2  # examples of a class without which a label of it cannot be judged


class FinalScores(NamedTuple):
    """The final assessment of every example."""

    model: Ensemble
    """What predicts: that of the selected epoch."""
    assessment: Assessment
    score: Tensor
    """The method's own score of each given label (n,), to compare methods by; where the method has no out-of-sample
    judgment, this is what it believes after it has learned the label."""
    noise: NoiseProfile | None
    """The estimated noise of the given labels, if there is an estimate."""


def score_examples(trainer: Trainer, best: BestEpoch, epochs: int, *, clean_val: bool) -> tuple[FinalScores, Tensor]:
    """Score every example with the selected model, and correct the validation labels.

    Removed examples are judged as validation examples are, since nothing has learned them either; their labels stay.

    Also return the features (n, d) of the selected model, with several networks those of the first.
    """
    labels, method, val, train = trainer.labels, trainer.method, trainer.val_rows, trainer.method.context.train
    others = _others(train, len(labels))
    model = method.model()
    model.load_state_dict(best.state)
    with finite(f"in the model of epoch {best.epoch}"):
        label_scores = method.label_scores(labels)
        # of examples that are judged already, nothing has to be predicted
        asked = torch.arange(len(labels), device=train.device) if label_scores is None else others
        features, probs = _ask(model, trainer, asked)
        of_others = (probs if label_scores is not None else probs[others]).float()
        of_val = of_others[torch.isin(others, val)]
        if len(val) and not clean_val:
            corrected = method.correct(of_val, labels.initial[val])
            labels.change(epochs, val, corrected, of_val.gather(1, corrected[:, None])[:, 0])
        noise = _estimate_noise(labels, of_val, train, val[:0] if clean_val else val)
        if label_scores is not None:
            return _adopt(label_scores, trainer, model, of_others, noise), features
        del of_others, of_val  # what follows takes memory, too
        return _score(trainer, model, probs, features, noise), features


def _ask(model: Ensemble, trainer: Trainer, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features (n, d) of all examples by the first network, and the model's probabilities of some (m, k)."""
    network, source, processes, count = model.networks[0], trainer.source, trainer.processes, len(trainer.labels)
    features = _table(count, network.head.in_features, asked.device)
    probs = _table(len(asked), network.head.out_features, asked.device)
    alone = len(model.networks) == 1 and model.weights is None and len(asked) == count
    for rows, batch in forward_batches(network, source, torch.arange(count, device=asked.device), processes):
        features[rows] = (
            batch.features if features.dtype == torch.float32 else batch.features.clamp(-HALF_MOST, HALF_MOST)
        )
        if alone:
            probs[rows] = batch.logits.softmax(1)
    if not alone:
        for rows, some in predictions(model, source, processes, asked):
            probs[rows] = some
    return features, probs


def _table(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.empty(rows, columns, dtype=storage_dtype(rows * columns), device=device)


def _adopt(
    label_scores: LabelScores, trainer: Trainer, model: Ensemble, of_others: Tensor, noise: NoiseProfile | None
) -> FinalScores:
    """Adopt the method's own judgment of the training examples, and judge all others by its model."""
    labels, method, train = trainer.labels, trainer.method, trainer.method.context.train
    others = _others(train, len(labels))
    named = torch.stack([labels.given, labels.current], 1)

    def joined(of_train: Tensor, rest: Tensor) -> Tensor:
        pair = torch.empty(len(labels), 2, device=train.device)
        pair[train], pair[others] = of_train, rest.gather(1, named[others])
        return pair[:, [0, 1, 1]]  # what is current is suggested

    gaussian_probs = None
    if label_scores.gaussian_probs is not None and model.gaussians is not None:
        parts = [model.gaussians.log_posterior(trainer.source.fetch(rows)).exp() for rows in others.split(_ROWS)]
        gaussian_probs = joined(label_scores.gaussian_probs, torch.cat(parts) if parts else of_others)
    odds = torch.empty(len(labels), device=train.device)
    odds[train], odds[others] = label_scores.odds, method.odds(of_others, labels.initial[others])
    odds = label_scores.calibration.apply(odds)
    fold = torch.full_like(labels.initial, -1)
    out_of_sample = torch.ones(len(labels), dtype=torch.bool, device=train.device)
    if label_scores.fold is None:
        out_of_sample[train] = False
    else:
        fold[train] = label_scores.fold
    top2 = labels.given.new_empty(len(labels), 2)
    top2_probs = torch.empty(len(labels), 2, device=train.device)
    top2[train], top2_probs[train] = label_scores.top2, label_scores.top2_probs
    top2_probs[others], top2[others] = of_others.topk(2)
    assessment = Assessment(
        joined(label_scores.probs, of_others), joined(label_scores.network, of_others), gaussian_probs, top2,
        top2_probs, odds, labels.current, out_of_sample, fold,
    )  # fmt: skip
    return FinalScores(model, assessment, odds, noise)


def _score(
    trainer: Trainer, model: Ensemble, probs: Tensor, features: Tensor, noise: NoiseProfile | None
) -> FinalScores:
    """Assess every example where the method itself has only seen the labels that it would have to judge.

    Quality is then as out of sample as it can be at no great cost: that of class Gaussians fitted to the inputs under
    the corrected labels, which leave each training example out; all others are judged by the model as well.
    Images have no features that were not learned from the labels, so training examples among them are judged in-sample.
    """
    labels, train = trainer.labels, trainer.method.context.train
    others = _others(train, len(labels))
    of_rows, given, came, current = trainer.method.context.of_rows, labels.initial, labels.given, labels.current
    size = max(-float(features.min()), float(features.max())) if len(features) else 0.0
    by_features = by_inputs = _voter((features / size if size > _LARGE else features).__getitem__, trainer)
    if of_rows:
        by_inputs = _voter(trainer.source.fetch, trainer)
    train_probs = trainer.method.train_probs()
    said = by_method, by_network, by_gaussians = [torch.empty(len(labels), 3, device=train.device) for _ in range(3)]
    score, odds = (torch.empty(len(labels), device=train.device) for _ in range(2))
    contradicted = torch.empty(len(labels), dtype=torch.bool, device=train.device)
    suggested, top2 = torch.empty_like(current), current.new_empty(len(labels), 2)
    top2_probs = torch.empty(len(labels), 2, device=train.device)
    for rows, positions in _blocks(trainer.method.context, others):
        network, own = probs[rows].float(), given[rows, None]
        believed = network if train_probs is None or positions is None else train_probs[positions].float()
        log_gaussian_probs = by_features(rows, positions)
        gaussian_probs = log_gaussian_probs.exp()
        score[rows] = pooled(believed, gaussian_probs).gather(1, own)[:, 0]
        if of_rows:
            log_gaussian_probs = by_inputs(rows, positions)
            gaussian_probs = log_gaussian_probs.exp()
        pool = pooled(believed, gaussian_probs)
        view = log_gaussian_probs
        if not of_rows or positions is None:  # the pool, without rounding to 0
            view = (believed.clamp(min=_TINY).log() + log_gaussian_probs) / 2
        top2_probs[rows], top2[rows] = view.softmax(1).topk(2)
        odds[rows], contradicted[rows] = log_odds(view, given[rows]), view.argmax(1) != given[rows]
        suggested[rows] = suggested_labels(came[rows], current[rows], pool)
        named = torch.stack([came[rows], current[rows], suggested[rows]], 1)
        for columns, view in zip(said, (believed, network, gaussian_probs), strict=True):
            columns[rows] = view.gather(1, named)
    alone = given[train].bincount(minlength=labels.num_classes) < _LEAST
    odds[alone[given]] = torch.nan
    unsure = train[~labels.trusted[train]]
    wrong = float(contradicted[unsure].float().mean()) if len(unsure) else 0.0
    line = calibrate(odds[unsure], torch.ones_like(odds[unsure]), explained=0.0, wrong=wrong)
    out_of_sample = torch.full_like(given, of_rows, dtype=torch.bool)
    out_of_sample[others] = True
    fold = torch.full_like(given, -1)
    assessment = Assessment(
        by_method, by_network, by_gaussians, top2, top2_probs,
        line.apply(odds), suggested, out_of_sample, fold,
    )  # fmt: skip
    return FinalScores(model, assessment, score, noise)


def _others(train: Tensor, count: int) -> Tensor:
    """Return the rows of ``count`` examples that do not train: those that validate or were removed."""
    learned = torch.zeros(count, dtype=torch.bool, device=train.device).index_fill_(0, train, True)
    return (~learned).nonzero()[:, 0]


def _blocks(context: TrainContext, others: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the rows of all examples, some at a time, and of those that train their positions among these."""
    train = context.train
    for positions in by_group(len(train), context.groups, train.device).split(_ROWS):
        yield train[positions], positions
    for rows in others.split(_ROWS):
        yield rows, None


def _voter(fetch: Fetch, trainer: Trainer) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return what says log-probabilities of classes (b, k) under class Gaussians of the training examples.

    Each is left out of its own. It takes rows and, of training examples, their positions; see :func:`_blocks`.
    """
    labels, train, groups = trainer.labels, trainer.method.context.train, trainer.method.context.groups
    current = labels.current[train]

    def of_train(positions: Tensor) -> Tensor:
        return fetch(train[positions])

    fitted = fit_discriminant(of_train, current, labels.num_classes)
    say = held_out(fitted, of_train, current, groups)
    return lambda rows, positions: fitted.log_posterior(fetch(rows)) if positions is None else say(positions)


def _estimate_noise(labels: LabelStore, of_val: Tensor, train: Tensor, val: Tensor) -> NoiseProfile | None:
    """Estimate the noise of the given labels: its rate, the rate by class, and the transition matrix.

    If training labels were corrected, the corrected labels stand in for the truth. If not, the selected model's
    predictions do, but only on the validation examples ``val``, whose labels it did not learn from.
    """
    given, current = labels.given, labels.current
    if bool((labels.initial != current)[train].any()):  # other than reviewed ones
        rows = torch.cat([train, val])
        return measure_noise(current[rows].cpu(), given[rows].cpu(), labels.num_classes)
    if len(val):
        return measure_noise(of_val.argmax(1).cpu(), given[val].cpu(), labels.num_classes)
    return None


def pooled(probs: Tensor, gaussian_probs: Tensor) -> Tensor:
    """Return the logarithmic pool (n, k) of both views.

    The pool of class probabilities ``probs`` (n, k) by a network and ``gaussian_probs`` (n, k) by class Gaussians is

        q_c = sqrt(p_c v_c) / sum_j sqrt(p_j v_j)

    with equal weights (Genest and Zidek 1986): it is sure only where both are, and a class that either rules out is
    ruled out. Where, after rounding, every class is ruled out by one of the two, all classes are equally likely.
    """
    log_pool = (probs.log() + gaussian_probs.log()) / 2
    log_pool = log_pool.where(log_pool.isfinite().any(1, keepdim=True), 0.0)
    return log_pool.softmax(1)


def suggested_labels(given: Tensor, current: Tensor, pool: Tensor) -> Tensor:
    """Return labels to suggest to a person (n,): the current one where it changed, else the pool's most likely class.

    So even a method that changes few labels, or none, has a suggestion for the others.
    """
    return current.where(current != given, pool.argmax(1))
