"""One scale or one per column: by what the labels say, and by nothing else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import quick_train, write_npz
from unflip.data import labeling
from unflip.data.arrays import Array
from unflip.data.dataset import Dataset
from unflip.data.labeling import label_data, settle_scale
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions
from unflip.data.sources import Standardization
from unflip.stats.discriminant import fit_discriminant, leave_group_out_log_posterior, tempered_nll


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


def data_of(
    folder: Path, array: Array, labels: torch.Tensor, limit: float = 100.0, more: dict[str, Array] | None = None
) -> Dataset:
    content = {"train": array, "train_labels": labels.numpy()} | (more or {})
    for name, value in content.items():
        np.save(folder / f"{name}.npy", value)
    options = DataOptions(path=str(folder), standardize="auto", mmap_threshold_mb=limit)
    return label_data(load_raw(options), options).joined()


def assert_scaled(data: Dataset, array: Array, *, one_scale: bool) -> None:
    """The data has the scale of the array, and so have its inputs."""
    expected, found = Standardization.fit(array, one_scale=one_scale), data.standardization
    assert found is not None
    assert torch.equal(found.mean, expected.mean)
    torch.testing.assert_close(found.std, expected.std, rtol=1e-4, atol=0)
    inputs = data.source.fetch(torch.arange(len(array)))
    torch.testing.assert_close(inputs, expected(torch.from_numpy(array.copy())), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_columns_in_units_of_their_own_get_a_scale_each(seed: int, tmp_path: Path) -> None:
    array, labels = columns_in_units_of_their_own(seed)
    assert_scaled(settle_scale(data_of(tmp_path, array, labels)), array, one_scale=False)


@pytest.mark.parametrize("limit", [0.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_many_small_columns_of_noise_stay_small(seed: int, limit: float, tmp_path: Path) -> None:
    array, labels = one_unit_with_small_noise(seed)
    assert_scaled(settle_scale(data_of(tmp_path, array, labels, limit)), array, one_scale=True)


@pytest.mark.parametrize("noise", [0.2, 0.4])
def test_wrong_labels_do_not_change_the_choice(noise: float, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for (array, labels), one_scale in ((columns_in_units_of_their_own(), False), (one_unit_with_small_noise(), True)):
        wrong = torch.from_numpy(random.random(400) < noise)
        noisy = labels.where(~wrong, torch.from_numpy(random.integers(0, 3, 400)))
        assert_scaled(settle_scale(data_of(tmp_path, array, noisy)), array, one_scale=one_scale)


def test_in_a_tie_all_columns_share_a_scale(tmp_path: Path) -> None:
    array = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [5.0, 0.0]], np.float32)
    found = settle_scale(data_of(tmp_path, array, torch.tensor([0, 0, 1, 1]))).standardization
    assert found is not None
    assert float(found.std[0]) == float(found.std[1])


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0, 8.0])
def test_it_is_what_spherical_gaussians_find_likelier(factor: float, tmp_path: Path) -> None:
    """By hand: both scalings of all rows, each row left out of its class."""
    array, labels = one_unit_with_small_noise()
    array[:, 3:] *= factor
    surprises = []
    for one_scale in (True, False):
        std = array.std(axis=0)
        std = np.full_like(std, np.sqrt((std**2).mean())) if one_scale else std
        rows = torch.from_numpy((array - array.mean(axis=0)) / std)
        fitted = fit_discriminant(rows.__getitem__, labels, 3, shrink=1.0)
        surprises.append(tempered_nll(leave_group_out_log_posterior(fitted, rows.__getitem__, labels), labels))
    assert_scaled(settle_scale(data_of(tmp_path, array, labels)), array, one_scale=surprises[0] <= surprises[1])


@pytest.mark.parametrize(("asked", "one_scale"), [(100, False), (1000, True)])
def test_of_many_rows_evenly_spaced_ones_are_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: int, one_scale: bool
) -> None:
    """The classes of every tenth row are in a small column, those of all others in a large one."""
    monkeypatch.setattr(labeling, "SCALE_SAMPLE", asked)
    random = np.random.default_rng(0)
    labels, rows = np.arange(1000) // 3 % 2, random.normal(size=(1000, 2))
    few = np.linspace(0, 999, 100).astype(int)
    others = np.setdiff1d(np.arange(1000), few)
    rows[few, 0] += 2 * labels[few]
    rows[others, 1] += 2 * labels[others]
    array = (rows * [1.0, 1000.0]).astype(np.float32)
    assert_scaled(settle_scale(data_of(tmp_path, array, torch.from_numpy(labels))), array, one_scale=one_scale)


def test_examples_that_validate_or_test_follow_and_have_no_say(tmp_path: Path) -> None:
    array, labels = one_unit_with_small_noise()
    other, other_labels = one_unit_with_small_noise(1)
    columns = np.arange(3, 153)
    other[np.arange(400)[:, None], columns] += 0.5 * (columns % 3 == other_labels[:, None].numpy())  # not noise there
    more = {
        "val": other,
        "val_labels": other_labels.numpy(),
        "test": other[:50],
        "test_labels": other_labels[:50].numpy(),
    }
    data = settle_scale(data_of(tmp_path, array, labels, more=more))
    expected = Standardization.fit(array, one_scale=True)
    torch.testing.assert_close(
        data.source.fetch(torch.arange(400, 800)), expected(torch.from_numpy(other)), rtol=1e-3, atol=1e-4
    )
    assert torch.equal(data.tests["test"].source.fetch(torch.arange(50)), data.source.fetch(torch.arange(400, 450)))


def test_a_declared_class_without_examples_is_no_trouble(tmp_path: Path) -> None:
    array, labels = one_unit_with_small_noise()
    np.savez(tmp_path / "a.npz", train=array, train_labels=labels.numpy() + (labels.numpy() == 2))
    options = DataOptions(path=str(tmp_path / "a.npz"), standardize="auto", classes=5)
    data = settle_scale(label_data(load_raw(options), options))
    assert_scaled(data, array, one_scale=True)


@pytest.mark.parametrize("place", [0, 100])
def test_an_example_alone_in_its_class_has_no_say(place: int, tmp_path: Path) -> None:
    for one_scale, make in ((True, one_unit_with_small_noise), (False, columns_in_units_of_their_own)):
        array, labels = make()
        labels[place] = 3
        assert_scaled(settle_scale(data_of(tmp_path, array, labels)), array, one_scale=one_scale)


def test_where_each_example_is_alone_in_its_class_columns_keep_their_scales(tmp_path: Path) -> None:
    array, _ = one_unit_with_small_noise(count=5)
    assert_scaled(settle_scale(data_of(tmp_path, array, torch.arange(5))), array, one_scale=False)


def test_a_run_with_auto_takes_the_choice(tmp_path: Path) -> None:
    for one_scale, make in ((True, one_unit_with_small_noise), (False, columns_in_units_of_their_own)):
        array, labels = make()
        path = write_npz(tmp_path / "a.npz", train=array, train_labels=labels.numpy())
        settings = {"data.standardize": "auto"}
        run = quick_train(path, tmp_path / str(one_scale), method="standard", epochs=1, settings=settings)
        found = run.model.standardization
        assert found is not None
        assert (len(found.std.unique()) == 1) == one_scale
