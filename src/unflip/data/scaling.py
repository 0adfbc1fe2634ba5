"""Scaling: one scale for all columns, or one per column? By what the labels say."""

import numpy as np
import torch
from torch import Tensor

from unflip.data.files.arrays import Array
from unflip.data.sources import Standardisation, fit_standardisation
from unflip.stats.discriminant import fit_discriminant, held_out_log_posterior, least_surprise
from unflip.stats.spread import spread

_TRIED = 4000  # examples that the choice is made by


def choose_standardisation(array: Array, labels: Tensor, num_classes: int) -> Standardisation:
    """Return the standardisation of the rows under which spherical class Gaussians find the labels (n,) likelier.

    Each example is left out of its class, so that no label speaks for itself; in a tie all columns share a scale.
    Columns in units of their own want a scale each; where they have one unit, as features of a network, small ones are
    often noise and should stay small.
    """
    rows = spread(len(labels), _TRIED, labels.device)
    tried = np.asarray(array[rows.numpy()], np.float32).reshape(len(rows), -1)
    found = []
    for one_scale in (True, False):
        standardise = fit_standardisation(array, one_scale=one_scale)
        flat = Standardisation(standardise.mean.flatten(), standardise.std.flatten())
        features, members = flat(torch.from_numpy(tried)), labels[rows]
        fitted = fit_discriminant(features.__getitem__, members, num_classes, shrink=1.0)
        surprise = least_surprise(held_out_log_posterior(fitted, features.__getitem__, members), members)
        found.append((surprise, standardise))
    return min(found, key=lambda pair: pair[0])[1]
