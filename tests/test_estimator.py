"""UnflipClassifier as scikit-learn wants it, and as people with wrong labels do."""

import doctest
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from helpers import blobs
from unflip import Result, UnflipClassifier, estimator, find_label_errors
from unflip.engine import run
from unflip.engine.run import prepare_data
from unflip.methods import methods

Check = Callable[[Any, Any], None]


def checked(candidate: UnflipClassifier) -> Callable[[Check], Check]:
    """scikit-learn's decorator, which has no types of its own."""
    decorate: Callable[[Check], Check] = parametrize_with_checks([candidate])
    return decorate


# the cheapest method here, the default one in the soak tests
@checked(UnflipClassifier("standard", epochs=4, hidden=(32,)))
def test_it_is_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.soak
@checked(UnflipClassifier())
def test_it_is_an_estimator_as_it_comes(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_examples_in_the_docstrings_are_true() -> None:
    outcome = doctest.testmod(estimator)
    assert outcome.attempted >= 10
    assert outcome.failed == 0


def test_the_examples_in_the_documentation_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text("utf-8")
    blocks = [block for block in re.findall("```python\n(.*?)```", page, re.DOTALL) if "random_state" in block]
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
    printed = capsys.readouterr().out
    assert re.search(r"^about \d.* 1 label issue;.*\nRun: .*\n.*\n0 +7 +2 +0$", printed, re.MULTILINE)


class Noisy:
    """Separable blobs, 300 examples, of which every sixth is called by the next class."""

    content = blobs(train=300)
    X, clean = content["train"], content["train_labels"]
    wrong = np.arange(300) % 6 == 0
    y = np.where(wrong, (clean + 1) % 3, clean)


@pytest.fixture(scope="module")
def model() -> UnflipClassifier:
    return UnflipClassifier(random_state=0).fit(Noisy.X, Noisy.y)


def test_it_corrects_labels_and_predicts_well_in_spite_of_them(model: UnflipClassifier) -> None:
    assert model.score(Noisy.content["test"], Noisy.content["test_labels"]) > 0.95
    assert (model.labels_ == Noisy.clean).mean() > 0.9  # 300 labels do not tell well how many of them are wrong
    assert (model.suggested_labels_ == Noisy.clean).mean() > 0.9
    assert model.label_quality_[Noisy.wrong].mean() < 0.6 < 0.8 < model.label_quality_[~Noisy.wrong].mean()
    assert model.noise_rate_ == pytest.approx(1 / 6, abs=0.09)
    low, high = model.noise_rate_interval_
    assert low < model.noise_rate_ < high
    assert model.n_features_in_ == 6
    np.testing.assert_array_equal(model.classes_, [0, 1, 2])


def test_the_transition_has_a_row_for_each_true_class(model: UnflipClassifier) -> None:
    np.testing.assert_allclose(model.transition_.sum(1), 1)
    expected = np.array([[(Noisy.y[Noisy.clean == i] == j).mean() for j in range(3)] for i in range(3)])
    np.testing.assert_allclose(model.transition_, expected, atol=0.11)


def test_probabilities_sum_to_one_and_their_largest_is_predicted(model: UnflipClassifier) -> None:
    probs = model.predict_proba(Noisy.X)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.predict(Noisy.X), probs.argmax(1))


def test_the_same_random_state_is_the_same_fit_and_another_is_not(model: UnflipClassifier) -> None:
    same, other = (UnflipClassifier(random_state=seed).fit(Noisy.X, Noisy.y) for seed in (0, 1))
    np.testing.assert_array_equal(same.predict_proba(Noisy.X), model.predict_proba(Noisy.X))
    np.testing.assert_array_equal(same.label_quality_, model.label_quality_)
    assert not np.array_equal(other.predict_proba(Noisy.X), model.predict_proba(Noisy.X))


def test_names_and_data_frames_give_names_back() -> None:
    pandas = pytest.importorskip("pandas")
    names = np.array(["ape", "bee", "cat"])
    frame = pandas.DataFrame(Noisy.X, columns=list("abcdef"))
    model = UnflipClassifier(random_state=0).fit(frame, pandas.Series(names[Noisy.y]))
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert set(model.predict(frame)) == set(model.labels_) == {"ape", "bee", "cat"}
    assert (model.labels_ == names[Noisy.clean]).mean() > 0.9
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("bacdef")])


def test_it_works_in_pipelines_searches_and_clones() -> None:
    pipeline = make_pipeline(StandardScaler(), UnflipClassifier("standard", random_state=0, epochs=3))
    search = GridSearchCV(pipeline, {"unflipclassifier__hidden": [(8,), (16,)]}, cv=2).fit(Noisy.X, Noisy.y)
    assert search.best_score_ > 0.6
    assert cross_val_score(clone(pipeline), Noisy.X, Noisy.y, cv=2).shape == (2,)
    given = UnflipClassifier("gce", settings={"gce.q": 0.5}, random_state=3)
    assert clone(given).get_params() == given.get_params()


def test_a_fitted_one_goes_through_pickle(model: UnflipClassifier) -> None:
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(Noisy.X), model.predict_proba(Noisy.X))


@pytest.mark.parametrize("method", [entry.name for entry in methods])
def test_every_method_fits(method: str) -> None:
    model = UnflipClassifier(method, random_state=0, epochs=6, settings={"data.jitter": 0.1}).fit(Noisy.X, Noisy.y)
    assert model.score(Noisy.content["test"], Noisy.content["test_labels"]) > 0.8
    assert model.labels_.shape == model.label_quality_.shape == Noisy.y.shape
    assert 0 <= model.noise_rate_ <= 1


def test_what_nobody_can_know_is_nan() -> None:
    model = UnflipClassifier("standard", val_fraction=0.0, epochs=2).fit(Noisy.X, Noisy.y)
    assert model.noise_rate_ == pytest.approx(np.mean(1 - model.label_quality_), rel=1e-5)
    assert np.isnan(model.transition_).all()


def test_trusted_labels_stay_however_wrong() -> None:
    free = UnflipClassifier(random_state=0).fit(Noisy.X, Noisy.y)
    bound = UnflipClassifier(random_state=0).fit(Noisy.X, Noisy.y, trusted=Noisy.wrong)
    assert (free.labels_ != Noisy.y)[Noisy.wrong].mean() > 0.4
    np.testing.assert_array_equal(bound.labels_[Noisy.wrong], Noisy.y[Noisy.wrong])
    assert (bound.label_quality_[Noisy.wrong] == 1).all()


def test_a_group_is_not_torn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def spy(*args: Any, **options: Any) -> Any:
        dataset = prepare_data(*args, **options)
        seen.append(dataset.is_val)
        return dataset

    monkeypatch.setattr(run, "prepare_data", spy)
    groups = np.array([f"person {i // 5}" for i in range(300)])
    UnflipClassifier("plc", epochs=1, random_state=0).fit(Noisy.X, Noisy.y, groups)
    sides = seen[0].view(60, 5)
    assert torch.equal(sides.any(1), sides.all(1))
    assert 20 <= int(seen[0].sum()) <= 31


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"method": "unflap"}, "unknown method 'unflap', did you mean 'unflip'"),
        ({"epochs": 0}, "epochs = 0: must be greater than 0"),
        ({"batch_size": 1}, r"optimizer\.batch_size = 1: must be greater than or equal to 2"),
        ({"hidden": ()}, r"mlp\.hidden"),
        ({"val_fraction": 1.0}, r"data\.val_fraction = 1\.0"),
        ({"settings": ["unflip.members=4"]}, "settings: a list; expected a dictionary"),
        ({"settings": {"plc.warmup": 3}}, "section 'plc' is not used; method 'unflip'"),
        ({"settings": {"select": "best-test"}}, "select = 'best-test' needs a test set"),
        ({"settings": {"select": "noisy-val"}, "val_fraction": 0.0}, "needs validation examples"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"epochs": "ten"}, "epochs = 'ten': must be a whole number"),
        ({"batch_size": "x"}, "batch_size = 'x': must be a whole number"),
        ({"hidden": 6.4}, r"mlp\.hidden = 6\.4: must be a valid tuple"),
    ],
)
def test_a_wrong_parameter_is_a_value_error_that_says_what_is_allowed(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        UnflipClassifier(**parameters).fit(Noisy.X, Noisy.y)


def test_groups_and_trusted_have_one_entry_an_example() -> None:
    for name in ("groups", "trusted"):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            UnflipClassifier().fit(Noisy.X, Noisy.y, **{name: [0, 1]})


def test_every_example_has_a_group_if_any_has() -> None:
    names = np.array([str(i % 40) for i in range(len(Noisy.y))], object)
    names[7] = None
    with pytest.raises(ValueError, match="groups: example 7 has none; every example needs one"):
        UnflipClassifier().fit(Noisy.X, Noisy.y, groups=names)
    names[7] = 7
    with pytest.raises(ValueError, match="groups: must be all numbers or all names"):
        UnflipClassifier().fit(Noisy.X, Noisy.y, groups=names)


def test_trusted_that_is_no_mask_is_refused_rather_than_taken_for_all() -> None:
    for column in (np.full(300, "no"), np.arange(300)):
        with pytest.raises(ValueError, match="trusted: must be a mask"):
            UnflipClassifier().fit(Noisy.X, Noisy.y, trusted=column)


def test_nothing_is_written_said_or_drawn_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 - the generator that other people's code draws from
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].tolist()  # noqa: NPY002
    UnflipClassifier(epochs=3, random_state=0).fit(Noisy.X, Noisy.y).predict(Noisy.X)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before[1]  # noqa: NPY002
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_the_table_of_label_errors_is_sorted_and_tells_errors_from_the_rest() -> None:
    table = pa.table(find_label_errors(Noisy.X, np.array(["a", "b", "c"])[Noisy.y], random_state=0).ranked)
    rows = table.to_pylist()
    assert sorted(row["index"] for row in rows) == list(range(300))
    assert [row["label_quality"] for row in rows] == sorted(row["label_quality"] for row in rows)
    first = rows[: int(Noisy.wrong.sum())]
    assert np.mean([Noisy.wrong[row["index"]] for row in first]) > 0.95
    for row in rows:
        assert row["given_label"] == "abc"[Noisy.y[row["index"]]]
        assert not row["is_label_issue"] or row["suggested_label"] != row["given_label"]
    found = {row["index"] for row in rows if row["is_label_issue"]}
    assert len(found & set(Noisy.wrong.nonzero()[0].tolist())) / len(found) > 0.9


def test_label_errors_are_those_of_the_estimator_in_a_run_that_can_be_reviewed_and_applied(tmp_path: Path) -> None:
    names = np.array([2, 5, 9])[Noisy.y]
    trusted, groups = Noisy.wrong & (np.arange(300) < 40), np.arange(300) // 2
    found = find_label_errors(Noisy.X, names, random_state=0, trusted=trusted, groups=groups, out=tmp_path / "run")
    model = UnflipClassifier(random_state=0).fit(Noisy.X, names, groups=groups, trusted=trusted)
    assert isinstance(found, Result)
    np.testing.assert_array_equal(found.labels()["label_quality"].to_numpy(), model.label_quality_)
    ranked = pa.table(found.ranked).sort_by("index")
    assert ranked["given_label"].to_pylist() == names.tolist()
    assert ranked["suggested_label"].to_pylist() == model.suggested_labels_.tolist()
    assert ranked["is_label_issue"].to_pylist() == model.label_issues_.tolist()
    assert sorted(pa.table(found.issues)["index"].to_pylist()) == model.label_issues_.nonzero()[0].tolist()
    assert not found.report_path.exists()
    assert found.report().exists()
    rows, labels = found.apply(min_confidence=0.5).data
    np.testing.assert_array_equal(rows, Noisy.X)
    right = labels == np.array([2, 5, 9])[Noisy.clean]
    assert right[~trusted].mean() > 0.9
    assert not right[trusted].any()
    with pytest.raises(ValueError, match="already contains a run"):
        find_label_errors(Noisy.X, names, out=tmp_path / "run")


def test_frames_of_polars_come_back_as_frames_of_polars() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install 'unflip[dev]'")
    names = np.array(["a", "b", "c"])[Noisy.y]
    frame = polars.DataFrame(Noisy.X.astype(float), schema=list("uvwxyz")).with_columns(label=polars.Series(names))
    features = frame.drop("label")
    found = find_label_errors(features, frame["label"], random_state=0, method="standard", epochs=2)
    assert isinstance(found, Result)
    (rows, labels), corrected = found.apply(min_confidence=0.5).data, found.labels_for(frame, min_confidence=0.5)
    assert type(found.issues) is type(found.ranked) is type(rows) is polars.DataFrame
    assert labels.tolist() == corrected.tolist() != names.tolist()
    model = UnflipClassifier("standard", epochs=2, random_state=0).fit(features, frame["label"])
    assert len(model.predict(features.head(5))) == 5
    with pytest.raises(ValueError, match="LazyFrame"):
        find_label_errors(features.lazy(), names)


def test_of_a_class_smaller_than_the_committee_nothing_is_said() -> None:
    labels = Noisy.y.copy()
    labels[[3, 30]] = 3
    model = UnflipClassifier(random_state=0, epochs=3).fit(Noisy.X, labels)
    assert np.isnan(model.label_quality_).nonzero()[0].tolist() == [3, 30]
    table = pa.table(find_label_errors(Noisy.X, labels, random_state=0, epochs=3).ranked)
    assert table["index"].to_pylist()[-2:] == [3, 30]
    assert table["label_quality"].to_pylist()[-2:] == [None, None]
    assert table["label_quality"].null_count == 2


def test_clean_labels_are_left_alone() -> None:
    X, y = load_iris(return_X_y=True)
    assert len(find_label_errors(X, y, random_state=0).issues) < 0.06 * len(y)


def test_a_class_with_one_example_and_many_classes_do_not_stop_it() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 4))
    y = np.concatenate([np.arange(150), random.integers(0, 150, 250)])
    model = UnflipClassifier(epochs=2, random_state=0).fit(X, y)
    assert model.predict_proba(X).shape == (400, 150)
    assert len(find_label_errors(X[:20], [0] * 19 + [1], epochs=2, random_state=0).ranked) == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: np.where(x == x[3, 0], np.inf, x), "^Input X contains infinity"),
        (lambda x: x + 1j, "^Complex data not supported"),
        (lambda x: x[:, 0], "^Expected 2D array, got 1D array instead"),
    ],
)
def test_features_that_cannot_be_used_are_refused_as_scikit_learn_does(change: Any, message: str) -> None:
    content = blobs()
    model = UnflipClassifier(epochs=1, random_state=0).fit(content["train"], content["train_labels"])
    with pytest.raises(ValueError, match=message):
        model.predict(change(content["train"]))
    with pytest.raises(ValueError, match=message):
        UnflipClassifier(epochs=1).fit(change(content["train"]), content["train_labels"])


@pytest.mark.parametrize("kinds", [(1, "a"), ("a", 1), (True, "b")])
def test_labels_of_several_types_are_refused(kinds: tuple[Any, Any]) -> None:
    labels = np.array(kinds * 75, dtype=object)
    with pytest.raises(ValueError, match=r"^y: must be all numbers or all names"):
        UnflipClassifier(epochs=1).fit(blobs()["train"], labels)


def _mixed_frame(count: int = 60) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(
        {
            "note": [f"a {'good' if i % 2 else 'bad'} thing of number {i}" for i in range(count)],
            "plan": pandas.Categorical([("free", "pro", None)[i % 3] for i in range(count)]),
            "age": pandas.array([i % 7 if i % 5 else None for i in range(count)], "Int64"),
            7: pandas.date_range("2024", periods=count, tz="Europe/Berlin"),
        }
    )


_NAMES = np.array(["bad", "good"] * 30)


def _quick() -> UnflipClassifier:
    return UnflipClassifier("standard", epochs=2, hidden=(8,), random_state=0, settings={"data.text_encoder": "tfidf"})


def test_data_frames_with_texts_categories_dates_and_gaps() -> None:
    frame = _mixed_frame()
    model = _quick().fit(frame, _NAMES)
    assert model.feature_names_in_.tolist() == ["note", "plan", "age", "7"]
    expected = model.predict_proba(frame)
    np.testing.assert_array_equal(model.predict_proba(frame[frame.columns[::-1]].assign(more=1)), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(frame), expected)
    assert len(cross_val_score(clone(model), frame, _NAMES, cv=2, error_score="raise")) == 2
    assert len(make_pipeline("passthrough", _quick()).fit(frame, _NAMES).predict(frame[:3])) == 3
    for wrong, message in (
        (frame[["note"]], "X: no column 'plan'; it has note"),
        (frame.assign(age="old"), "X: column 'age', row 0: 'old' is not a number"),
        (np.zeros((2, 4)), "X: the model was trained on a data frame or on texts; give the same kind"),
        (list(frame["note"]), "X: no column 'note'; it has text"),
        (frame.set_axis(["note", "note", "plan", "age"], axis=1), "X: two columns are called 'note'"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            model.predict(wrong)


def test_texts_with_gaps_in_any_sequence() -> None:
    texts = list(_mixed_frame()["note"])
    texts[3], texts[4] = None, "\ud800 half a character"
    model = _quick().fit(texts, _NAMES)
    expected = model.predict_proba(texts)
    np.testing.assert_array_equal(model.predict_proba(np.array(texts, object)), expected)
    np.testing.assert_array_equal(model.predict_proba(tuple(texts)), expected)
    assert len(model.predict(np.array(["one", "two words"]))) == 2
    with pytest.raises(ValueError, match="Convert your data to numeric values"):
        _quick().fit(np.array(texts[5:], str)[:, None], _NAMES[5:])


@pytest.mark.parametrize("of_texts", [True, False])
def test_label_errors_of_data_frames_and_texts(of_texts: bool) -> None:
    frame = _mixed_frame()
    found = find_label_errors(list(frame["note"]) if of_texts else frame, _NAMES, method="standard", epochs=1)
    assert sorted(pa.table(found.ranked)["index"].to_pylist()) == list(range(60))


def test_columns_that_cannot_be_read_are_named() -> None:
    pandas = pytest.importorskip("pandas")
    for cells in ([1, "a"] * 30, [object()] * 60):
        frame = pandas.DataFrame({"odd": pandas.Series(cells, dtype=object), "x": range(60)})
        with pytest.raises(ValueError, match=r"^X: cannot be read; make each column all numbers or all text \(.*odd"):
            _quick().fit(frame, _NAMES)
    sparse = pandas.DataFrame({"x": pandas.arrays.SparseArray(np.arange(60) % 7 * 1.5)})
    assert len(_quick().fit(sparse, _NAMES).predict(sparse)) == 60
    with pytest.raises(ValueError, match=r"^y: example 59 has none; every example needs one$"):
        _quick().fit(sparse, pandas.Series([*_NAMES[:-1], None], dtype="string"))
