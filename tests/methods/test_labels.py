"""The label store against a plain model of lists, and the files it writes."""

import csv
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers import assert_same_tree
from unflip.engine.checkpoints import load_tree, save_tree
from unflip.engine.trainer import changed_fraction
from unflip.methods.base import LabelStore
from unflip.runs.folder import Run
from unflip.runs.labels import (
    Assessment,
    LabelSummary,
    doubtful_mask,
    error_pairs,
    errors_by_class,
    expect_errors,
    in_turns,
    label_issue_mask,
    label_table,
    list_label_issues,
    lowest_quality_first,
    summarize_labels,
)

CLASSES = 4
LABELS = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=12)


@dataclass
class Model:
    """What a label store is, written with lists."""

    given: list[int]
    current: list[int] = field(default_factory=list)
    changes: list[tuple[int, int, int, int, float]] = field(default_factory=list)

    def change(self, epoch: int, indices: list[int], labels: list[int], confidence: list[float]) -> int:
        before = len(self.changes)
        for index, label, sure in zip(indices, labels, confidence, strict=True):
            if self.current[index] != label:
                self.changes.append((epoch, index, self.current[index], label, sure))
                self.current[index] = label
        return len(self.changes) - before


def rows(history: dict[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    return list(zip(*(history[name].tolist() for name in history), strict=True))


class StoreAgainstModel(RuleBasedStateMachine):
    """Any order of changes, of saving and of meddling leaves the store equal to the model."""

    @initialize(given=LABELS)
    def start(self, given: list[int]) -> None:
        self.epoch = 1
        self.model = Model(list(given), list(given))
        self.source = torch.tensor(given)
        self.store = LabelStore(self.source, CLASSES)

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        count = len(self.model.given)
        indices = data.draw(st.lists(st.integers(0, count - 1), unique=True))
        labels = data.draw(st.lists(st.integers(0, CLASSES - 1), min_size=len(indices), max_size=len(indices)))
        sure = data.draw(st.lists(st.floats(0, 1, width=32), min_size=len(indices), max_size=len(indices)))
        expected = self.model.change(self.epoch, indices, labels, sure)
        changed = self.store.change(
            self.epoch, torch.tensor(indices, dtype=torch.long), torch.tensor(labels).long(), torch.tensor(sure)
        )
        assert changed == expected

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def meddle_with_what_was_handed_in_and_out(self) -> None:
        self.source += 1
        self.store.initial.fill_(0)
        self.store.history()["new"].fill_(0)

    @rule()
    def save_and_load(self) -> None:
        other = LabelStore(torch.tensor(self.model.given), CLASSES)
        other.load_state_dict(self.store.state_dict())
        self.store.change(99, torch.tensor([0]), (self.store.current[:1] + 1) % CLASSES, torch.tensor([1.0]))
        self.store = other  # the one that was saved went on; this one must not have noticed

    @invariant()
    def it_equals_the_model(self) -> None:
        assert self.store.initial.tolist() == self.model.given
        assert self.store.current.tolist() == self.model.current
        assert rows(self.store.history()) == self.model.changes
        assert len(self.store) == len(self.model.given)


TestStoreAgainstModel = StoreAgainstModel.TestCase


@st.composite
def changed_stores(draw: st.DrawFn) -> LabelStore:
    given = torch.tensor(draw(LABELS))
    store = LabelStore(given, CLASSES)
    for epoch in range(1, draw(st.integers(1, 5))):
        index = draw(st.integers(0, len(given) - 1))
        label = draw(st.integers(0, CLASSES - 1))
        store.change(epoch, torch.tensor([index]), torch.tensor([label]), torch.tensor([draw(st.floats(0, 1))]))
    return store


GIVEN, CURRENT, SUGGESTED = range(3)


def some_assessment(count: int, classes: int = CLASSES) -> Assessment:
    """Three views that all differ, a quality that half of the labels have, suggestions and folds."""
    random = torch.Generator().manual_seed(count)
    probs, network, gaussian_probs = (torch.rand(count, 3, generator=random) for _ in range(3))
    odds = 5 * torch.randn(count, generator=random, dtype=torch.double)
    odds[1::2] = torch.nan
    suggested = torch.randint(classes, (count,), generator=random)
    top2_probs, top2 = torch.rand(count, classes, generator=random).softmax(1).topk(2)
    return Assessment(
        probs, network, gaussian_probs, top2, top2_probs,
        odds, suggested, torch.arange(count) % 3 > 0, torch.arange(count) - 1,
    )  # fmt: skip


@given(changed_stores())
def test_the_history_replays_from_given_to_current(store: LabelStore) -> None:
    labels = store.initial.tolist()
    for _, index, old, new, _ in rows(store.history()):
        assert labels[index] == old != new
        labels[index] = new
    assert labels == store.current.tolist()


@given(changed_stores())
def test_the_table_says_of_each_example_what_history_and_assessment_say(store: LabelStore) -> None:
    scores = some_assessment(len(store))
    assert scores.gaussian_probs is not None
    table = label_table(store, scores, splits=["train"] * len(store))
    assert table.column_names[:5] == ["index", "id", "digest", "split", "given_label"]
    history = rows(store.history())
    for i, row in enumerate(table.to_pylist()):
        given, current, suggested = int(store.initial[i]), int(store.current[i]), int(scores.suggested[i])
        mine = [epoch for epoch, index, *_ in history if index == i]
        assert row == {
            "index": i,
            "id": str(i),
            "digest": None,
            "split": "train",
            "given_label": given,
            "current_label": current,
            "changed": given != current,
            "prob_current": float(scores.probs[i, CURRENT]),
            "prob_given": float(scores.probs[i, GIVEN]),
            "network_prob_given": float(scores.network[i, GIVEN]),
            "gaussian_prob_given": float(scores.gaussian_probs[i, GIVEN]),
            "suggested_label": suggested,
            "prob_suggested": float(scores.probs[i, SUGGESTED]),
            "network_prob_suggested": float(scores.network[i, SUGGESTED]),
            "gaussian_prob_suggested": float(scores.gaussian_probs[i, SUGGESTED]),
            "top1": int(scores.top2[i, 0]),
            "prob_top1": float(scores.top2_probs[i, 0]),
            "top2": int(scores.top2[i, 1]),
            "prob_top2": float(scores.top2_probs[i, 1]),
            "last_changed_epoch": max(mine, default=0),
            "n_changes": len(mine),
            "label_quality": None if i % 2 else float(scores.log_odds[i].sigmoid().float()),
            "is_label_issue": given != suggested,
            "log_odds": None if i % 2 else float(scores.log_odds[i]),
            "expected_error": None,
            "out_of_sample": bool(i % 3),
            "fold": i - 1,
            "reviewed": False,
            "review_weight": None,
        }


def test_without_gaussians_their_probabilities_are_null() -> None:
    scores = some_assessment(3)._replace(gaussian_probs=None)
    table = label_table(LabelStore(torch.tensor([0, 1, 2]), CLASSES), scores, splits=["train"] * 3)
    assert table["gaussian_prob_given"].to_pylist() == table["gaussian_prob_suggested"].to_pylist() == [None] * 3
    assert table["network_prob_given"].null_count == 0


def test_the_table_has_ids_splits_and_names_where_the_data_has_them() -> None:
    store = LabelStore(torch.tensor([0, 1, 1]), 2)
    store.change(3, torch.tensor([2]), torch.tensor([0]), torch.tensor([0.9]))
    table = label_table(
        store,
        some_assessment(3, 2)._replace(suggested=torch.tensor([1, 1, 0])),
        splits=["train", "val", "train"],
        ids=["a", "b", "c"],
        class_names=["cat", "dog"],
    )
    named = ("given_label", "current_label", "suggested_label", "top1", "top2")
    assert table.column_names[-5:] == [f"{name}_name" for name in named]
    assert table["id"].to_pylist() == ["a", "b", "c"]
    assert table["split"].to_pylist() == ["train", "val", "train"]
    assert table["given_label_name"].to_pylist() == ["cat", "dog", "dog"]
    assert table["current_label_name"].to_pylist() == ["cat", "dog", "cat"]
    assert table["suggested_label_name"].to_pylist() == ["dog", "dog", "cat"]


def test_a_label_changed_and_changed_back_counts_twice_and_is_not_changed() -> None:
    store = LabelStore(torch.tensor([0]), 2)
    store.change(1, torch.tensor([0]), torch.tensor([1]), torch.tensor([0.7]))
    store.change(4, torch.tensor([0]), torch.tensor([0]), torch.tensor([0.8]))
    row = label_table(store, some_assessment(1, 2), splits=["train"]).to_pylist()[0]
    assert (row["changed"], row["n_changes"], row["last_changed_epoch"]) == (False, 2, 4)


def test_a_change_to_the_same_label_is_none() -> None:
    store = LabelStore(torch.tensor([0, 1]), 2)
    assert store.change(1, torch.tensor([0, 1]), torch.tensor([0, 1]), torch.ones(2)) == 0
    assert all(len(column) == 0 for column in store.history().values())


def test_confidence_may_come_with_a_gradient() -> None:
    store = LabelStore(torch.tensor([0, 1]), 2)
    store.change(1, torch.tensor([0]), torch.tensor([1]), torch.ones(1, requires_grad=True))
    assert not store.history()["confidence"].requires_grad


@given(store=changed_stores())
def test_the_state_goes_through_a_checkpoint_file(store: LabelStore, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("state") / "labels.safetensors"
    save_tree(path, store.state_dict())
    other = LabelStore(store.initial, CLASSES)
    other.load_state_dict(load_tree(path))
    assert torch.equal(other.current, store.current)
    assert_same_tree(other.history(), store.history())
    scores, splits = some_assessment(len(store)), ["train"] * len(store)
    assert label_table(other, scores, splits=splits).equals(label_table(store, scores, splits=splits))


@given(store=changed_stores(), names=st.booleans())
def test_the_files_hold_the_same(store: LabelStore, names: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("labels")
    class_names = ["plain", 'with "quotes"', "with, comma", "with\nline"] if names else None
    scores = some_assessment(len(store))
    table = label_table(store, scores, splits=["train"] * len(store), class_names=class_names)
    run = Run(folder)
    run.begin()
    run.write_labels(table, store.history())
    assert pyarrow.parquet.read_table(folder / "labels.parquet").equals(table)
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == table.column_names
    assert len(lines) == len(store)
    for line, row in zip(lines, table.to_pylist(), strict=True):
        for cell, value in zip(line, row.values(), strict=True):
            if value is None:
                assert not cell
            elif isinstance(value, bool):
                assert cell == str(value).lower()
            elif isinstance(value, float):
                assert torch.tensor(float(cell)) == torch.tensor(value)  # shortest text of a float32
            else:
                assert cell == str(value)
    history = pyarrow.parquet.read_table(folder / "history.parquet")
    assert history.column_names == ["epoch", "index", "old", "new", "confidence"]
    assert [tuple(row.values()) for row in history.to_pylist()] == rows(store.history())
    assert sorted(path.name for path in Path(folder).iterdir()) == [
        "history.parquet",
        "labels.csv",
        "labels.parquet",
        "run.json",
    ]


def test_reviewed_labels_are_given_and_stay_whoever_wants_to_change_them() -> None:
    store = LabelStore(torch.tensor([0, 1, 1, 0]), 3, torch.tensor([-1, 2, 1, -1]))
    assert store.given.tolist() == [0, 1, 1, 0]
    assert store.initial.tolist() == store.current.tolist() == [0, 2, 1, 0]
    assert store.trusted.tolist() == [False, True, True, False]
    assert store.change(1, torch.arange(4), torch.tensor([1, 0, 0, 0]), torch.ones(4)) == 1
    assert store.current.tolist() == [1, 2, 1, 0]
    assert store.history()["index"].tolist() == [0]


def test_the_table_keeps_what_had_been_given_and_trusts_reviewed_labels() -> None:
    reviewed, weights = torch.tensor([-1, 2, 1, -1]), torch.tensor([0, 0, 2.5, 0])
    store = LabelStore(torch.tensor([0, 1, 1, 2]), 3, reviewed, weights)
    scores = some_assessment(4, 3)._replace(suggested=torch.tensor([0, 0, 0, 1]))  # no quality of numbers 1 and 3
    table = label_table(store, scores, splits=["train"] * 4, class_names=["a", "b", "c"])
    columns = table.to_pydict()
    assert columns["given_label"] == [0, 1, 1, 2]
    assert columns["current_label"] == [0, 2, 1, 2]
    assert columns["changed"] == [False, True, False, False]
    assert columns["reviewed"] == [False, True, True, False]
    assert columns["review_weight"] == [None, None, 2.5, None]
    assert columns["suggested_label"] == [0, 2, 1, 1]
    assert columns["label_quality"] == [float(scores.log_odds[0].sigmoid().float()), 1.0, 1.0, None]
    assert columns["log_odds"] == [float(scores.log_odds[0]), None, None, None]
    for name, view in (
        ("prob", scores.probs),
        ("network_prob", scores.network),
        ("gaussian_prob", scores.gaussian_probs),
    ):
        assert view is not None
        of = [SUGGESTED, CURRENT, CURRENT, SUGGESTED]
        assert columns[f"{name}_suggested"] == view[torch.arange(4), of].tolist()
    assert (columns["given_label_name"], columns["current_label_name"]) == (["a", "b", "b", "c"], ["a", "c", "b", "c"])
    assert label_issue_mask(table).tolist() == [False, False, False, True]  # not what people changed


def test_the_most_doubtful_come_first_and_those_without_a_quality_last() -> None:
    odds = torch.tensor([0.5, torch.nan, 0.1, 0.5, torch.nan, -2.0])
    scores = some_assessment(6)._replace(log_odds=odds)
    table = label_table(LabelStore(torch.zeros(6, dtype=torch.long), CLASSES), scores, splits=["train"] * 6)
    assert lowest_quality_first(table).tolist() == [5, 2, 0, 3, 1, 4]


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 2.5, math.nan]), st.integers(0, 3)), max_size=40))
def test_among_equals_classes_take_turns(examples: list[tuple[float, int]]) -> None:
    odds, given_labels = np.array([odds for odds, _ in examples]), np.array([c for _, c in examples], np.int64)
    got = in_turns(odds, given_labels).tolist()
    seen: Counter[tuple[str, int]] = Counter()
    keys = []
    for i, (value, label) in enumerate(examples):
        group = ("last" if math.isnan(value) else repr(value), label)
        keys.append((math.inf if math.isnan(value) else value, seen[group], label, i))
        seen[group] += 1
    assert got == sorted(range(len(examples)), key=keys.__getitem__)


@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=1500))
def test_wrong_labels_to_expect_are_the_sum_of_doubts(quality: list[float]) -> None:
    got = expect_errors(np.array(quality))
    doubts = sorted((1 - q for q in quality if not math.isnan(q)), reverse=True)
    assert [size for size, _ in got] == [size for size in (100, 1000) if size < len(doubts)]
    assert [wrong for _, wrong in got] == pytest.approx([sum(doubts[:size]) for size, _ in got])


@given(rows=st.lists(st.tuples(st.floats(-6, 6), st.sampled_from(["train", "val", "removed", "reviewed"])), min_size=1))
def test_each_label_is_an_issue_or_doubtful_or_neither(rows: list[tuple[float, str]]) -> None:
    """Also at the cuts themselves, one half and nine tenths."""
    rows = [*rows, (0.0, "train"), (math.log(9), "train"), (math.nan, "val")]
    odds = torch.tensor([value for value, _ in rows], dtype=torch.float64)
    splits = ["train" if split == "reviewed" else split for _, split in rows]
    reviewed = torch.tensor([1 if split == "reviewed" else -1 for _, split in rows])
    store = LabelStore(torch.zeros(len(rows), dtype=torch.long), 2, reviewed)
    scores = some_assessment(len(rows), 2)._replace(log_odds=odds, suggested=(odds < 0).long())
    table = label_table(store, scores, splits=splits)
    free = [split in ("train", "val") for _, split in rows]
    quality, values = odds.sigmoid().float().tolist(), odds.tolist()
    issue = [one and value < 0 for one, value in zip(free, values, strict=True)]
    doubtful = [
        one and value >= 0 and q < float(np.float32(0.9)) for one, value, q in zip(free, values, quality, strict=True)
    ]
    assert label_issue_mask(table).tolist() == issue
    assert doubtful_mask(table).tolist() == doubtful
    listed = list_label_issues(table, "id", {})
    assert listed["is_label_issue"].to_pylist() == [True] * sum(issue) + [False] * sum(doubtful)
    for kind in (True, False):
        part = listed.filter(pyarrow.compute.equal(listed["is_label_issue"], kind))["label_quality"].to_pylist()
        assert part == sorted(part)
    errors = torch.tensor([1.0, 2.0, 6.0])
    people = sum(split == "reviewed" for _, split in rows)
    scored = sum(one and not math.isnan(q) for one, q in zip(free, quality, strict=True))
    assert summarize_labels(table, errors) == (scored, 3.0, 1.0, 6.0, sum(issue), sum(doubtful), people)


def test_errors_by_class_and_pair_are_sums_over_labels() -> None:
    given = [0, 0, 0, 1, 1, 2]
    reviewed = torch.tensor([-1, -1, -1, -1, 1, -1])
    odds = torch.tensor([-2.0, 1.0, 3.0, 0.5, 0.0, math.nan], dtype=torch.float64)
    probs = torch.tensor([[0.2, 0.7], [0.6, 0.3], [0.9, 0.06], [0.5, 0.4], [0.5, 0.4], [0.8, 0.1]])  # given, other
    top2 = torch.tensor([[1, 0], [0, 1], [0, 2], [1, 0], [1, 0], [2, 0]])
    top2_probs = torch.tensor([[0.7, 0.2], [0.6, 0.3], [0.9, 0.06], [0.5, 0.4], [0.5, 0.4], [0.8, 0.1]])
    scores = some_assessment(6, 3)._replace(log_odds=odds, top2=top2, top2_probs=top2_probs)
    scores.probs[:, GIVEN] = probs[:, 0]
    table = label_table(LabelStore(torch.tensor(given), 3, reviewed), scores, splits=["train"] * 6)
    q = odds.sigmoid().tolist()
    wrong = [3 - q[0] - q[1] - q[2], 1 - q[3]]
    summary = LabelSummary(4, sum(wrong), sum(wrong) / 2, sum(wrong) * 1.5, 1, 2, 1)
    first, second, third = errors_by_class(table, summary, 3)
    assert third is None  # no quality
    assert first is not None
    assert second is not None
    assert [first["wrong"], second["wrong"]] == pytest.approx(wrong, abs=1e-6)
    assert (first["scored"], second["scored"]) == (3, 1)
    chance = 2 * math.sqrt(sum(value * (1 - value) for value in q[:3]))
    assert first["low"] == pytest.approx(max(0, wrong[0] / 2 - chance), abs=1e-6)
    assert first["high"] == pytest.approx(min(3, wrong[0] * 1.5 + chance), abs=1e-6)
    pairs = {(0, 1): (1 - q[0]) * 0.7 / 0.8 + (1 - q[1]) * 0.3 / 0.4, (1, 0): (1 - q[3]) * 0.4 / 0.5}
    ((*pair, count),) = error_pairs(table)  # the other is less than half a label
    assert count == pytest.approx(pairs[pair[0], pair[1]], abs=1e-5)


def test_all_of_a_store_moves_to_a_device() -> None:
    store = LabelStore(torch.tensor([0, 1, 1]), 2, torch.tensor([-1, 0, -1])).to("meta")
    devices = {name: value.device.type for name, value in vars(store).items() if isinstance(value, torch.Tensor)}
    assert len(devices) >= 5
    assert set(devices.values()) == {"meta"}


def test_the_summary_is_one_sentence() -> None:
    summary = LabelSummary(10_003, 120.4, 80.2, 189.9, 97, 310, 0)
    assert (
        str(summary) == "about 120 (80 to 190) of 10,003 labels are wrong; 97 label issues; 310 more are worth a look"
    )
    one = summary._replace(issues=1, doubtful=1, reviewed=3)
    assert str(one).endswith("of 10,003 unreviewed labels are wrong; 1 label issue; 1 more is worth a look")
    nothing = LabelSummary(0, 0.0, 0.0, 0.0, 0, 0, 0)
    assert str(nothing) == "0 label issues; 0 more are worth a look"
    assert summary.noise_rate == pytest.approx(120.4 / 10_003)
    assert nothing.noise_rate is None


def test_the_changed_fraction_is_not_known_before_the_first_change() -> None:
    store, rows = LabelStore(torch.tensor([0, 1, 1, 0]), 3, torch.tensor([-1, 2, -1, -1])), torch.arange(3)
    assert changed_fraction(store, rows) is None
    store.change(1, torch.tensor([0]), torch.tensor([2]), torch.ones(1))
    assert changed_fraction(store, rows) == pytest.approx(2 / 3)  # with the label that a person decided
    restored = LabelStore(torch.tensor([0, 1, 1, 0]), 3)
    restored.load_state_dict(LabelStore(torch.tensor([0, 1, 1, 0]), 3).state_dict())
    assert changed_fraction(restored, rows) is None
