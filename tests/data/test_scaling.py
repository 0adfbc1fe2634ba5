"""One scale or one per column: by what the labels say, and by nothing else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import open_dataset, write_npz
from unflip.data import scaling
from unflip.data.files.arrays import Array
from unflip.data.options import DataOptions
from unflip.data.scaling import choose_standardisation
from unflip.data.sources import Standardisation, fit_standardisation
from unflip.stats.discriminant import fit_discriminant, held_out_log_posterior, least_surprise


def columns_in_units_of_their_own(seed: int = 0, count: int = 400) -> tuple[Array, torch.Tensor]:
    """Small columns tell the classes apart, one in a tiny unit says nothing and is a million times larger."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    rows = np.hstack([3 * np.eye(3)[labels] + random.normal(size=(count, 3)), random.normal(size=(count, 1))])
    return (rows * [1e-3, 1.0, 1e-2, 1e6]).astype(np.float32), torch.from_numpy(labels)


def one_unit_with_small_noise(seed: int = 0, count: int = 400) -> tuple[Array, torch.Tensor]:
    """Three columns tell the classes apart, 150 are noise and a tenth as large."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    useful = 2 * np.eye(3)[labels] + random.normal(size=(count, 3))
    return np.hstack([useful, 0.1 * random.normal(size=(count, 150))]).astype(np.float32), torch.from_numpy(labels)


def assert_is(found: Standardisation, array: Array, *, one_scale: bool) -> None:
    expected = fit_standardisation(array, one_scale=one_scale)
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.std, expected.std)


@pytest.mark.parametrize("seed", range(5))
def test_columns_in_units_of_their_own_get_a_scale_each(seed: int) -> None:
    array, labels = columns_in_units_of_their_own(seed)
    assert_is(choose_standardisation(array, labels, 3), array, one_scale=False)


@pytest.mark.parametrize("seed", range(5))
def test_many_small_columns_of_noise_stay_small(seed: int) -> None:
    array, labels = one_unit_with_small_noise(seed)
    assert_is(choose_standardisation(array, labels, 3), array, one_scale=True)


@pytest.mark.parametrize("noise", [0.2, 0.4])
def test_wrong_labels_do_not_change_the_choice(noise: float) -> None:
    random = np.random.default_rng(0)
    for (array, labels), one_scale in ((columns_in_units_of_their_own(), False), (one_unit_with_small_noise(), True)):
        wrong = torch.from_numpy(random.random(400) < noise)
        noisy = labels.where(~wrong, torch.from_numpy(random.integers(0, 3, 400)))
        assert_is(choose_standardisation(array, noisy, 3), array, one_scale=one_scale)


def test_in_a_tie_all_columns_share_a_scale() -> None:
    array = np.array([[1.0], [2.0], [4.0], [5.0]], np.float32)
    assert_is(choose_standardisation(array, torch.tensor([0, 0, 1, 1]), 2), array, one_scale=True)


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0, 8.0])
def test_it_is_what_spherical_gaussians_find_likelier(factor: float) -> None:
    """By hand: both scalings of all rows, each row left out of its class."""
    array, labels = one_unit_with_small_noise()
    array[:, 3:] *= factor
    surprises = []
    for one_scale in (True, False):
        std = array.std(axis=0).clip(1e-12)
        std = np.full_like(std, np.sqrt((std**2).mean())) if one_scale else std
        rows = torch.from_numpy((array - array.mean(axis=0)) / std)
        fitted = fit_discriminant(rows.__getitem__, labels, 3, shrink=1.0)
        surprises.append(least_surprise(held_out_log_posterior(fitted, rows.__getitem__, labels), labels))
    assert_is(choose_standardisation(array, labels, 3), array, one_scale=surprises[0] <= surprises[1])


@pytest.mark.parametrize(("asked", "one_scale"), [(100, False), (1000, True)])
def test_of_many_rows_evenly_spaced_ones_are_asked(
    monkeypatch: pytest.MonkeyPatch, asked: int, one_scale: bool
) -> None:
    """The classes of every tenth row are in a small column, those of all others in a large one."""
    monkeypatch.setattr(scaling, "_TRIED", asked)
    random = np.random.default_rng(0)
    labels, rows = np.arange(1000) // 3 % 2, random.normal(size=(1000, 2))
    few = np.linspace(0, 999, 100).astype(int)
    others = np.setdiff1d(np.arange(1000), few)
    rows[few, 0] += 2 * labels[few]
    rows[others, 1] += 2 * labels[others]
    array = (rows * [1.0, 1000.0]).astype(np.float32)
    assert_is(choose_standardisation(array, torch.from_numpy(labels), 2), array, one_scale=one_scale)


def test_inputs_may_have_more_dimensions() -> None:
    array, labels = columns_in_units_of_their_own()
    square = array.reshape(400, 2, 2)
    assert_is(choose_standardisation(square, labels, 3), square, one_scale=False)


@pytest.mark.parametrize("one_scale", [True, False])
def test_auto_standardises_a_data_set_by_the_choice(tmp_path: Path, one_scale: bool) -> None:
    array, labels = (one_unit_with_small_noise if one_scale else columns_in_units_of_their_own)()
    path = write_npz(tmp_path / "a.npz", train=array, train_labels=labels.numpy())
    dataset = open_dataset(DataOptions(path=str(path), standardize="auto", val_fraction=0.0))
    assert dataset.standardisation is not None
    assert_is(dataset.standardisation, array, one_scale=one_scale)
    std = dataset.source.fetch(torch.arange(400)).std(0)
    assert (float(std.max()) > 1.1) == one_scale
