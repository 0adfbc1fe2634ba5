"""Outcome: what the chosen model and the method make of every example in the end."""

from typing import NamedTuple

import torch
from torch import Tensor

from unflip.compute.passes import scan
from unflip.labels.store import LabelStore
from unflip.networks.base import bare
from unflip.noise.transition import NoiseProfile, measure_noise
from unflip.stats.discriminant import fit_discriminant
from unflip.training.state import BestEpoch
from unflip.training.trainer import Trainer


class Outcome(NamedTuple):
    """What is believed of every example in the end."""

    probs: Tensor
    """Class probabilities (n, k): the method's own where it keeps any, else the chosen model's."""
    votes: Tensor
    """Those of class Gaussians (n, k)."""
    features: Tensor
    """Of the chosen model (n, d), with two networks the first's."""
    noise: NoiseProfile | None
    """What is believed of the given labels."""


def conclude(trainer: Trainer, best: BestEpoch, epochs: int, *, clean_val: bool) -> Outcome:
    """Score every example with the chosen model, and correct those that validated."""
    for network, state in zip(trainer.networks, best.states, strict=True):
        bare(network).load_state_dict(state)
    labels, method, val = trainer.labels, trainer.method, trainer.val_rows
    probs, votes, features = _judge(trainer)
    if len(val) and not clean_val:
        corrected = method.correct(probs[val], labels.initial[val], votes[val])
        labels.change(epochs, val, corrected, probs[val].gather(1, corrected[:, None])[:, 0])
    noise = _estimate_noise(labels, probs, val[:0] if clean_val else val)
    beliefs = method.beliefs()
    if beliefs is not None:
        probs[method.setting.train] = beliefs.to(probs)
    return Outcome(probs, votes, features, noise)


def _judge(trainer: Trainer) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the networks (n, k), and Gaussians fitted to their features (n, k), say of every example's class.

    The Gaussians are fitted under the corrected labels of the training examples. With two networks, their mean.
    Third come the features of every example (n, d), with two networks the first's.
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


def _estimate_noise(labels: LabelStore, probs: Tensor, val: Tensor) -> NoiseProfile | None:
    """What is believed of the given labels: rate, rate by class, and which class is called what.

    Where labels were corrected, the corrected ones stand for the truth. Where none was, the chosen model's predictions
    do, on the validation examples ``val`` alone: of those it did not learn the labels.
    """
    given, current = labels.given.cpu(), labels.current.cpu()
    if bool((labels.initial.cpu() != current).any()):  # beyond what people decided
        return measure_noise(current, given, labels.num_classes)
    if len(val):
        return measure_noise(probs[val].argmax(1).cpu(), given[val.cpu()], labels.num_classes)
    return None
