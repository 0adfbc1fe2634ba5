"""Odd data in the Python API: the right answer, or one line that names the cause."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.sparse import coo_array, csr_matrix
from sklearn.datasets import make_blobs

from helpers import blobs, quick_train, write_npz
from unflip import (
    KnownWrongControls,
    LabelCorrection,
    UnflipClassifier,
    agnostic_mean,
    clean,
    corrupt,
    find_label_errors,
    predict,
    save,
    train,
)
from unflip.data import memory
from unflip.data.arrays import Shards
from unflip.data.dataset import Dataset, Split
from unflip.data.labels import read_labels
from unflip.data.rewrite import NewLabels
from unflip.errors import InputError, UnflipError, UnflipWarning
from unflip.issues.duplicates import find_duplicates
from unflip.issues.outlier import unit_vectors
from unflip.noise import corrupt_labels
from unflip.runs.labels import names_of


def issues(X: Any, y: Any, **parameters: Any) -> int:  # noqa: N803 - scikit-learn's name
    return len(find_label_errors(X, y, random_state=0, **parameters).issues)


MOMENTS, KINDS = make_blobs(240, 2, centers=3, random_state=1)
MOMENTS = np.round(1.7e9 + 20 * MOMENTS)  # seconds, which float32 rounds to multiples of 128


def test_integers_keep_their_digits() -> None:
    model = UnflipClassifier(random_state=0).fit(MOMENTS, KINDS)
    for given in (MOMENTS.astype(np.int64), MOMENTS.astype(np.int64).tolist(), MOMENTS):
        assert issues(given, KINDS) == 0
        assert model.score(given, KINDS) > 0.99


@pytest.mark.parametrize("shift", [2e8, 5e8])
def test_rows_that_only_float32_cannot_tell_apart_are_no_copies(shift: float) -> None:
    X, y = make_blobs(240, 5, centers=3, random_state=0, cluster_std=2.0)
    model = UnflipClassifier(random_state=0).fit(X + shift, y)
    assert np.isfinite(model.label_quality_).all()
    assert model.score(X + shift, y) > 0.99


def test_issues_are_found_far_from_zero_as_near_it() -> None:
    X, y = make_blobs(240, 5, centers=3, random_state=0, cluster_std=2.0)
    X = np.vstack([X, X[:3] + 1e-4])
    y = np.concatenate([y, y[:3]])
    near, far = (unit_vectors(Shards([rows]), np.arange(len(rows)), None)(slice(None)) for rows in (X, X + 2.0**30))
    np.testing.assert_allclose(far, near, atol=1e-4)
    for rows in (X, X + 2.0**30):
        found = find_duplicates(Dataset(Split(rows, y)), {"train": rows})
        assert found.partners(slice(240, 243), slice(0, 240))[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("method", ["unflip", "standard"])
@pytest.mark.parametrize("groups", ["one", "per class"])
def test_groups_that_leave_nothing_to_learn_from_are_refused(method: str, groups: str, tmp_path: Path) -> None:
    content = blobs(train=240)
    y = content["train_labels"]
    column = y if groups == "per class" else np.zeros_like(y)
    message = "in one group, or copies, so there is nothing to check their labels by; use smaller groups$"
    with pytest.raises(ValueError, match=f"^X, y: all .*{message}"):
        UnflipClassifier(method).fit(content["train"], y, groups=column)
    with pytest.raises(ValueError, match=f"^X, y: all .*{message}"):
        find_label_errors(content["train"], y, method=method, groups=column)
    data = write_npz(tmp_path / "data.npz", **content, person=column)
    with pytest.raises(InputError, match=f"data.npz: all .*{message}"):
        quick_train(data, tmp_path / "run", method=method, settings={"data.groups": "person"})


def test_threads_give_the_same_fits_and_leave_the_generator_as_it_was() -> None:
    content = blobs(train=120)

    def fit(_: int) -> Any:
        model = UnflipClassifier("standard", epochs=5, random_state=0, settings={"mlp.dropout": 0.3})
        return model.fit(content["train"], content["train_labels"]).predict_proba(content["test"])

    before = torch.get_rng_state()
    alone = fit(0)
    with ThreadPoolExecutor(6) as pool:
        for probs in pool.map(fit, range(6)):
            np.testing.assert_array_equal(probs, alone)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_in_a_folder_leaves_the_generator_as_it_was(tmp_path: Path) -> None:
    data, before = write_npz(tmp_path / "data.npz", **blobs(train=60)), torch.get_rng_state()
    quick_train(data, tmp_path / "run", method="standard", epochs=1, settings={"mlp.dropout": 0.3})
    assert torch.equal(torch.get_rng_state(), before)


VALUES = np.array([2, 3, 10])


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Blobs whose classes are called 2, 3 and 10."""
    content = blobs(train=90)
    content |= {key: VALUES[content[key]] for key in ("train_labels", "test_labels")}
    return write_npz(tmp_path / "data.npz", **content)


def test_numbers_of_classes_go_through_runs_and_predictions_unchanged(numbered: Path, tmp_path: Path) -> None:
    run = quick_train(numbered, tmp_path / "run", method="standard", epochs=2)
    assert run.class_names == ["2", "3", "10"]
    assert set(names_of(run.labels(), "given_label").to_pylist()) == {"2", "3", "10"}
    assert run.result["test_accuracy"]["last"] > 0.5
    table = predict(run.folder, numbered).table()
    assert table.column_names[-3:] == ["p_2", "p_3", "p_10"]
    assert set(table["label"].to_pylist()) == {"2", "3", "10"}


def test_a_reviewed_label_that_is_the_place_of_a_class_is_refused(numbered: Path, tmp_path: Path) -> None:
    settings = {"data.reviewed": str(tmp_path / "reviewed.csv")}
    for label in ("0", "1"):
        (tmp_path / "reviewed.csv").write_text(f"index,label\n0,{label}\n")
        with pytest.raises(InputError, match=f"row 0: unknown class '{label}'"):
            quick_train(numbered, tmp_path / "run", method="standard", epochs=1, settings=settings)


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_noisy_labels_keep_the_numbers_of_classes(numbered: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"noisy{suffix}"
    made = corrupt(numbered, "sym:0.3", out)
    assert set(read_labels(out).tolist()) == {2, 3, 10}
    settings = {"data.labels": str(out)}
    run = quick_train(numbered, tmp_path / "run", method="standard", epochs=1, settings=settings)
    assert run.class_names == ["2", "3", "10"]
    assert run.result["noise_rate"] == pytest.approx(made.noise_rate, abs=1e-5)


def probabilities() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(90) % 3
    return np.where(np.arange(3) == y[:, None], 0.8, 0.1), np.array(["ape", "bee", "cat"])[y]


def own_issues(labels: Any, pred_probs: Any) -> int:
    return len(find_label_errors(labels=labels, pred_probs=pred_probs).issues)


@pytest.mark.parametrize("prefix", ["", "p_"])
def test_columns_of_probabilities_are_matched_by_name(prefix: str) -> None:
    pandas = pytest.importorskip("pandas")
    probs, names = probabilities()
    frame = pandas.DataFrame(probs[:, ::-1], columns=[f"{prefix}{name}" for name in ("cat", "bee", "ape")])
    numbers = pandas.DataFrame(probs[:, ::-1], columns=[f"{prefix}{name}" for name in (9, 5, 2)])
    for table in (frame, pa.Table.from_pandas(frame)):
        assert own_issues(names, table) == 0
    assert own_issues(np.array([2, 5, 9])[np.arange(90) % 3], numbers) == 0
    assert own_issues(names, pandas.DataFrame(probs)) == 0  # 0 to k - 1 are no names
    with pytest.raises(ValueError, match=r"^pred_probs: no column for the label ape; columns are cat, bee, dog$"):
        own_issues(names, pandas.DataFrame(probs[:, ::-1], columns=["cat", "bee", "dog"]))
    with pytest.raises(ValueError, match=r"^pred_probs: the column id is none of the labels; remove it$"):
        own_issues(np.arange(90) % 2, pandas.DataFrame(probs, columns=["0", "1", "id"]))


def test_probabilities_of_any_type_work_or_are_refused_in_one_line() -> None:
    probs, names = probabilities()
    assert own_issues(names, probs.astype(object)) == own_issues(names, probs.astype(str)) == 0
    for wrong in (np.full((90, 3), "x"), [[1, 0], [1]] * 45):
        with pytest.raises(ValueError, match=r"^pred_probs: must be numbers, one column per class \(.*\)$"):
            own_issues(names, wrong)


@pytest.mark.parametrize("of_features", [True, False])
def test_labels_of_any_type_work_or_are_refused_in_one_line(of_features: bool) -> None:
    probs, names = probabilities()

    def find(labels: Any) -> pa.Table:
        if of_features:
            return pa.table(find_label_errors(probs, labels, method="standard", epochs=1, random_state=0).ranked)
        return pa.table(find_label_errors(labels=labels, pred_probs=probs).ranked)

    some: Any = names.astype(object)
    expected = find(names)["suggested_label"].to_pylist()
    for labels in (some, names.astype(np.dtypes.StringDType()), pa.array(names), pa.chunked_array([names])):
        assert find(labels)["suggested_label"].to_pylist() == expected
    for gap in (None, np.nan):
        some[3] = gap
        if of_features:
            assert sorted(find(some)["index"].to_pylist()) == [row for row in range(90) if row != 3]
            continue
        with pytest.raises(ValueError, match=r"^labels: example 3 has none; every example needs one$"):
            find(some)
        with pytest.raises(ValueError, match=r"^labels: example 4 has none; every example needs one$"):
            find(np.where(np.arange(90) == 4, np.nan, np.arange(90) % 3))
    some[3] = 1
    with pytest.raises(ValueError, match=r"^labels: must be all numbers or all names \(.*\)$"):
        find(some)


def test_sparse_rows_are_the_same_as_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    content = blobs(train=90)
    X, y = np.where(content["train"] > 0, content["train"], 0), content["train_labels"]
    model = UnflipClassifier("standard", epochs=2, random_state=0)
    dense = model.fit(X, y).predict_proba(X)
    for kind in (csr_matrix, coo_array):
        np.testing.assert_array_equal(model.fit(kind(X), y).predict_proba(kind(X)), dense)
    monkeypatch.setattr(memory, "_MAX_DENSE", 1000)
    with pytest.raises(ValueError, match=r"^X: a sparse matrix of 90 x 6 takes 0 GiB in full.*TruncatedSVD$"):
        model.fit(csr_matrix(X), y)


def test_gaps_in_arrays_are_filled_as_in_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    content = blobs(train=90)
    X = content["train"].astype(np.float64)
    X[::7, 1] = np.nan
    model = UnflipClassifier("standard", epochs=2, random_state=0)
    of_frame = model.fit(pandas.DataFrame(X), content["train_labels"]).predict_proba(pandas.DataFrame(X))
    model.fit(X, content["train_labels"])
    np.testing.assert_array_equal(model.predict_proba(X), of_frame)
    assert np.isfinite(model.predict_proba(X.tolist())).all()
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(ValueError, match="expecting 6 features"):
        model.predict(X[:, :5])


def test_columns_that_are_dropped_are_named_in_a_warning() -> None:
    pandas = pytest.importorskip("pandas")
    content, model = blobs(train=90), UnflipClassifier("standard", epochs=1, random_state=0)
    ranks = np.random.default_rng(0).permutation(90)
    frame = pandas.DataFrame({"rank": ranks, "row": range(90), "user_id": ranks * 7, "plan": ["a", "b"] * 45})
    with pytest.warns(
        UnflipWarning, match=r"^X: columns that are not used: row \(.*\), user_id \(.*settings="
    ) as heard:
        model.fit(frame, content["train_labels"])
    assert len(heard) == 1
    used = UnflipClassifier("standard", epochs=1, settings={"data.numeric": ["row", "user_id"]})
    used.fit(frame, content["train_labels"])


def test_one_number_of_hidden_units_is_one_layer() -> None:
    content = blobs(train=90)
    fits = [
        UnflipClassifier("standard", hidden=hidden, epochs=1, random_state=0)  # type: ignore[arg-type]
        .fit(content["train"], content["train_labels"])
        .predict_proba(content["test"])
        for hidden in ((16,), 16, np.int64(16))
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    np.testing.assert_array_equal(fits[0], fits[2])


def test_tables_of_views_batches_and_hugging_face_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    y, model = np.arange(60) % 2, UnflipClassifier("standard", epochs=1, random_state=0)
    names, x = pa.array(["bad", "good", "good"] * 20), pa.array(np.sin(np.arange(60)) + y)
    plain, table = pa.table({"word": names, "x": x}), pa.table({"word": names.cast(pa.string_view()), "x": x})
    expected = model.fit(plain, y).predict_proba(table)
    for other in (table, table.to_batches()[0], datasets.Dataset(plain)):
        np.testing.assert_array_equal(model.fit(other, y).predict_proba(other), expected)
    path = tmp_path / "views.parquet"
    pq.write_table(table.append_column("label", pa.array(["no", "yes"] * 30).cast(pa.string_view())), path)
    assert quick_train(path, tmp_path / "run", epochs=1).class_names == ["no", "yes"]


def test_intervals_are_categories() -> None:
    pandas = pytest.importorskip("pandas")
    content = blobs(train=90)
    frame = pandas.DataFrame(content["train"]).assign(part=pandas.cut(content["train"][:, 0], 4))
    frame[7] = pandas.cut(content["train"][:, 1], 3)
    before = frame.dtypes.tolist()
    model = UnflipClassifier("standard", epochs=1, random_state=0).fit(frame, content["train_labels"])
    assert model.encoding_ is not None
    assert [column["kind"] for column in model.encoding_.settings["columns"]][-2:] == ["category", "category"]
    assert frame.dtypes.tolist() == before


def test_what_is_no_table_is_refused_in_one_line() -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    y, model = np.arange(60) % 2, UnflipClassifier("standard", epochs=1, random_state=0)
    data = datasets.Dataset.from_dict({"x": np.sin(np.arange(60)).tolist()})
    for X, message in (
        (datasets.DatasetDict(train=data), r"X: several splits; use one of them, such as X\['train'\]"),
        (data.to_iterable_dataset(), "X: a streamed data set; load it without streaming"),
        (pandas.DataFrame(index=range(60)), "X: no columns; at least one is needed"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            model.fit(X, y)
    rows = np.sin(np.arange(120.0)).reshape(60, 2)
    model.fit(rows, y)
    rows[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"^X, row 3: NaN, but the model was trained without gaps; fill it$"):
        model.predict(rows)


def test_texts_in_columns_of_arrow_and_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    y, texts = np.arange(60) % 2, [f"a {'bad' if i % 3 else 'good'} thing of number {i}" for i in range(60)]
    model = UnflipClassifier("standard", epochs=1, random_state=0, settings={"data.text_encoder": "tfidf"})
    expected = model.fit(texts, y).predict_proba(texts)
    for column in (pa.array(texts), pa.chunked_array([texts]), datasets.Dataset.from_dict({"t": texts})["t"]):
        np.testing.assert_array_equal(model.fit(column, y).predict_proba(column), expected)


def test_what_is_masked_is_a_gap() -> None:
    content = blobs(train=90)
    X, y = content["train"].astype(np.float64), content["train_labels"]
    gaps, hidden = X.copy(), np.zeros(X.shape, bool)
    hidden[::7, 1], gaps[::7, 1] = True, np.nan
    masked = np.ma.masked_array(np.where(hidden, 1e9, X), hidden)
    model = UnflipClassifier("standard", epochs=2, random_state=0)
    expected = model.fit(gaps, y).predict_proba(gaps)
    np.testing.assert_array_equal(model.fit(masked, y).predict_proba(masked), expected)
    whole = model.fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(model.fit(np.ma.masked_array(X), y).predict_proba(np.ma.masked_array(X)), whole)
    integers = np.ma.masked_array((100 * X).astype(np.int64), hidden)
    assert np.isfinite(model.fit(integers, y).predict_proba(integers)).all()
    column = np.ma.masked_array(y, np.arange(90) == 4)
    wrong: dict[str, dict[str, Any]] = {
        "y": {"y": column},
        "groups": {"y": y, "groups": column},
        "trusted": {"y": y, "trusted": np.ma.masked_array(y > 0, column.mask)},
    }
    for name, columns in wrong.items():
        with pytest.raises(ValueError, match=f"^{name}: example 4 has none; every example needs one$"):
            model.fit(X, **columns)
    with pytest.raises(ValueError, match=r"^labels: example 4 has none"):
        find_label_errors(X, column)
    probs = np.full((90, 3), 0.05) + 0.85 * np.eye(3)[y]
    with pytest.raises(ValueError, match=r"^pred_probs: each row must hold probabilities"):
        find_label_errors(labels=y, pred_probs=np.ma.masked_array(probs, probs > 0.5))


@pytest.mark.parametrize("kind", ["Int64", "int64[pyarrow]", "boolean"])
def test_labels_of_nullable_columns_keep_their_type_and_digits(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    content = blobs(train=90)
    names = np.array([2**60, 2**60 + 1, 2**60 + 2])[content["train_labels"]]
    values = names > 2**60 if kind == "boolean" else names
    model = UnflipClassifier("standard", epochs=2, random_state=0)
    model.fit(content["train"], pandas.Series(values, dtype=kind))
    assert model.classes_.tolist() == np.unique(values).tolist()
    assert model.predict(content["train"]).dtype == values.dtype


def test_names_that_differ_in_type_only_are_the_same_name() -> None:
    pandas = pytest.importorskip("pandas")
    content = blobs(train=90)
    frame = pandas.DataFrame(content["train"][:, :2], columns=[0, "0"]).assign(word="x")
    with pytest.raises(ValueError, match=r"^X: two columns are called '0'; rename one of them$"):
        UnflipClassifier("standard", epochs=1).fit(frame, content["train_labels"])


def test_data_sets_of_hugging_face_stand_for_frames_and_probabilities() -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    content = blobs(train=90)
    frame = pandas.DataFrame(content["train"].astype(np.float64), columns=list("abcdef"))
    model = UnflipClassifier("standard", epochs=1, random_state=0).fit(frame, content["train_labels"])
    data = datasets.Dataset.from_pandas(frame)
    np.testing.assert_array_equal(model.predict_proba(data), model.predict_proba(frame))
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(data.select_columns(list("fedcba")))
    y = content["train_labels"]
    probs = {str(c): 0.05 + 0.85 * (y == c) for c in (2, 0, 1)}
    assert not len(find_label_errors(labels=y, pred_probs=datasets.Dataset.from_dict(probs)).issues)


ROWS = blobs(train=60)["train"].astype(np.float64)
GIVEN = np.arange(60) % 3


def fixed(data: Any, labels: Any = None, **options: Any) -> Any:
    """Return data in memory after a run that suggests class 1 for the first example, whose label is 0."""
    column = options.get("label_column", "label")
    given = np.asarray(labels if labels is not None else data.iloc[:, [*data.columns].index(column)])
    table = pa.table({"index": [0], "given_label": given[:1], "suggested_label": given[1:2]})
    pair = data if labels is None else (data, labels)
    return save(table, pair, **options).apply(drop="label-issues" if labels is not None else None).data


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "float32", "bool", "Int8", "category"])
def test_a_corrected_frame_has_the_type_of_its_labels(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    given = pandas.Series(GIVEN % 2).astype(kind)
    frame = pandas.DataFrame(ROWS).rename(columns=str).assign(label=given).set_index(np.arange(60)[::-1] // 2)
    done = fixed(frame)
    assert done["label"].dtype == given.dtype
    assert done["label"].tolist() == [given[1], *given[1:]]
    assert done.index.equals(frame.index)


def test_a_corrected_frame_of_pandas_keeps_labels_of_any_type_and_gaps() -> None:
    pandas = pytest.importorskip("pandas")
    for given in (
        pandas.Series(GIVEN % 2 == 1).astype("boolean").mask(np.arange(60) == 3),
        pandas.Series(GIVEN % 2).astype("int64[pyarrow]").mask(np.arange(60) == 3),
        pandas.Series(pandas.arrays.SparseArray(GIVEN % 2)),
        pandas.Series(pandas.period_range("2024-01", periods=2, freq="M")[GIVEN % 2]),
        pandas.Series(pandas.cut(GIVEN % 2, 2)),
    ):
        done = corrected(pandas.DataFrame(ROWS).rename(columns=str).assign(label=given), given.isna())["label"]
        assert done.dtype == given.dtype
        assert done.isna().tolist() == given.isna().tolist()
        assert done.dropna().tolist() == [given[1], *given[1:].dropna()]
    lacking = pandas.DataFrame(ROWS).rename(columns=str).assign(label=pandas.Categorical(["a"] * 60))
    with pytest.raises(InputError, match=r"^data, row 0: 'b' is no category of 'label'; add it$"):
        memory.relabeled(memory.InMemory(lacking), changes(GIVEN % 2 == 1), ["a", "b"])


def test_a_corrected_table_of_arrow_or_polars_keeps_its_types_and_gaps() -> None:
    polars = pytest.importorskip("polars")
    names = [None if row == 3 else "ab"[label] for row, label in enumerate((GIVEN % 2).tolist())]
    numbers = [None if name is None else "ab".index(name) for name in names]
    columns = [pa.array(names), pa.array(names, pa.large_string()), pa.array(names).dictionary_encode()]
    columns += [pa.array(names).cast(pa.string_view()), pa.array(numbers), pa.array(numbers).cast(pa.bool_())]
    for given in columns:
        done = corrected(pa.table({"x": ROWS[:, 0], "label": given}), given.is_null().to_numpy(False))["label"]
        assert done.type == given.type
        assert done.to_pylist() == [given[1].as_py(), *given[1:].to_pylist()]
    for kind in (polars.String, polars.Enum(["b", "a"])):
        frame = polars.DataFrame({"x": ROWS[:, 0], "label": polars.Series(names, dtype=kind)})
        done = corrected(frame, frame["label"].is_null().to_numpy())["label"]
        assert done.dtype == frame["label"].dtype
        assert done.to_list() == ["b", *names[1:]]


def changes(missing: Any) -> NewLabels:
    """Return that the first example, whose label is 0, gets label 1."""
    own = np.where(missing, -1, GIVEN % 2)
    return NewLabels(own, np.where(np.arange(60) == 0, 1, own), np.ones(60, bool))


def corrected(data: Any, missing: Any) -> Any:
    return memory.relabeled(memory.InMemory(data), changes(missing), ["0", "1"])


@pytest.mark.parametrize("names", [[0, 1, 2], [("a", 1), ("a", 2), ("label", "")]])
def test_columns_of_pandas_need_not_be_called_by_strings(names: list[Any]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.column_stack([ROWS[:, :2], GIVEN]))
    frame.columns = pandas.MultiIndex.from_tuples(names) if isinstance(names[0], tuple) else names
    done = fixed(frame, label_column=names[2])
    assert done.columns.equals(frame.columns)
    assert done.iloc[:, 2].tolist() == [1, *GIVEN[1:]]


def test_examples_beside_their_labels_come_back_as_they_were() -> None:
    datasets = pytest.importorskip("datasets")
    table = pa.table({"a": ROWS[:, 0], "b": ROWS[:, 1]})
    batch, data, sparse = table.to_batches()[0], datasets.Dataset(table), coo_array(ROWS)
    shapes = [(given, fixed(given, GIVEN)) for given in (table, batch, data, sparse, ROWS.astype(object), ROWS > 0)]
    for given, (rows, labels) in shapes:
        assert rows.shape == (59, given.shape[1])
        assert labels.tolist() == GIVEN[1:].tolist()
        assert given is sparse or isinstance(rows, type(given))
    assert len(fixed(torch.tensor(ROWS, requires_grad=True), GIVEN)[0]) == 59


def test_what_would_be_silently_misplaced_is_refused() -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    frame, y = pandas.DataFrame(ROWS).rename(columns=str), pandas.Series(GIVEN)
    probs = pandas.DataFrame(np.eye(3)[GIVEN])
    order, labeled = "^labels: their index is in another order", frame.assign(label=GIVEN)
    run = save(pa.table({"given_label": GIVEN, "suggested_label": GIVEN}), labeled)
    parts = datasets.DatasetDict(train=datasets.Dataset.from_pandas(labeled))
    for call, message in (
        (lambda: find_label_errors(frame, y[::-1]), order),
        (lambda: find_label_errors(labels=y[::-1], pred_probs=probs), order),
        (lambda: find_label_errors(frame.assign(split="val"), y), "^data: column 'split' besides the labels"),
        (lambda: find_label_errors(frame, y, trusted=[True]), "inconsistent numbers of samples"),
        (lambda: find_label_errors(frame, [10**20 + i % 3 for i in range(60)]), "^labels: must be all numbers"),
        (lambda: clean(labeled, ignore="oops"), "^ignore: unknown column 'oops'"),
        (lambda: run.apply(keep_given_as="0"), "^keep_given_as: the data has a column '0'"),
        (lambda: run.labels_for(parts), r"^dataset: several splits; give one of them, such as dataset\['train'\]"),
        (lambda: clean(parts["train"].select([])), "no row to train on"),
    ):
        with pytest.raises((ValueError, InputError), match=message):
            call()


@pytest.mark.parametrize("call", [clean, train])
def test_data_that_is_refused_leaves_the_earlier_run_as_it_was(call: Any, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS).rename(columns=str).assign(label=GIVEN)
    table = pa.table({"given_label": GIVEN, "suggested_label": GIVEN})
    with pytest.raises(InputError, match=r"^data, column 'label': 1 class among 60 labels"):
        call(frame.assign(label=0), tmp_path / "new")
    assert not (tmp_path / "new" / "data").exists()
    run = save(table, frame, tmp_path / "run")
    before = (run.folder / "data" / "data.parquet").read_bytes()
    with pytest.raises(InputError, match="1 class among 60 labels"):
        call(frame.assign(label=0), run.folder, force=True)
    with pytest.raises(InputError, match="no column 'given_label'"):
        save(table.select([1]), frame[:9], run.folder, force=True)
    assert (run.folder / "data" / "data.parquet").read_bytes() == before
    assert not list(run.folder.glob(".unflip-partial-*"))


def test_a_column_of_numbers_without_a_name_is_a_feature(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS).rename(columns=str).rename(columns={"0": ""}).assign(label=GIVEN)
    run = train(frame, tmp_path / "run", method="standard", epochs=1, quiet=True, device="cpu")
    encoding = run.model.encoding
    assert encoding is not None
    assert {column["name"]: column["kind"] for column in encoding.settings["columns"]}[""] == "number"


def test_periods_are_dates() -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.period_range("2020", periods=60, freq="D")
    frame = pandas.DataFrame({"day": days[np.argsort(GIVEN, kind="stable").argsort()], "x": np.sin(np.arange(60))})
    as_dates = frame.assign(day=frame["day"].dt.to_timestamp())
    model = UnflipClassifier("standard", epochs=1, random_state=0).fit(frame, GIVEN)
    np.testing.assert_array_equal(model.predict_proba(frame), model.predict_proba(as_dates))


def test_labels_are_read_whatever_the_format_of_a_data_set() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"a": ROWS[:, 0], "b": ROWS[:, 1], "label": GIVEN})
    table = pa.table({"index": [0], "given_label": [0], "suggested_label": [1]})
    done = save(table, data.with_format("torch", columns=["a"])).apply(keep_given_as="was").data.with_format(None)
    assert [*done["label"]] == [1, *GIVEN[1:]]
    assert [*done["was"]] == GIVEN.tolist()


def test_parts_of_a_loop_refuse_what_does_not_fit() -> None:
    given, rows = torch.arange(6) % 3, torch.arange(6)
    probs = torch.eye(3)[given]
    for call, message in (
        (lambda: LabelCorrection(given, 3).record(rows, torch.randn(6, 5)), r"logits have shape \(6, 5\)"),
        (lambda: LabelCorrection(given, 3, reviewed=torch.full((6,), 7)), "^reviewed labels: row 0 holds class 7"),
        (lambda: LabelCorrection(given, 3, reviewed=given[:2]), "^reviewed labels: 2 labels for 6 examples"),
        (lambda: KnownWrongControls(given, probs - 1), "^probs hold negative numbers"),
        (lambda: KnownWrongControls(given, probs * torch.nan), "^probs hold negative numbers"),
        (lambda: agnostic_mean(probs[:, 0]), r"^features have shape \(6,\)"),
        (lambda: agnostic_mean(probs[:0]), r"^features have shape \(0, 3\)"),
        (lambda: agnostic_mean(probs * torch.nan), "NaN"),
    ):
        with pytest.raises(UnflipError, match=message):
            call()
    assert agnostic_mean(probs.numpy()).tolist() == agnostic_mean(probs).tolist()  # type: ignore[arg-type]
    noisy = [corrupt_labels(given, "pmd:I:0.3", posterior=part) for part in (probs, probs.numpy())]  # type: ignore[arg-type]
    assert torch.equal(*noisy)
