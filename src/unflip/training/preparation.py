"""Preparation of a run's data: load, encode, corrupt, scale, split; each step can be called on its own."""

from dataclasses import replace

import torch
from torch import Tensor

from unflip.data.corruption import corrupt_labels, given_posterior, needs_posterior
from unflip.data.dataset import Dataset
from unflip.data.labelled import LabelledData, label_data
from unflip.data.loader import load_raw
from unflip.data.options import NoiseOptions
from unflip.data.raw import RawData
from unflip.data.scaling import settle_scale
from unflip.data.sources import Standardisation
from unflip.data.split import split
from unflip.encoders.raw import encode_raw
from unflip.networks import networks
from unflip.progress import Track, untracked
from unflip.runs.config import RunConfig
from unflip.training.posterior import PosteriorEstimator
from unflip.training.selection import check_selection


def prepare_data(
    config: RunConfig, estimate: PosteriorEstimator, raw: RawData | None = None, track: Track = untracked
) -> Dataset:
    """Return the data of a run, with noise if the configuration asks for it, split and checked.

    ``raw`` is the output of a loader, if the data was read already. ``estimate`` computes the posteriors that pmd noise
    may need.
    """
    common = config.common
    raw = load_raw(common.data, config.parts) if raw is None else raw
    wanted = networks.load(common.network).normalisation
    if raw.holds_images and wanted is not None:
        raw = replace(raw, normalisation=Standardisation(*(torch.full((1, 1, 1), value) for value in wanted)))
    raw = encode_raw(raw, common.data, track)
    data = label_data(raw, common.data, track).joined()  # noise goes on the labels that validate, too
    if common.noise.recipe is not None:
        data = corrupt_labels(data, common.noise, find_posterior(data, common.noise, estimate), common.seed)
    if common.data.standardize == "auto":
        data = settle_scale(data)  # after noise was added: no clean label may have a say
    dataset = split(data, common.data.val_fraction, common.seed)
    check_selection(
        common.select,
        has_val=bool(dataset.is_val.any()),
        has_truth=dataset.clean is not None or dataset.clean_val,
        has_test=bool(dataset.tests),
    )
    return dataset


def find_posterior(data: LabelledData, noise: NoiseOptions, estimate: PosteriorEstimator) -> Tensor | None:
    """Return the class probabilities (n, k) that a noise recipe needs, read or estimated; None if it needs none."""
    if not needs_posterior(noise):
        return None
    given = given_posterior(noise, data)
    return estimate(data.train, data.truth, data.num_classes, noise.posterior) if given is None else given
