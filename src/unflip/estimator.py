"""UnflipClassifier and find_label_errors: a scikit-learn interface for arrays, data frames and texts."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from unflip.api.options import choose_size
from unflip.api.result import Result, Scores
from unflip.data.arrays import Array, write_array
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Inputs, Split
from unflip.data.labels import missing_labels
from unflip.data.memory import (
    InMemory,
    as_table,
    check_order,
    column_titles,
    complete_column,
    dense_rows,
    has_gaps,
    hugging_face_table,
    own_annotations,
    plain_column,
    unmasked,
)
from unflip.data.sources import ArraySource, check_finite
from unflip.encoders.base import restore
from unflip.encoders.table import columns_of
from unflip.engine.distributed import Distributed
from unflip.engine.inference import predict_probs
from unflip.engine.run import train_in_memory, train_run
from unflip.errors import ConfigError, UnflipError, UnflipWarning, one_line
from unflip.methods.unflip.posterior import score_labels
from unflip.runs import layout
from unflip.runs.config import Layers, RunConfig, Tree, nest
from unflip.runs.folder import Claim, as_run
from unflip.runs.labels import label_issue_mask, summarize_labels, write_table
from unflip.runs.options import Execution

_ROWS: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}  # integers are not rounded to floats
_LISTED = 10  # columns that an error lists
_NOT_TRUSTED = "trusted: not for annotations; pass the labels that are right as y, one of each example"
_SUM_TOLERANCE = 1e-3  # by which a row of probabilities may miss 1


class UnflipClassifier(ClassifierMixin, BaseEstimator):
    """A neural network classifier for noisy labels, which also corrects them.

    Parameters:
        method: the training method; see ``unflip list methods``.
        hidden: number of units in each hidden layer, or in the only one; by default one layer of 64 units, 128 with
            2,000 examples or more, and 256 with 10,000 or more (for methods other than ``unflip``, with 2,000 or more).
        epochs: passes over the data; by default 10 for ``unflip``; for other methods, enough for about 200 steps, but
            at least 15.
        batch_size: number of examples per step; by default a share of all examples, between 16 and 320.
        learning_rate: learning rate of stochastic gradient descent with momentum; by default 0.15 for ``unflip``; for
            other methods 0.03, or 0.01 with 2,000 examples or more.
        val_fraction: fraction of the examples held out for validation, stratified by label; by default 0 for
            ``unflip``, which scores labels out-of-sample by cross-fitting, and 0.1 for other methods. After training,
            the labels of these examples are scored and corrected like all others.
        settings: any other settings by dotted key, as for ``--set``, such as ``{"unflip.members": 4}``.
        unlabeled: value in y that means no label, such as -1. The methods ``unflip`` and ``dividemix`` also train on
            examples without a label, with their own predictions as targets.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``mps``.
        random_state: random seed; with an integer, the fit is reproducible.

    Attributes:
        classes_: the distinct labels, sorted.
        labels_: (n,) labels of the training examples after correction; examples without a label get the suggested one.
        label_quality_: (n,) probability that each *given* label is right; NaN if unknown.
        label_log_odds_: (n,) log-odds of this probability, for sorting; also NaN for trusted labels.
        suggested_labels_: (n,) the corrected label. If a label was not corrected, ``unflip`` suggests the given label,
            and other methods suggest the most likely class.
        label_issues_: (n,) whether the given label is a label issue, that is, whether another label is suggested.
        noise_rate_: estimated fraction of wrong labels among all labels that are scored and not trusted; NaN if there
            are none.
        noise_rate_interval_: interval for this fraction. The true fraction may be higher if the noise depends on
            the features and wrong labels look like ambiguous examples.
        transition_: (k, k) estimated P(given label j | true class i) in row i, column j; each row sums to one.
        annotators_: table of the annotators, as in the ``annotators.csv`` of a run; None if there is one label per
            example.
        n_features_in_: number of columns of X.
        encoding_: how a data frame or texts become features; None if X is an array without missing values.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> given = y.copy()
        >>> given[::10] = (given[::10] + 1) % 3
        >>> model = UnflipClassifier(random_state=0).fit(X, given)
        >>> model.predict(X[:2])
        array([0, 0])
        >>> bool((model.labels_ == y).mean() > (given == y).mean())
        True
    """

    def __init__(
        self,
        method: str = "unflip",
        *,
        hidden: tuple[int, ...] | int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        val_fraction: float | None = None,
        settings: Mapping[str, Any] | None = None,
        unlabeled: Any = None,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.val_fraction = val_fraction
        self.settings = settings
        self.unlabeled = unlabeled
        self.device = device
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,  # noqa: N803 - scikit-learn's name
        y: ArrayLike,
        groups: ArrayLike | None = None,
        trusted: ArrayLike | None = None,
    ) -> Self:
        """Fit the model to the examples X and their labels y (n,), which are numbers or names.

        If several people labeled the examples, y holds their annotations (n, annotators), an array or a data frame in
        which NaN or None means no label.

        X is an array of numbers (n, columns), which may be sparse or contain NaN; a data frame, Arrow table or Hugging
        Face data set, whose columns may also hold categories, dates and texts; or a list of texts. ``groups`` (n,)
        holds the group of each example, such as a set of near-duplicates. A group is never split between folds, or
        between training and validation. ``trusted`` (n,) is a mask of labels that are known to be right. They are never
        changed.
        """
        X = unmasked(X)
        cells = as_table(X)
        for name, column in (("y", y), ("groups", groups), ("trusted", trusted)):
            if isinstance(column, np.ma.MaskedArray):
                complete_column(column, name)
        values: Array = np.asarray(y)
        annotations = _annotation_codes(values) if values.ndim == 2 and values.shape[1] > 1 else None
        people = tuple(map(str, getattr(y, "columns", range(values.shape[-1])))) if annotations else ()
        if annotations is not None:
            y = np.zeros(len(values))  # stands for them where X is checked
        elif values.dtype.kind in "OT":
            y = complete_column(y, "y")
        elif values.dtype.kind in "biu":  # scikit-learn would make floats of the nullable integers of pandas
            y = values
        if cells is None:
            features, labels = validate_data(self, X, y, **_ROWS)
            features = dense_rows(features)
            inputs: Inputs = _with_names(features) if has_gaps(features) else features
        else:
            check_consistent_length(X, y)
            inputs, labels = cells, column_or_1d(y, warn=True)
            assert_all_finite(labels, input_name="y")
            self._remember_columns(X, cells)
        check_classification_targets(labels)
        if annotations is None:
            self.classes_, codes = _label_codes(labels, self.unlabeled)
            split = Split(inputs, codes)
        else:
            self.classes_, table = annotations
            codes, split = np.full(len(labels), -1), Split(inputs, None, annotations=table)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds 1 class in n_samples = {len(labels)}; at least 2 classes are needed")
        group_column = None if groups is None else complete_column(groups, "groups")
        if trusted is not None and annotations is not None:
            raise ValueError(_NOT_TRUSTED)
        mask = np.zeros(len(labels), bool) if trusted is None else _mask(trusted)
        check_consistent_length(labels, group_column, mask)
        try:
            data = {"path": "X, y"} | ({"unlabeled": "-1"} if annotations is None and (codes < 0).any() else {})
            count = int((codes >= 0).sum()) if annotations is None else len(labels)
            config = self._configure(count, data)
            raw = Dataset(replace(split, groups=group_column), name="X, y", annotators=people)
            if annotations is not None:
                raw = replace(raw, class_names=tuple(map(str, self.classes_.tolist())))
            reviewed = torch.from_numpy(np.where(mask, codes, -1)) if mask.any() else None
            done = train_in_memory(config, raw, Distributed(self.device, config.common.precision), reviewed)
        except UnflipError as error:
            raise ValueError(str(error)) from error
        self.model_ = done.model.build()
        self.standardization_, self.encoding_ = done.model.standardization, done.model.encoding
        _warn_of_dropped_columns(self.encoding_)
        self.label_issues_ = label_issue_mask(done.labels)
        current, suggested = (done.labels[f"{name}_label"].to_numpy() for name in ("current", "suggested"))
        self.labels_ = self.classes_[np.where(current < 0, suggested, current)]
        self.suggested_labels_ = self.classes_[suggested]
        self.label_quality_ = done.labels["label_quality"].to_numpy()
        self.label_log_odds_ = done.labels["log_odds"].to_numpy()
        unknown = np.full((len(self.classes_), len(self.classes_)), np.nan)
        summary = done.summary
        self.noise_rate_ = np.nan if summary.noise_rate is None else summary.noise_rate
        self.noise_rate_interval_ = (summary.low / max(1, summary.scored), summary.high / max(1, summary.scored))
        self.annotators_ = None if done.annotators is None else done.annotators.annotators
        self.transition_ = unknown if done.transition is None else done.transition.numpy()
        return self

    def _configure(self, count: int, data: Tree) -> RunConfig:
        """Combine the defaults for ``count`` examples, the parameters and the settings; later ones win."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        size = choose_size(self.method, count, self.batch_size)
        epochs = size.epochs if self.epochs is None else self.epochs
        hidden = size.hidden if self.hidden is None else self.hidden
        hidden = (int(hidden),) if isinstance(hidden, int | np.integer) else hidden
        lr = size.lr if self.learning_rate is None else self.learning_rate
        defaults: Tree = {
            "method": self.method,
            "network": "mlp",
            "epochs": epochs,
            "seed": seed,
            "select": "last",
            "data": data | ({} if self.val_fraction is None else {"val_fraction": self.val_fraction}),
            "mlp": {"hidden": hidden},
            "optimizer": {"batch_size": size.batch_size, "lr": lr},
        }
        settings: Any = self.settings or {}
        if not isinstance(settings, Mapping):
            kind = type(settings).__name__
            raise ConfigError(f'settings: a {kind}; expected a dictionary, such as {{"unflip.members": 4}}')
        typed = [nest(key, value) for key, value in settings.items()]
        return Layers([defaults], typed, {}).resolve()

    def predict_proba(self, X: ArrayLike) -> Array:  # noqa: N803 - scikit-learn's name
        """Return the class probabilities (n, k); columns follow ``classes_``."""
        check_is_fitted(self)
        features = self._features(X)
        try:
            check_finite(features, "X")  # also in single precision
            processes = Distributed(self.device)
        except UnflipError as error:
            raise ValueError(str(error)) from error
        source = ArraySource(features, self.standardization_).to(processes.device)
        return predict_probs(self.model_.to(processes.device), source, processes).cpu().numpy()

    def _features(self, X: Any) -> Array:  # noqa: N803 - scikit-learn's name
        """Return examples as the network takes them, encoded as in training."""
        X = unmasked(X)
        if self.encoding_ is None:
            X = hugging_face_table(X) if hasattr(X, "with_format") else X
            features = dense_rows(validate_data(self, X, reset=False, **_ROWS))
            if has_gaps(features):
                row = int(np.isnan(features).any(1).argmax())
                raise ValueError(f"X, row {row}: NaN, but the model was trained without gaps; fill it")
            return features
        cells = as_table(X, always=True)
        if cells is None and columns_of(self.encoding_)[0] in column_titles(self.n_features_in_):
            cells = _with_names(dense_rows(validate_data(self, X, reset=False, **_ROWS)))
        if cells is None:
            raise ValueError("X: the model was trained on a data frame or on texts; give the same kind")
        try:
            return restore(self.encoding_).encode(cells).features
        except UnflipError as error:
            raise ValueError(f"X: {error}") from error

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that X may be sparse, and have gaps."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags

    def _remember_columns(self, X: Any, cells: Table) -> None:  # noqa: N803 - scikit-learn's name
        """Set what scikit-learn knows of X's columns, which its own checks would have set."""
        self.n_features_in_ = cells.shape[1]
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.array(cells.table.column_names, object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def predict(self, X: ArrayLike) -> Array:  # noqa: N803 - scikit-learn's name
        """Return the most probable class of each example (n,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]  # type: ignore[no-any-return]


def _label_codes(labels: Array, unlabeled: Any) -> tuple[Array, Array]:
    """Return the classes, and the class number of each label (n,), -1 where it is ``unlabeled``."""
    missing = np.zeros(len(labels), bool) if unlabeled is None else labels == unlabeled
    classes: Array = np.unique(labels[~missing])
    return classes, np.where(missing, -1, np.searchsorted(classes, labels).clip(max=len(classes) - 1))


def _annotation_codes(values: Array) -> tuple[Array, Array]:
    """Return the classes, and class numbers (n, annotators), -1 for gaps."""
    given = values.ravel()
    if values.dtype.kind not in "iuf" or np.isnan(given).all():
        given = plain_column(given, "y")
    missing = missing_labels(given)
    classes, codes = np.unique(given[~missing], return_inverse=True)
    table = np.full(values.shape, -1, np.int32)
    table[~missing.reshape(values.shape)] = codes
    whole = classes.dtype.kind == "f" and (classes == np.floor(classes)).all()
    return classes.astype(np.int64) if whole else classes, table  # gaps have made floats of integers


def _mask(trusted: ArrayLike) -> Array:
    """Return the mask (n,) of labels that are known to be correct."""
    mask: Array = column_or_1d(complete_column(trusted, "trusted"))
    if not np.isin(mask, (False, True)).all():
        raise ValueError("trusted: must be a mask, true where the label is known to be correct")
    return mask.astype(bool)


def _warn_of_dropped_columns(encoding: Encoding | None) -> None:
    columns = [] if encoding is None else encoding.settings["columns"]
    dropped = [f"{column['name']} ({column['why']})" for column in columns if column["kind"] == "dropped"]
    if dropped:
        numbered = any("looks like an i" in column["why"] for column in columns)
        use = "; to use a column of numbers: settings={'data.numeric': [NAME]}" if numbered else ""
        warnings.warn(f"X: columns that are not used: {', '.join(dropped)}{use}", UnflipWarning, stacklevel=3)


def _with_names(features: Array) -> Table:
    """Return an array (n, columns) with gaps as cells to be encoded."""
    return Table.of_array(features, column_titles(features.shape[1]), "X")


@overload
def find_label_errors(
    features: Any,
    labels: ArrayLike | None = None,
    *,
    annotations: Any = None,
    out: str | Path | None = None,
    groups: ArrayLike | None = None,
    trusted: ArrayLike | None = None,
    **parameters: Any,
) -> Result: ...


@overload
def find_label_errors(*, labels: ArrayLike, pred_probs: ArrayLike) -> Scores: ...


def find_label_errors(
    features: Any = None,
    labels: ArrayLike | None = None,
    *,
    annotations: Any = None,
    pred_probs: ArrayLike | None = None,
    out: str | Path | None = None,
    groups: ArrayLike | None = None,
    trusted: ArrayLike | None = None,
    **parameters: Any,
) -> Result | Scores:
    """Find label issues in the same way as `unflip.clean`, but run no other checks and write no report.

    The result's ``.ranked`` has one row per label, lowest quality first, with the columns ``index`` (row in
    ``features``), ``given_label``, ``suggested_label``, ``label_quality`` (probability that the given label is right,
    null if unknown), ``is_label_issue`` (whether another label is suggested) and ``wrong_so_far`` (expected number of
    wrong labels up to and including this row). ``.issues`` has only the label issues.

    ``features`` can be anything that ``UnflipClassifier.fit`` takes as X. Instead of features, you can pass
    ``pred_probs`` (n, k), the class probabilities that your own model predicts for examples it was *not* trained on,
    as ``cross_val_predict`` returns them. The columns are in the order of the sorted classes, or, in a data frame, have
    the names of the classes. unflip then trains nothing, and the result has no ``.review()``, ``.apply()`` or
    ``.report()``, because there is no run.

    Instead of ``labels``, you can pass ``annotations``, the labels of several people: an array (n, annotators) with
    missing values, or a data frame with the columns ``index``, ``annotator`` and ``label``. The given label is then
    the majority vote.

    ``out`` is the run folder, by default a new temporary folder, which is not deleted. ``groups`` and ``trusted`` (n,)
    are passed to ``UnflipClassifier.fit``, and all other ``parameters`` to ``UnflipClassifier``.

        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> y[7] = 2
        >>> found = find_label_errors(X, y, random_state=0)
        >>> found.ranked.columns.tolist()
        ['index', 'given_label', 'suggested_label', 'label_quality', 'is_label_issue', 'wrong_so_far']
        >>> [found.ranked[name][0].item() for name in ("index", "given_label", "suggested_label", "is_label_issue")]
        [7, 2, 0, True]
    """
    if (labels is None) == (annotations is None):
        raise ValueError("give either labels, one of each example, or annotations, those of several people")
    if (features is None) == (pred_probs is None):
        raise ValueError("give either features or pred_probs, the class probabilities of your own model")
    if pred_probs is not None:
        options = {"annotations": annotations, "out": out, "groups": groups, "trusted": trusted} | parameters
        if unused := next((name for name, value in options.items() if value is not None), None):
            raise ValueError(f"{unused}: nothing is trained where pred_probs are given; leave it out")
        given = plain_column(labels, "labels")
        if (missing := missing_labels(given)).any():
            raise ValueError(f"labels: example {missing.argmax()} has none; every example needs one")
        check_order(pred_probs, labels)
        return _score_own(pred_probs, given)
    if trusted is not None and annotations is not None:
        raise ValueError(_NOT_TRUSTED)
    if labels is None:
        given = np.zeros(features.shape[0] if hasattr(features, "shape") else len(features))
    else:
        given = plain_column(labels, "labels")
    check_consistent_length(given, groups, trusted)
    memory, run = InMemory(features, labels, annotations=annotations), as_run(out)
    model, data = UnflipClassifier(**parameters), Tree(path="X, y")
    try:
        with Claim(run) as claim, claim.located(memory) as path:
            data["path"], folder = str(path), run.folder / layout.DATA
            if annotations is not None:
                data["annotations"] = own_annotations(annotations, folder)
            if groups is not None:
                data["groups"] = str(folder / "groups.npy")
                write_array(Path(data["groups"]), np.unique(complete_column(groups, "groups"), return_inverse=True)[1])
            if trusted is not None and len(rows := _mask(trusted).nonzero()[0]):
                data["reviewed"] = str(folder / "trusted.parquet")
                write_table(Path(data["reviewed"]), pa.table({"index": rows, "label": given[rows]}))
            train_run(claim, model._configure(len(given), data), Execution(device=model.device))
    except UnflipError as error:
        place = Path(data["path"])
        raise ValueError(str(error).replace(str(place), place.name).replace(place.name, "X, y")) from error
    _warn_of_dropped_columns(run.model.encoding)
    return Result(run.folder, memory)


def _score_own(pred_probs: Any, given: Array) -> Scores:
    """Score labels (n,) by predicted probabilities (n, k)."""
    memory, count = InMemory(pred_probs, given), len(given)
    pred_probs = unmasked(hugging_face_table(pred_probs) if hasattr(pred_probs, "with_format") else pred_probs)
    try:
        probs = np.asarray(pred_probs).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"pred_probs: must be numbers, one column per class ({one_line(str(error))})") from error
    if probs.ndim != 2 or len(probs) != count:
        raise ValueError(f"pred_probs: shape {probs.shape} for {count} labels; one row for each, one column per class")
    classes = _classes_of_columns(pred_probs, probs.shape[1], given)
    if len(classes) != probs.shape[1]:
        raise ValueError(f"pred_probs: {probs.shape[1]} columns for {len(classes)} classes among the labels")
    if len(classes) < 2:
        raise ValueError("labels: 1 class; at least 2 are needed")
    order = classes.argsort()
    codes = order[np.searchsorted(classes, given, sorter=order)]
    sums = probs.sum(1)
    if not np.isfinite(probs).all() or (probs < 0).any() or (np.abs(sums - 1) > _SUM_TOLERANCE).any():
        raise ValueError("pred_probs: each row must hold probabilities, from 0 to 1, that add up to 1")
    single = torch.from_numpy(np.require(probs, np.float32, ["C", "W"]))
    best, log_odds, errors = score_labels(single, torch.from_numpy(codes.astype(np.int64)))
    suggested = classes[best.numpy()]
    columns = {
        "index": np.arange(count),
        "id": pa.array(np.arange(count)).cast(pa.string()),
        "split": ["train"] * count,
        "given_label": given,
        "suggested_label": suggested,
        "label_quality": log_odds.sigmoid().float().numpy(),
        "is_label_issue": suggested != given,
        "log_odds": log_odds.numpy(),
        "reviewed": np.zeros(count, bool),
    }
    table = pa.table(columns)
    return Scores(table, summarize_labels(table, errors), memory)


def _classes_of_columns(pred_probs: Any, width: int, given: Array) -> Array:
    """Return the class of each column of probabilities: by the names of the columns, where these are classes."""
    classes: Array = np.unique(given)
    if classes.dtype.kind in "iu" and len(classes) < width and 0 <= classes[0] <= classes[-1] < width:
        classes = np.arange(width)  # some of which no label has
    columns = getattr(pred_probs, "column_names", getattr(pred_probs, "columns", None))
    if columns is None:
        return classes
    names, known = [str(name) for name in columns], {_called(value): value for value in np.unique(given).tolist()}
    if all(name.startswith("p_") for name in names):  # as `unflip predict` writes them
        names = [name.removeprefix("p_") for name in names]
    if not known.keys() & set(names) or names == [str(place) for place in range(width)]:
        return classes
    if missing := [name for name in known if name not in names]:
        raise ValueError(f"pred_probs: no column for the label {missing[0]}; columns are {', '.join(names[:_LISTED])}")
    if given.dtype.kind in "OU":
        return np.array(names, object if given.dtype.kind == "O" else np.str_)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"pred_probs: the column {unknown[0]} is none of the labels; remove it")
    return np.array([known[name] for name in names])


def _called(label: Any) -> str:
    """Return the name of a label: 2 and 2.0 are the same."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
