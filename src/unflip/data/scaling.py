"""Scaling: one scale for all columns, or one per column? By what the given labels say, once noise has been added."""

from dataclasses import replace

import torch
from torch import Tensor

from unflip.data.labelled import LabelledData
from unflip.data.sources import ArraySource, JoinedSource, Standardisation
from unflip.stats.discriminant import fit_discriminant, held_out_log_posterior, least_surprise
from unflip.stats.spread import spread

_TRIED = 4000  # examples that the choice is made by


def settle_scale(data: LabelledData) -> LabelledData:
    """Return data whose columns have a scale each with one scale for all, if given labels are likelier under that.

    Columns in units of their own want a scale each; where they have one unit, as features of a network, small ones are
    often noise and should stay small. The choice is made by spherical class Gaussians of up to 4,000 training examples,
    each left out of its class, so that no label speaks for itself; those that are alone in their class say nothing.
    In a tie all columns share a scale.
    """
    by_column = data.standardisation
    if by_column is None or len(by_column.std.shape) != 1:
        return data
    rows = spread(len(data.given), _TRIED, data.given.device)
    rows = rows[~(data.removed if data.is_val is None else data.removed | data.is_val)[rows]]
    features, labels = data.train.fetch(rows), data.given[rows]
    scale = (by_column.std.square() * features.square().mean(0)).mean().sqrt()
    if not float(scale) > 0:
        return data
    in_one = Standardisation(by_column.mean, scale.to(by_column.std.dtype).expand_as(by_column.std).contiguous())
    alone = labels.bincount()[labels] == 1
    if bool(alone.all()):
        return data
    features, labels = features[~alone], labels[~alone]
    together = _surprise(features * (by_column.std / in_one.std).float(), labels, data.num_classes)
    if together > _surprise(features, labels, data.num_classes):
        return data
    for source in (data.train, *(test.source for test in data.tests.values())):
        assert isinstance(source, ArraySource | JoinedSource)
        source.rescale(in_one)
    return replace(data, standardisation=in_one)


def _surprise(features: Tensor, labels: Tensor, num_classes: int) -> float:
    fitted = fit_discriminant(features.__getitem__, labels, num_classes, shrink=1.0)
    log_probs = held_out_log_posterior(fitted, features.__getitem__, labels)
    present = torch.zeros(num_classes, dtype=torch.bool).index_fill_(0, labels, True)
    return least_surprise(log_probs[:, present], (present.cumsum(0) - 1)[labels])
