"""From files to everything a run needs: checked, split, the truth apart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import blobs, open_dataset, quick_train, write_npz
from unflip.data.corrupt import corrupt_labels
from unflip.data.dataset import Dataset
from unflip.data.labeling import label_data
from unflip.data.loaders import load_raw
from unflip.data.options import DataOptions, NoiseOptions
from unflip.data.split import split, stratified_split, untorn
from unflip.errors import ConfigError, InputError, UnflipError, UnflipWarning


def open_from(path: Path, content: dict[str, Any] | None = None, *, seed: int = 0, **options: Any) -> Dataset:
    if content is not None:
        write_npz(path, **content)
    return open_dataset(DataOptions(path=str(path), **options), seed)


def everything(dataset: Dataset) -> torch.Tensor:
    return dataset.source.fetch(torch.arange(len(dataset.source)))


def test_examples_keep_the_order_of_the_file_and_the_statistics_are_those_of_train(features: Path) -> None:
    content = dict(np.load(features))
    dataset = open_from(features)
    mean, std = content["train"].astype(np.float64).mean(axis=0), content["train"].astype(np.float64).std(axis=0)
    np.testing.assert_allclose(everything(dataset).numpy(), (content["train"] - mean) / std, atol=1e-5)
    test = dataset.tests["test"]
    np.testing.assert_allclose(test.source.fetch(torch.arange(60)).numpy(), (content["test"] - mean) / std, atol=1e-5)
    assert dataset.given.tolist() == content["train_labels"].tolist()
    assert test.class_numbers.tolist() == content["test_labels"].tolist()
    assert (dataset.name, dataset.num_classes, dataset.class_names) == ("blobs.npz", 3, None)
    assert dataset.clean is None  # nobody knows it
    assert dataset.standardization is not None


def test_standardization_can_be_switched_off(features: Path) -> None:
    dataset = open_from(features, standardize="off")
    np.testing.assert_array_equal(everything(dataset).numpy(), np.load(features)["train"])
    assert dataset.standardization is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_mapped_files_give_the_same_data_set(tmp_path: Path, dtype: type) -> None:
    content = blobs() | {"val": blobs(seed=1)["test"], "val_labels": blobs(seed=1)["test_labels"]}
    for name, array in content.items():
        np.save(tmp_path / f"{name}.npy", array if name.endswith("labels") else array.astype(dtype))
    mapped, memory = (open_from(tmp_path, mmap_threshold_mb=limit, limit=100) for limit in (0.0, 100.0))
    assert torch.equal(everything(mapped), everything(memory))
    batch = torch.tensor([3, 120, 0, 99, 100])
    assert torch.equal(mapped.source.fetch(batch), memory.source.fetch(batch))
    assert torch.equal(mapped.tests["test"].source.fetch(batch[:1]), memory.tests["test"].source.fetch(batch[:1]))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=200),
    st.floats(0.01, 0.99),
    st.integers(0, 10),
)
def test_a_split_takes_its_share_of_every_class(labels: list[int], fraction: float, seed: int) -> None:
    given_labels = torch.tensor(labels)
    is_val = stratified_split(given_labels, 5, fraction, seed)
    assert is_val.shape == given_labels.shape
    for label in range(5):
        count = labels.count(label)
        assert abs(int(is_val[given_labels == label].sum()) - count * fraction) <= 0.5 + 1e-4
    assert torch.equal(is_val, stratified_split(given_labels, 5, fraction, seed))


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_another_seed_draws_other_examples(seed: int, other: int) -> None:
    labels = torch.arange(400) % 4
    same = torch.equal(stratified_split(labels, 4, 0.5, seed), stratified_split(labels, 4, 0.5, other))
    assert same is (seed == other)


def test_every_example_validates_as_often_as_the_others() -> None:
    labels = torch.arange(40) % 2
    share = torch.stack([stratified_split(labels, 2, 0.25, seed) for seed in range(400)]).float().mean(0)
    assert (share - 0.25).abs().max() < 5 * (0.25 * 0.75 / 400) ** 0.5


def test_the_split_is_by_given_label_and_splits_say_so(features: Path) -> None:
    dataset = open_from(features, val_fraction=0.2)
    assert dataset.splits() == ["val" if val else "train" for val in dataset.is_val.tolist()]
    assert torch.bincount(dataset.given[dataset.is_val]).tolist() == [10, 10, 10]


def test_without_a_fraction_nothing_validates(features: Path) -> None:
    assert not open_from(features, val_fraction=0.0).is_val.any()


def test_a_val_split_that_came_with_the_data_replaces_ours(tmp_path: Path) -> None:
    content = blobs()
    held = blobs(seed=1)
    content |= {"val": held["test"], "val_labels": held["test_labels"], "train_ids": np.arange(150).astype(str)}
    dataset = open_from(tmp_path / "a.npz", content, standardize="off")
    assert dataset.is_val.tolist() == [False] * 150 + [True] * 60
    np.testing.assert_array_equal(everything(dataset).numpy(), np.concatenate([content["train"], held["test"]]))
    assert dataset.given.tolist() == [*content["train_labels"], *held["test_labels"]]
    assert dataset.ids is not None
    assert len(set(dataset.ids)) == 210


def test_ids_of_validation_examples_are_text_like_all_others_and_one_each(tmp_path: Path) -> None:
    held = blobs(seed=1)
    content = blobs() | {"val": held["test"], "val_labels": held["test_labels"], "train_ids": np.arange(150)}
    dataset = open_from(tmp_path / "a.npz", content | {"val_ids": np.arange(1000, 1060)})
    assert dataset.ids is not None
    assert dataset.ids[149:152] == ("149", "1000", "1001")
    with pytest.raises(InputError, match=r"val_ids: shape \(3,\) for 60 examples"):
        open_from(tmp_path / "b.npz", content | {"val_ids": np.arange(3)})


def test_labels_replace_and_the_datas_own_serve_evaluation_only(tmp_path: Path, features: Path) -> None:
    own = np.load(features)["train_labels"]
    np.save(tmp_path / "noisy.npy", (own + 1) % 3)
    dataset = open_from(features, labels=str(tmp_path / "noisy.npy"))
    assert dataset.given.tolist() == ((own + 1) % 3).tolist()
    assert dataset.clean is not None
    assert dataset.clean.tolist() == own.tolist()


def test_labels_of_data_without_its_own_leave_the_truth_unknown(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", blobs()["train"])
    np.save(tmp_path / "labels.npy", blobs()["train_labels"])
    dataset = open_from(tmp_path / "a.npy", labels=str(tmp_path / "labels.npy"))
    assert dataset.given.tolist() == blobs()["train_labels"].tolist()
    assert dataset.clean is None


@pytest.mark.parametrize("extra", [0, 1, 50])
def test_take_uses_the_first_examples_and_labels(tmp_path: Path, features: Path, extra: int) -> None:
    content = dict(np.load(features))
    np.save(tmp_path / "noisy.npy", (content["train_labels"][: 100 + extra] + 1) % 3)
    dataset = open_from(features, limit=100, labels=str(tmp_path / "noisy.npy"), standardize="off")
    np.testing.assert_array_equal(everything(dataset).numpy(), content["train"][:100])
    assert dataset.given.tolist() == ((content["train_labels"][:100] + 1) % 3).tolist()
    assert dataset.clean is not None
    assert dataset.clean.tolist() == content["train_labels"][:100].tolist()
    assert len(dataset.tests["test"].class_numbers) == 60


def test_names_are_classes_in_every_set(tmp_path: Path) -> None:
    names = np.array(["dog", "cat", "eel"])
    content = blobs()
    named = {key: names[array] if key.endswith("_labels") else array for key, array in content.items()}
    dataset = open_from(tmp_path / "a.npz", named)
    assert dataset.class_names == ("cat", "dog", "eel")
    assert [dataset.class_names[label] for label in dataset.given] == named["train_labels"].tolist()
    assert [dataset.class_names[label] for label in dataset.tests["test"].class_numbers] == named[
        "test_labels"
    ].tolist()


def test_declared_names_may_have_no_example(tmp_path: Path) -> None:
    content = blobs() | {"class_names": np.array(["a", "b", "c", "never"])}
    dataset = open_from(tmp_path / "a.npz", content)
    assert (dataset.num_classes, dataset.class_names) == (4, ("a", "b", "c", "never"))


def changed(**changes: Any) -> dict[str, Any]:
    """The good content with other arrays in it; None takes one out."""
    content = blobs() | changes
    return {key: value for key, value in content.items() if value is not None}


def with_value(name: str, row: int, value: float) -> dict[str, Any]:
    array = blobs()[name].astype(np.float64)
    array[row] = value
    return changed(**{name: array})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too few labels": (changed(train_labels=np.arange(149) % 3), r"train_labels: shape \(149,\) for 150 examples"),
    "too many labels": (changed(train_labels=np.arange(151) % 3), r"train_labels: shape \(151,\) for 150 examples"),
    "no labels": (changed(train_labels=None), "no train_labels in it; give a file with --labels"),
    "test labels of another length": (
        changed(test_labels=np.arange(59) % 3),
        r"test_labels: shape \(59,\) for 60 examples",
    ),
    "test set without labels": (changed(test_labels=None), "'test' has no labels; add 'test_labels' or remove it"),
    "val set without labels": (changed(val=np.ones((3, 6))), "'val' has no labels; add 'val_labels'"),
    "test of another shape": (
        changed(test=np.ones((60, 5))),
        r"'test': examples of shape \(5,\), but \(6,\) in training",
    ),
    "test label NaN": (with_value("test_labels", 8, np.nan), "test_labels', row 8: label nan is not an integer"),
    "no label": (changed(train_labels=np.full(150, np.nan)), "train_labels: no example has a label"),
    "label not an integer": (with_value("train_labels", 9, 1.5), "train_labels, row 9: label 1.5 is not an integer"),
    "test label out of range": (
        with_value("test_labels", 4, -2),
        "'test_labels', row 4: label -2.0 is not an integer from 0 to 2",
    ),
    "test class above all others": (
        with_value("test_labels", 4, 3),
        "'test_labels', row 4: label 3.0 is not an integer from 0 to 2",
    ),
    "test class that is none": (with_value("test_labels", 4, 3.5), "'test_labels', row 4: label 3.5 is not an integer"),
    "a test class without training examples": (
        changed(train_labels=np.array([0, 1, 3] * 50)),
        r"'test_labels', row \d+: unknown class '2'.*declare a class without training examples: data\.classes",
    ),
    "examples that are all the same": (
        changed(train=np.ones((150, 6))),
        "'train': the features of all 150 examples are the same; nothing tells them apart",
    ),
    "names for the test set": (
        changed(test_labels=np.array(["cat", "dog", "eel"] * 20)),
        "'test_labels': labels such as cat, but the data's own are such as .*data.classes=",
    ),
    "numbers for the test set": (
        changed(train_labels=np.array(["cat", "dog", "eel"] * 50)),
        "'test_labels': labels such as .*, but the data's own are such as cat",
    ),
    "labels in a column": (
        changed(train_labels=np.zeros((150, 1))),
        r"train_labels: shape \(150, 1\) for 150 examples",
    ),
    "one number for labels": (changed(train_labels=np.array(1)), r"train_labels: shape \(\) for 150 examples"),
    "an infinite test label": (
        with_value("test_labels", 4, np.inf),
        "'test_labels', row 4: label inf is not an integer",
    ),
    "ids of the test set": (changed(test_ids=np.arange(3)), r"test_ids: shape \(3,\) for 60 examples"),
    "an empty name in the test set": (
        changed(train_labels=np.array(["a", "b"] * 75), test_labels=np.array(["a", "b", ""] * 20)),
        "test_labels', row 2: the label is empty",
    ),
    "one class": (changed(train_labels=np.zeros(150, int)), "1 class among 150 labels; at least two are needed"),
    "no examples": (
        changed(train=np.zeros((0, 6)), train_labels=np.zeros(0, int)),
        "no rows in 'train'",
    ),
    "NaN in train": (with_value("train", 11, np.nan), "'train', row 11: nan among the features"),
    "infinity in test": (with_value("test", 12, -np.inf), "'test', row 12: -inf among the features"),
    "NaN in val": (
        with_value("train", 0, 0.0) | {"val": np.full((2, 6), np.nan), "val_labels": np.array([0, 1])},
        "'val', row 0: nan",
    ),
    "a value too large": (with_value("train", 11, 1e300), r"'train', row 11: 1e\+300 among the features is too large"),
    "empty test set": (changed(test=np.zeros((0, 6)), test_labels=np.zeros(0, int)), "'test' has no examples"),
    "ids of another length": (changed(train_ids=np.array(["a", "b"])), r"train_ids: shape \(2,\) for 150 examples"),
    "a stray validation array": (changed(val2=np.zeros((3, 6))), "array 'val2'; validation examples must be called"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_bad_data_says_what_is_wrong_and_where(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        open_from(tmp_path / "a.npz", content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 151}, "limit = 151: there are only 150 training examples"),
        ({"labels": "noisy.npy"}, r"labels .*noisy\.npy: 100 labels for 150 examples; .*--limit 100"),
        ({"labels": "noisy.npy", "limit": 101}, r"noisy\.npy: 100 labels for 101 examples"),
        ({"labels": "missing.npy"}, r"missing\.npy: No such file"),
        ({"classes": 2}, r"train_labels, row \d+: label 2 is not an integer from 0 to 1"),
        ({"classes": ("a", "b")}, r"train_labels, row \d+: label 2 is not an integer from 0 to 1"),
        ({"val_fraction": 0.999}, "fewer than two classes in 0 training examples"),
    ],
)
def test_options_that_do_not_fit_the_data_say_so(
    tmp_path: Path, features: Path, options: dict[str, Any], message: str
) -> None:
    np.save(tmp_path / "noisy.npy", np.arange(100) % 3)
    if "labels" in options:
        options = options | {"labels": str(tmp_path / options["labels"])}
    with pytest.raises(UnflipError, match=message):
        open_from(features, **options)


def test_declared_classes_allow_one_that_only_the_test_set_has(tmp_path: Path) -> None:
    content = with_value("test_labels", 4, 3)
    assert open_from(tmp_path / "a.npz", content, classes=4).tests["test"].class_numbers[4] == 3
    between = changed(train_labels=np.array([0, 2] * 75))
    assert open_from(tmp_path / "a.npz", between, classes=3).num_classes == 3


def test_classes_of_a_test_set_are_matched_by_name(tmp_path: Path) -> None:
    names = np.array(["cat", "ape", "bee", "dog"])
    content = blobs()
    content["train_labels"], content["test_labels"] = names[content["train_labels"]], names[content["test_labels"]]
    content["test_labels"][4] = "dog"
    text = "a.npz, 'test': no training examples of 'dog'; they cannot be predicted$"
    with pytest.warns(UnflipWarning, match=text):
        dataset = open_from(tmp_path / "a.npz", content)
    assert dataset.class_names == ("ape", "bee", "cat", "dog")
    assert dataset.tests["test"].class_numbers[4] == 3
    with pytest.warns(UnflipWarning, match=text):
        run = quick_train(tmp_path / "a.npz", tmp_path / "run", method="unflip", epochs=2)
    assert run.result["tests"]["test"]["per_class"][3] == 0


@pytest.mark.parametrize("name", ["missing.npz", "a.mat"])
def test_a_path_that_is_no_data_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.mat").write_bytes(b"")
    expected = {
        "missing.npz": r"^No such file or folder: \S*missing\.npz$",
        "a.mat": r"cannot read '\.mat'; give \.npz, \.npy, \.csv, \.parquet, \.jsonl or a folder",
    }
    with pytest.raises(InputError, match=expected[name]):
        open_from(tmp_path / name)


@pytest.mark.parametrize("options", [{"limit": 0}, {"val_fraction": 1.0}, {"val_fraction": -0.1}, {"tke": 3}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        DataOptions(path="digits", **options)


def test_take_beyond_the_data_is_a_matter_of_configuration(features: Path) -> None:
    with pytest.raises(ConfigError):
        open_from(features, limit=1000)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=200),
    st.floats(0.05, 0.6),
    st.integers(0, 10),
)
def test_groups_stay_together_and_a_split_takes_no_more_than_its_share(
    examples: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    labels, groups = torch.tensor(examples).T
    is_val = stratified_split(labels, 4, fraction, seed, groups)
    for group in groups.unique():
        assert len(is_val[groups == group].unique()) == 1
    for label in range(4):
        members = labels == label
        assert int(is_val[members].sum()) <= int(members.sum()) * fraction + 0.5
    assert torch.equal(is_val, stratified_split(labels, 4, fraction, seed, groups))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=1, max_size=100))
def test_of_the_same_examples_all_validate_or_none(examples: list[tuple[bool, int]]) -> None:
    is_val, same = torch.tensor([a for a, _ in examples]), torch.tensor([b for _, b in examples])
    untorn_ones = untorn(is_val, same)
    for number in same.unique():
        members = same == number
        assert bool(untorn_ones[members].all()) == bool(untorn_ones[members].any()) == bool(is_val[members].all())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equal_rows_are_on_one_side_of_the_split(tmp_path: Path, seed: int) -> None:
    content = blobs()
    content["train"][50:100] = content["train"][:50]
    dataset = open_from(tmp_path / "data.npz", content, seed=seed, val_fraction=0.3)
    assert dataset.same is not None
    assert torch.equal(dataset.is_val[:50], dataset.is_val[50:100])
    assert torch.equal(dataset.same[:50], dataset.same[50:100])
    assert len(dataset.same.unique()) == 100
    assert 10 < int(dataset.is_val.sum()) <= 46


@pytest.mark.parametrize("fraction", [0.1, 0.4])
def test_where_most_rows_are_equal_to_others_as_many_validate(tmp_path: Path, fraction: float) -> None:
    content = blobs(train=300)
    content["train"] = content["train"][np.arange(300) % 60]
    dataset = open_from(tmp_path / "data.npz", content, val_fraction=fraction)
    for row in range(60):
        assert len(dataset.is_val[row::60].unique()) == 1
    assert 0.6 * 300 * fraction < int(dataset.is_val.sum()) <= 300 * fraction


def test_a_val_split_that_came_with_the_data_keeps_its_equal_rows(tmp_path: Path) -> None:
    content = blobs()
    content |= {"val": content["train"][:9], "val_labels": content["train_labels"][:9]}
    dataset = open_from(tmp_path / "data.npz", content)
    assert dataset.is_val.nonzero()[:, 0].tolist() == list(range(150, 159))


def test_groups_of_one_are_split_as_evenly_as_examples() -> None:
    labels = torch.arange(400) % 4
    is_val = stratified_split(labels, 4, 0.1, 0, torch.arange(400))
    assert [int(is_val[labels == label].sum()) for label in range(4)] == [10] * 4


@pytest.mark.parametrize("kind", ["array", "npy", "txt"])
def test_groups_come_from_an_array_of_the_data_or_a_file(tmp_path: Path, kind: str) -> None:
    groups = np.array([f"scan {i // 3}" for i in range(150)])
    content: dict[str, Any] = blobs()
    if kind == "array":
        content, where = content | {"patients": groups}, "patients"
    else:
        where = str(tmp_path / f"patients.{kind}")
        if kind == "npy":
            np.save(where, groups)
        else:
            Path(where).write_text("\n".join(groups), "utf-8")
    is_val = open_from(tmp_path / "data.npz", content, groups=where, limit=120).is_val
    assert 3 <= int(is_val.sum()) <= 13
    for group in set(groups[:120]):
        assert len(is_val[torch.from_numpy(groups[:120] == group)].unique()) == 1


def test_groups_that_are_nowhere_or_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.groups patient: no such column, array or file"):
        open_from(tmp_path / "data.npz", blobs(), groups="patient")
    with pytest.raises(InputError, match=r"data\.groups patient: 3 groups for 150 examples"):
        open_from(tmp_path / "data.npz", blobs() | {"patient": np.arange(3)}, groups="patient")
    for missing in (np.where(np.arange(150) == 7, np.nan, 1.0), np.where(np.arange(150) == 7, "", "a")):
        with pytest.raises(InputError, match=r"data\.groups patient, row 7: no group; every example needs one"):
            open_from(tmp_path / "data.npz", blobs() | {"patient": missing}, groups="patient")


def test_a_column_of_groups_in_a_table_is_no_feature(tmp_path: Path) -> None:
    lines = [f"{i % 59},{i % 3},person {i // 4}" for i in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["size,label,person", *lines]))
    dataset = open_from(tmp_path / "table.csv", groups="person")
    assert dataset.source.shape == (1,)
    sides = dataset.is_val.view(15, 4)
    assert torch.equal(sides.any(1), sides.all(1))
    assert sides.any()


def write_labels(path: Path, labels: Any) -> str:
    if path.suffix == ".npy":
        np.save(path, labels)
    else:
        path.write_text("\n".join(map(str, labels)) + "\n", "utf-8")
    return str(path)


def test_names_over_numbers_are_mapped_by_class_names_or_refused(tmp_path: Path) -> None:
    names = np.array(["dog", "cat", "eel"])
    labels = write_labels(tmp_path / "names.txt", names[blobs()["train_labels"]])
    with pytest.raises(InputError, match=r"names\.txt: labels such as \w+, but the data's own are such as"):
        open_from(tmp_path / "a.npz", blobs(), labels=labels)
    for dataset in (
        open_from(tmp_path / "a.npz", blobs(), labels=labels, classes=tuple(names)),
        open_from(tmp_path / "b.npz", blobs() | {"class_names": names}, labels=labels),
    ):
        assert dataset.clean is not None
        assert torch.equal(dataset.given, dataset.clean)
        assert dataset.class_names == tuple(names)


def test_numbers_over_names_are_those_that_corrupt_writes(tmp_path: Path) -> None:
    names = np.array(["cat", "dog", "eel"])
    named = {key: names[array] if key.endswith("_labels") else array for key, array in blobs().items()}
    labels = write_labels(tmp_path / "noisy.npy", blobs()["train_labels"].astype(np.uint8))
    dataset = open_from(tmp_path / "a.npz", named, labels=labels)
    assert dataset.clean is not None
    assert torch.equal(dataset.given, dataset.clean)
    assert dataset.class_names == tuple(names)


def test_a_class_that_no_given_label_names_is_still_one(tmp_path: Path) -> None:
    named = {key: np.array(["a", "b", "c"])[array] if "labels" in key else array for key, array in blobs().items()}
    given_labels = np.where(named["train_labels"] == "c", "b", named["train_labels"])
    content = {key: value for key, value in named.items() if not key.startswith("test")}
    dataset = open_from(tmp_path / "a.npz", content, labels=write_labels(tmp_path / "l.txt", given_labels))
    assert dataset.class_names == ("a", "b", "c")


@pytest.mark.parametrize("named", [False, True])
def test_a_table_of_labels_in_another_order_says_which_examples_it_is_about(tmp_path: Path, named: bool) -> None:
    content: dict[str, Any] = blobs() | ({"train_ids": np.array([f"x{i}" for i in range(150)])} if named else {})
    order = np.random.default_rng(0).permutation(150)
    lines = [f"{f'x{i}' if named else i},{content['train_labels'][i]}" for i in order]
    (tmp_path / "labels.csv").write_text("\n".join([f"{'id' if named else 'index'},label", *lines]))
    for take in (None, 100):
        dataset = open_from(tmp_path / "a.npz", content, labels=str(tmp_path / "labels.csv"), limit=take)
        assert dataset.given.tolist() == content["train_labels"][:take].tolist()


@pytest.mark.parametrize("shape", [(), (150, 1)])
def test_a_file_of_labels_has_one_dimension(tmp_path: Path, features: Path, shape: tuple[int, ...]) -> None:
    labels = write_labels(tmp_path / "l.npy", np.zeros(shape))
    with pytest.raises(InputError, match=r"l\.npy: .*labels for 150 examples"):
        open_from(features, labels=labels)


@pytest.mark.parametrize("values", [(1, 2, 3), (-1, 1, 2), (2023, 2024, 2025), (0, 1, 30)])
def test_classes_are_the_numbers_that_occur(tmp_path: Path, values: tuple[int, ...]) -> None:
    content = blobs()
    named = {key: np.array(values, float)[content[key]] for key in ("train_labels", "test_labels")}
    data = open_from(tmp_path / "a.npz", content | named)
    assert data.class_names == tuple(map(str, values))
    assert data.given.tolist() == content["train_labels"].tolist()
    assert data.tests["test"].class_numbers.tolist() == content["test_labels"].tolist()


def test_declared_classes_may_have_no_examples(tmp_path: Path) -> None:
    content = changed(train_labels=np.array([3, 400] * 75), test=None, test_labels=None)
    assert open_from(tmp_path / "a.npz", content, classes=1000).num_classes == 1000


def test_a_class_beside_counted_ones_may_be_a_missing_label(tmp_path: Path) -> None:
    content = changed(train_labels=np.arange(150) % 5 - 1, test=None, test_labels=None)
    with pytest.warns(UserWarning, match="-1 is a class like the others; if it means that there is no label, drop"):
        assert open_from(tmp_path / "a.npz", content).class_names == ("-1", "0", "1", "2", "3")


# Noise, where validation examples came with the data


def with_val() -> dict[str, Any]:
    held = blobs(seed=1)
    return blobs() | {"val": held["test"], "val_labels": held["test_labels"]}


def test_noise_goes_on_the_validation_labels_too(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", **with_val())
    options = DataOptions(path=str(tmp_path / "a.npz"))
    before = label_data(load_raw(options), options)
    data = corrupt_labels(before.joined(), NoiseOptions(recipe="sym:0.5"), None, seed=0)
    dataset = split(data, 0.1, seed=0)
    assert dataset.clean is not None
    truth = [*with_val()["train_labels"], *with_val()["val_labels"]]
    assert dataset.clean.tolist() == truth
    assert dataset.is_val.tolist() == [False] * 150 + [True] * 60
    for part in (dataset.is_val, ~dataset.is_val):
        assert 0.3 < float((dataset.given != dataset.clean)[part].float().mean()) < 0.7
    assert not dataset.clean_val
    assert dataset.noise_record is not None
    assert dataset.noise_record["num_examples"] == 210
    alone = corrupt_labels(before, NoiseOptions(recipe="sym:0.5"), None, seed=0)
    assert len(alone.given) == 150  # what `unflip corrupt` writes


def test_without_validation_examples_there_is_nothing_to_join(features: Path) -> None:
    options = DataOptions(path=str(features))
    data = label_data(load_raw(options), options)
    assert data.joined() is data


def test_validation_labels_next_to_others_that_train_are_clean(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "noisy.npy", (blobs()["train_labels"] + 1) % 3)
    assert open_from(tmp_path / "a.npz", with_val(), labels=labels).clean_val
    assert not open_from(tmp_path / "a.npz", with_val()).clean_val
    assert not open_from(tmp_path / "b.npz", blobs(), labels=labels).clean_val  # those that validate are noisy as well


# Names that look like numbers


def test_class_names_that_are_numbers_are_found_by_name_in_text(tmp_path: Path) -> None:
    names = np.array(["1", "10", "2"])  # as folders are sorted
    labels = write_labels(tmp_path / "l.txt", names[blobs()["train_labels"]])
    dataset = open_from(tmp_path / "a.npz", blobs() | {"class_names": names}, labels=labels)
    assert dataset.given.tolist() == blobs()["train_labels"].tolist()
    (tmp_path / "t.csv").write_text("size,label\n" + "1,20\n2,10\n" * 9)
    table = open_from(tmp_path / "t.csv", classes=("20", "10"))
    assert table.given.tolist() == [0, 1] * 9


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_numbers_that_are_no_names_are_refused_where_classes_are_called_by_other_numbers(
    tmp_path: Path, kind: str
) -> None:
    content = changed(train_labels=np.array(["1", "2", "3"] * 50), test=None, test_labels=None)
    path = write_npz(tmp_path / "a.npz", **content)
    labels = tmp_path / f"labels.{kind}"

    def write_labels(numbers: list[int]) -> None:
        if kind == "npy":
            np.save(labels, np.array(numbers))
        else:
            labels.write_text("\n".join(["label", *map(str, numbers)]))

    write_labels([1, 2, 3] * 50)
    assert open_from(path, labels=str(labels)).given[:3].tolist() == [0, 1, 2]
    write_labels([0, 1, 2] * 50)
    with pytest.raises(
        InputError, match=r"labels.*: numbers such as 0.* are ambiguous, since the classes are called 1, 2, 3"
    ):
        open_from(path, labels=str(labels))


def test_space_around_names_of_classes_does_not_count(tmp_path: Path) -> None:
    names = np.array(["ape", " bee", "bee ", "ape "])
    content = {"train": blobs()["train"][:40], "train_labels": np.tile(names, 10)}
    assert open_from(tmp_path / "a.npz", content).class_names == ("ape", "bee")
    assert open_from(tmp_path / "a.npz", content, classes=("bee ", "ape")).class_names == ("bee", "ape")
    called = content | {"class_names": np.array(["ape ", "bee", "cow"])}
    assert open_from(tmp_path / "a.npz", called).class_names == ("ape", "bee", "cow")
    np.save(tmp_path / "labels.npy", np.tile(names[::-1], 10))
    again = open_from(tmp_path / "a.npz", content, labels=str(tmp_path / "labels.npy"))
    assert again.given[:4].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Cat", "cat"),
        ("\u00e9t\u00e9", "e\u0301te\u0301"),
        ("\uff21", "A"),
        ("1", "01"),
        ("cat", "c\u200bat"),
        ("a  b", "a b"),
    ],
)
def test_classes_that_most_likely_are_one_are_named(tmp_path: Path, one: str, other: str) -> None:
    content = {"train": blobs()["train"][:40], "train_labels": np.array([one, other, "dog", "eel"] * 10)}
    with pytest.warns(UnflipWarning, match="class names that differ in case, .* or leading zeros only: '.*' and '.*'$"):
        assert open_from(tmp_path / "a.npz", content).num_classes == 4


def test_names_and_ids_that_are_stored_as_bytes_are_text(tmp_path: Path) -> None:
    content = {"train": blobs()["train"][:40], "train_labels": np.array(["été", "z"] * 20)}
    content["train_labels"] = np.char.encode(content["train_labels"], "utf-8")
    dataset = open_from(tmp_path / "a.npz", content | {"train_ids": np.array([b"row-%d" % i for i in range(40)])})
    assert dataset.class_names == ("z", "été")
    assert dataset.ids is not None
    assert dataset.ids[:2] == ("row-0", "row-1")
    with pytest.raises(InputError, match=r"a\.npz, train_ids: not text in UTF-8"):
        open_from(tmp_path / "a.npz", content | {"train_ids": np.array([b"\xff"] * 40)})
