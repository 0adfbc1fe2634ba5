"""Outcome: what the selected model and the method finally say about every example."""

from typing import NamedTuple

import torch
from torch import Tensor

from unflip.compute.passes import scan
from unflip.labels.store import LabelStore
from unflip.networks.base import bare
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.stats.discriminant import fit_discriminant
from unflip.training.divergence import finite
from unflip.training.state import BestEpoch
from unflip.training.trainer import Trainer


class Outcome(NamedTuple):
    """The final assessment of every example."""

    probs: Tensor
    """Class probabilities (n, k): the method's own if it keeps any, otherwise the selected model's."""
    votes: Tensor
    """Class probabilities under the class Gaussians (n, k)."""
    features: Tensor
    """Features of the selected model (n, d); with two networks, those of the first."""
    noise: NoiseProfile | None
    """The estimated noise of the given labels, if there is an estimate."""


def conclude(trainer: Trainer, best: BestEpoch, epochs: int, *, clean_val: bool) -> Outcome:
    """Score every example with the selected model, and correct the validation labels."""
    for network, state in zip(trainer.networks, best.states, strict=True):
        bare(network).load_state_dict(state)
    labels, method, val = trainer.labels, trainer.method, trainer.val_rows
    with finite(f"in the model of epoch {best.epoch}"):
        probs, votes, features = _judge(trainer)
    if len(val) and not clean_val:
        corrected = method.correct(probs[val], labels.initial[val], votes[val])
        labels.change(epochs, val, corrected, probs[val].gather(1, corrected[:, None])[:, 0])
    noise = _estimate_noise(labels, probs, method.setting.train, val[:0] if clean_val else val)
    beliefs = method.beliefs()
    if beliefs is not None:
        probs[method.setting.train] = beliefs.to(probs)
    return Outcome(probs, votes, features, noise)


def _judge(trainer: Trainer) -> tuple[Tensor, Tensor, Tensor]:
    """Return class probabilities of every example from the networks (n, k) and from Gaussians on their features (n, k).

    The Gaussians are fitted to the training examples with their corrected labels. With two networks, both results are
    averaged. The third result is the features of every example (n, d); with two networks, those of the first.
    """
    train, labels = trainer.method.setting.train, trainer.labels
    rows = torch.arange(len(labels), device=train.device)
    current = labels.current[train]
    probs, votes = [], []
    kept: list[Tensor] = []
    for network in trainer.networks:
        features, logits = scan(network, trainer.source, rows, trainer.processes)
        discriminant = fit_discriminant(features[train], current, labels.num_classes)
        probs.append(logits.softmax(1))
        votes.append(discriminant.posterior(features))
        votes[-1][train] = discriminant.posterior(features[train], current)
        kept = kept or [features]
    return torch.stack(probs).mean(0), torch.stack(votes).mean(0), kept[0]


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
