"""Selection of the epoch, and the final scores of every example, by the selected model and the method."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unflip.engine.checkpoints import BestEpoch
from unflip.engine.inference import forward_batches, predictions
from unflip.engine.trainer import Trainer, finite
from unflip.errors import ConfigError
from unflip.methods.base import HALF_MOST, LabelScores, LabelStore, TrainContext, storage_dtype
from unflip.nn.base import Ensemble
from unflip.runs.labels import Assessment
from unflip.stats.annotators import AnnotatorFit
from unflip.stats.discriminant import Fetch, fit_discriminant, group_order, leave_group_out
from unflip.stats.noise_rate import lapse_rates
from unflip.stats.odds import PlattScaling, calibrate, fit_slope, log_odds
from unflip.stats.sampling import calibrate_to_review

USES_TRUTH = {"clean-val": "clean validation labels", "best-test": "test labels"}
"""Selection rules that use the truth, and which labels they use; reports state this."""
_BLOCK_ROWS = 1024
_LARGE = 1e15  # larger features are scaled down, since the sum of their squares may overflow
_TINY = 1e-30
_MIN_CLASS_SIZE = 2  # labels of smaller classes cannot be scored


def selection_score(rule: str, metrics: Mapping[str, Any]) -> float:
    """Return the score of an epoch under a selection rule; the first epoch with the highest score is selected."""
    keys = {"noisy-val": "val_accuracy", "clean-val": "clean_val_accuracy", "best-test": "test_accuracy"}
    return float(metrics[keys.get(rule, "epoch")])


def check_selection(rule: str, *, has_val: bool, has_truth: bool, has_test: bool) -> None:
    """Raise ConfigError if the data lacks what a selection rule needs."""
    if rule in ("noisy-val", "clean-val") and not has_val:
        raise ConfigError(
            f"select = '{rule}' needs validation examples; raise data.val_fraction or try --set select=last"
        )
    if rule == "clean-val" and not has_truth:
        raise ConfigError("select = 'clean-val' needs clean labels, and the data has none; try --set select=noisy-val")
    if rule == "best-test" and not has_test:
        raise ConfigError("select = 'best-test' needs a test set, and the data has none; try --set select=noisy-val")


def effective_rule(rule: str, *, clean_val: bool) -> str:
    """Return the rule that applies: if the validation labels are clean, ``noisy-val`` is ``clean-val``."""
    return "clean-val" if rule == "noisy-val" and clean_val else rule


def protocol(rule: str) -> str:
    """Describe how the model was selected, by the rule that applies, and whether that used the truth."""
    return f"{rule} (uses the truth: {USES_TRUTH[rule]})" if rule in USES_TRUTH else rule


class FinalScores(NamedTuple):
    """The final scores of all n examples."""

    model: Ensemble
    """The model of the selected epoch."""
    assessment: Assessment
    score: Tensor
    """The method's own score of each given label (n,), to compare methods by; in-sample unless the method itself has
    out-of-sample scores."""
    transition: Tensor | None
    """The estimated P(given label j | true class i) (k, k), if there is an estimate."""
    annotators: AnnotatorFit | None
    """How reliable annotators are, if there are several."""
    errors: Tensor
    """Equally likely numbers (q,) of wrong labels among those that are scored and not reviewed, in increasing order."""


def score_examples(trainer: Trainer, best: BestEpoch, epochs: int, *, clean_val: bool) -> tuple[FinalScores, Tensor]:
    """Score every example with the selected model, and correct the validation labels.

    Removed and unlabeled examples are scored like validation examples, since none were trained on; labels stay.

    Args:
        trainer: the trainer after the last epoch.
        best: the selected epoch.
        epochs: the number of epochs, which the history states for corrected validation labels.
        clean_val: whether validation labels are known to be correct and stay.

    Returns:
        The scores, and the features (n, d) of the selected model, with several networks those of the first.
    """
    labels, method, val, train = trainer.labels, trainer.method, trainer.val_rows, trainer.method.context.train
    is_train = torch.zeros(len(labels), dtype=torch.bool, device=train.device).index_fill_(0, train, True)
    others = (~is_train).nonzero()[:, 0]  # validation, removed and unlabeled examples
    model = method.model()
    model.load_state_dict(best.state)
    with finite(f"in the model of epoch {best.epoch}"):
        label_scores = method.label_scores(labels)
        # training examples that the method has scored need no predictions
        rows = torch.arange(len(labels), device=train.device) if label_scores is None else others
        features, probs = _predict(model, trainer, rows)
        other_probs = (probs if label_scores is not None else probs[others]).float()
        val_probs = other_probs[torch.isin(others, val)]
        if len(val) and not clean_val:
            corrected = method.correct(val_probs, labels.initial[val])
            labels.change(epochs, val, corrected, val_probs.gather(1, corrected[:, None])[:, 0])
        transition = _estimate_transition(labels, val_probs, train, val[:0] if clean_val else val)
        if label_scores is not None:
            assessment, score, errors = _adopt_scores(label_scores, trainer, model, others, other_probs)
            transition = _labels_transition(labels, train) if transition is None else transition
        else:
            del other_probs, val_probs  # to save memory
            assessment, score, errors = _compute_scores(trainer, others, probs, features)
    annotators = None if label_scores is None else label_scores.annotators
    return FinalScores(model, assessment, score, transition, annotators, errors), features


def _predict(model: Ensemble, trainer: Trainer, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features (n, d) of all examples, and the model's probabilities (m, k) at ``indices``."""
    network, source, processes, count = model.networks[0], trainer.source, trainer.processes, len(trainer.labels)
    shapes = (count, network.head.in_features), (len(indices), network.head.out_features)
    features, probs = (torch.empty(n, d, dtype=storage_dtype(n * d), device=indices.device) for n, d in shapes)
    one_pass = len(model.networks) == 1 and model.weights is None and len(indices) == count
    for rows, batch in forward_batches(network, source, torch.arange(count, device=indices.device), processes):
        in_half = features.dtype != torch.float32
        features[rows] = batch.features.clamp(-HALF_MOST, HALF_MOST) if in_half else batch.features
        if one_pass:
            probs[rows] = batch.logits.softmax(1)
    if not one_pass:
        for rows, batch_probs in predictions(model, source, processes, indices):
            probs[rows] = batch_probs
    return features, probs


def _adopt_scores(
    scores: LabelScores, trainer: Trainer, model: Ensemble, others: Tensor, other_probs: Tensor
) -> tuple[Assessment, Tensor, Tensor]:
    """Adopt the method's own scores of training examples, and score all others with its model."""
    labels, train = trainer.labels, trainer.method.context.train
    top2_probs, top2 = other_probs.topk(2)
    current = labels.current[others]
    named = torch.stack([labels.given[others].clamp(min=0), current.where(current >= 0, top2[:, 0])], 1)

    def joined(of_train: Tensor, of_others: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        result = torch.empty(len(labels), *of_train.shape[1:], dtype=dtype, device=train.device)
        result[train], result[others] = of_train.to(dtype), of_others.to(dtype)
        return result

    def of_labels(of_train: Tensor, probs: Tensor) -> Tensor:
        """Probabilities of the given, the current and the suggested label, which is the current one."""
        return joined(of_train, probs.gather(1, named))[:, [0, 1, 1]]

    gaussian_probs = None
    if scores.gaussian_probs is not None and model.gaussians is not None:
        fetch, blocks = trainer.source.fetch, others.split(_BLOCK_ROWS)
        parts = [model.gaussians.log_posterior(fetch(block)).exp() for block in blocks]
        gaussian_probs = of_labels(scores.gaussian_probs, torch.cat(parts) if parts else other_probs)
    odds = joined(scores.odds, trainer.method.odds(other_probs, labels.initial[others].clamp(min=0)))
    errors = scores.calibration.wrong(odds[_unreviewed(trainer)])
    odds = scores.calibration.apply(odds)
    fold = torch.full_like(labels.initial, -1)
    if scores.fold is not None:
        fold[train] = scores.fold
    suggested = labels.current.clone()
    suggested[others] = named[:, 1]
    assessment = Assessment(
        of_labels(scores.probs, other_probs),
        of_labels(scores.network, other_probs),
        gaussian_probs,
        joined(scores.top2, top2, torch.long),
        joined(scores.top2_probs, top2_probs),
        odds.masked_fill(labels.initial < 0, torch.nan),
        suggested,
        torch.ones_like(fold, dtype=torch.bool).index_fill_(0, train, scores.fold is not None),
        fold,
        None
        if scores.expected_error is None
        else joined(scores.expected_error, torch.full_like(other_probs[:, 0], torch.nan)),
    )
    return assessment, odds, errors


def _compute_scores(
    trainer: Trainer, others: Tensor, probs: Tensor, features: Tensor
) -> tuple[Assessment, Tensor, Tensor]:
    """Score every example for a method without out-of-sample scores.

    Label quality of a training example comes from class Gaussians fitted to the inputs under the corrected labels,
    without that example; other examples are scored by the model as well. Images have no features that do not depend
    on the labels, so the scores of training images are in-sample.
    """
    labels, context = trainer.labels, trainer.method.context
    train, from_inputs = context.train, context.of_rows
    initial, given, current, device = labels.initial, labels.given, labels.current, context.train.device
    size = max(-float(features.min()), float(features.max())) if len(features) else 0.0
    by_features = by_inputs = _gaussian_view((features / size if size > _LARGE else features).__getitem__, trainer)
    if from_inputs:
        by_inputs = _gaussian_view(trainer.source.fetch, trainer)
    train_probs = trainer.method.train_probs()
    views = by_method, by_network, by_gaussians = [torch.empty(len(labels), 3, device=device) for _ in range(3)]
    score, odds, given_odds = (torch.empty(len(labels), device=device) for _ in range(3))
    top2_probs, top2 = torch.empty(len(labels), 2, device=device), current.new_empty(len(labels), 2)
    suggested = torch.empty_like(current)
    for rows, positions in _blocks(context, others):
        network_probs = probs[rows].float()
        own_probs = network_probs if train_probs is None or positions is None else train_probs[positions].float()
        log_gaussian_probs = by_features(rows, positions)
        score[rows] = pooled(own_probs, log_gaussian_probs.exp()).gather(1, initial[rows, None].clamp(min=0))[:, 0]
        if from_inputs:
            log_gaussian_probs = by_inputs(rows, positions)
        gaussian_probs = log_gaussian_probs.exp()
        log_probs = log_gaussian_probs
        if not from_inputs or positions is None:  # the pool, but no probability is rounded to 0
            log_probs = (own_probs.clamp(min=_TINY).log() + log_gaussian_probs) / 2
        top2_probs[rows], top2[rows] = log_probs.softmax(1).topk(2)
        odds[rows], given_odds[rows] = (log_odds(log_probs, of[rows].clamp(min=0)) for of in (initial, given))
        suggested[rows] = suggested_labels(given[rows], current[rows], pooled(own_probs, gaussian_probs))
        named = torch.stack([given[rows], current[rows], suggested[rows]], 1).clamp(min=0)
        for view, view_probs in zip(views, (own_probs, network_probs, gaussian_probs), strict=True):
            view[rows] = view_probs.gather(1, named)
    is_small = initial[train].bincount(minlength=labels.num_classes) < _MIN_CLASS_SIZE
    odds[is_small[initial] | (initial < 0)] = torch.nan
    unreviewed = train[~labels.trusted[train]]
    scaling = _calibrate(odds[unreviewed], top2[unreviewed], top2_probs[unreviewed, 0], initial[unreviewed])
    weights = labels.review_weights
    sample = train[(weights[train] > 0) & (given[train] >= 0)]
    if len(sample):
        wrong = given[sample] != initial[sample]
        scaling = calibrate_to_review(scaling, odds[unreviewed], given_odds[sample], wrong, weights[sample])
    fold = torch.full_like(initial, -1)
    out_of_sample = torch.ones_like(fold, dtype=torch.bool).index_fill_(0, train, from_inputs)
    assessment = Assessment(
        by_method, by_network, by_gaussians, top2, top2_probs, scaling.apply(odds), suggested, out_of_sample, fold
    )
    return assessment, score, scaling.wrong(odds[_unreviewed(trainer)])


def _unreviewed(trainer: Trainer) -> Tensor:
    """Return the indices of the training and validation labels that are not reviewed."""
    rows = torch.cat([trainer.method.context.train, trainer.val_rows])
    return rows[~trainer.labels.trusted[rows]]


def _calibrate(odds: Tensor, top2: Tensor, probs: Tensor, labels: Tensor) -> PlattScaling:
    """Calibrate log-odds (m,) to the lapse rate of labels (m,), given the most likely classes and their probability."""
    slope = fit_slope(odds, torch.ones_like(odds))
    lapses = lapse_rates(probs.double().logit(), top2[:, 0] != labels)
    return calibrate(odds, slope, lapses)


def _blocks(context: TrainContext, others: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield blocks of indices of all examples, for training examples with their positions in ``context.train``."""
    train = context.train
    for positions in group_order(len(train), context.groups, train.device).split(_BLOCK_ROWS):
        yield train[positions], positions
    for rows in others.split(_BLOCK_ROWS):
        yield rows, None


def _gaussian_view(fetch: Fetch, trainer: Trainer) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function to the log-probabilities (b, k) of class Gaussians, without the example if it was trained on.

    Its arguments are a block of :func:`_blocks`.
    """
    labels, train, groups = trainer.labels, trainer.method.context.train, trainer.method.context.groups
    current = labels.current[train]

    def fetch_train(positions: Tensor) -> Tensor:
        return fetch(train[positions])

    fitted = fit_discriminant(fetch_train, current, labels.num_classes)
    without = leave_group_out(fitted, fetch_train, current, groups)
    return lambda rows, positions: fitted.log_posterior(fetch(rows)) if positions is None else without(positions)


def _estimate_transition(labels: LabelStore, val_probs: Tensor, train: Tensor, val: Tensor) -> Tensor | None:
    """Estimate the transition matrix of the given labels.

    Corrected labels stand in for the truth if training labels were corrected; otherwise the selected model's
    predictions of the validation examples do, which it was not trained on.
    """
    if bool((labels.initial != labels.current)[train].any()):  # reviewed labels are already in ``initial``
        return _labels_transition(labels, torch.cat([train, val]))
    return transition_matrix(val_probs.argmax(1), labels.given[val], labels.num_classes) if len(val) else None


def _labels_transition(labels: LabelStore, rows: Tensor) -> Tensor:
    """Return the transition matrix of the given labels at ``rows``, where there are any, if current ones are right."""
    rows = rows[labels.given[rows] >= 0]
    return transition_matrix(labels.current[rows], labels.given[rows], labels.num_classes)


def transition_matrix(clean: Tensor, noisy: Tensor, num_classes: int) -> Tensor:
    """Return the shares (k, k) of noisy class j among clean class i; the identity's row for a class without examples.

    >>> transition_matrix(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2]), 3).tolist()
    [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    counts = (clean * num_classes + noisy).cpu().bincount(minlength=num_classes**2).view(num_classes, num_classes)
    totals = counts.sum(1, keepdim=True)
    return torch.where(totals > 0, counts / totals.double().clamp(min=1), torch.eye(num_classes, dtype=torch.float64))


def pooled(probs: Tensor, gaussian_probs: Tensor) -> Tensor:
    """Return the logarithmic opinion pool (n, k) of class probabilities by networks and by Gaussians, both (n, k).

        q_c = sqrt(p_c v_c) / sum_j sqrt(p_j v_j)

    Equal weights (Genest and Zidek 1986): a class that either excludes has probability 0. If each class is excluded
    by one of the two, all classes are equally likely.
    """
    log_pool = (probs.log() + gaussian_probs.log()) / 2
    log_pool = log_pool.where(log_pool.isfinite().any(1, keepdim=True), 0.0)
    return log_pool.softmax(1)


def suggested_labels(given: Tensor, current: Tensor, pool: Tensor) -> Tensor:
    """Return the labels to suggest (n,): the current one if it changed, else the most likely class of the pool (n, k).

    So even a method that changes no labels makes suggestions.
    """
    return current.where(current != given, pool.argmax(1))
