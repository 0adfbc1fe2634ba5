"""The label store against a plain model of lists, and the files it writes."""

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers import assert_same_tree
from unflip.labels.store import LabelStore
from unflip.runs.folder import Run
from unflip.runs.labels import label_table
from unflip.training.checkpoint import load_tree, save_tree

COLUMNS = [
    "index",
    "id",
    "split",
    "given",
    "current",
    "changed",
    "confidence_current",
    "confidence_given",
    "vote_given",
    "suggested",
    "confidence_suggested",
    "vote_suggested",
    "last_change",
    "changes",
    "quality",
    "reviewed",
]
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


def some_probs(store: LabelStore) -> torch.Tensor:
    return torch.rand(len(store), CLASSES, generator=torch.Generator().manual_seed(0)).softmax(1)


@given(changed_stores())
def test_the_history_replays_from_given_to_current(store: LabelStore) -> None:
    labels = store.initial.tolist()
    for _, index, old, new, _ in rows(store.history()):
        assert labels[index] == old != new
        labels[index] = new
    assert labels == store.current.tolist()


@given(changed_stores())
def test_the_table_says_of_each_example_what_the_history_says(store: LabelStore) -> None:
    probs = some_probs(store)
    table = label_table(store, probs, probs, splits=["train"] * len(store))
    assert table.column_names == COLUMNS
    history = rows(store.history())
    for i, row in enumerate(table.to_pylist()):
        given, current = int(store.initial[i]), int(store.current[i])
        suggested = current if current != given else int(probs[i].argmax())
        mine = [epoch for epoch, index, *_ in history if index == i]
        assert row == {
            "index": i,
            "id": str(i),
            "split": "train",
            "given": given,
            "current": current,
            "changed": given != current,
            "confidence_current": float(probs[i, current]),
            "confidence_given": float(probs[i, given]),
            "vote_given": float(probs[i, given]),
            "suggested": suggested,
            "confidence_suggested": float(probs[i, suggested]),
            "vote_suggested": float(probs[i, suggested]),
            "last_change": max(mine, default=0),
            "changes": len(mine),
            "quality": pytest.approx(float(probs[i, given]), abs=1e-6),
            "reviewed": False,
        }


def test_the_table_has_ids_splits_and_names_where_the_data_has_them() -> None:
    store = LabelStore(torch.tensor([0, 1, 1]), 2)
    store.change(3, torch.tensor([2]), torch.tensor([0]), torch.tensor([0.9]))
    table = label_table(
        store,
        torch.full((3, 2), 0.5),
        torch.full((3, 2), 0.5),
        splits=["train", "val", "train"],
        ids=["a", "b", "c"],
        class_names=["cat", "dog"],
    )
    assert table.column_names == [*COLUMNS, "given_name", "current_name", "suggested_name"]
    assert table["id"].to_pylist() == ["a", "b", "c"]
    assert table["split"].to_pylist() == ["train", "val", "train"]
    assert table["given_name"].to_pylist() == ["cat", "dog", "dog"]
    assert table["current_name"].to_pylist() == ["cat", "dog", "cat"]


def test_a_label_changed_and_changed_back_counts_twice_and_is_not_changed() -> None:
    store = LabelStore(torch.tensor([0]), 2)
    store.change(1, torch.tensor([0]), torch.tensor([1]), torch.tensor([0.7]))
    store.change(4, torch.tensor([0]), torch.tensor([0]), torch.tensor([0.8]))
    row = label_table(store, torch.tensor([[0.6, 0.4]]), torch.ones(1, 2) / 2, splits=["train"]).to_pylist()[0]
    assert (row["changed"], row["changes"], row["last_change"]) == (False, 2, 4)


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
    assert label_table(other, some_probs(store), some_probs(store), splits=["train"] * len(store)).equals(
        label_table(store, some_probs(store), some_probs(store), splits=["train"] * len(store))
    )


@given(store=changed_stores(), names=st.booleans())
def test_the_files_hold_the_same(store: LabelStore, names: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("labels")
    class_names = ["plain", 'with "quotes"', "with, comma", "with\nline"] if names else None
    table = label_table(
        store, some_probs(store), some_probs(store), splits=["train"] * len(store), class_names=class_names
    )
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
            if isinstance(value, bool):
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


def test_the_table_keeps_what_had_been_given_and_trusts_what_people_decided() -> None:
    store = LabelStore(torch.tensor([0, 1, 1]), 3, torch.tensor([-1, 2, 1]))
    probs = torch.tensor([[0.5, 0.25, 0.25]]).repeat(3, 1)
    table = label_table(store, probs, probs, splits=["train"] * 3, class_names=["a", "b", "c"]).to_pydict()
    assert table["given"] == [0, 1, 1]
    assert table["current"] == [0, 2, 1]
    assert table["changed"] == [False, True, False]
    assert table["reviewed"] == [False, True, True]
    assert table["suggested"] == [0, 2, 1]
    assert table["quality"] == [pytest.approx(0.5, abs=1e-6), 1.0, 1.0]
    assert (table["given_name"], table["current_name"]) == (["a", "b", "b"], ["a", "c", "b"])


def test_the_noise_rate_is_not_known_before_the_first_change() -> None:
    store, rows = LabelStore(torch.tensor([0, 1, 1, 0]), 3, torch.tensor([-1, 2, -1, -1])), torch.arange(3)
    assert store.noise_rate(rows) is None
    store.change(1, torch.tensor([0]), torch.tensor([2]), torch.ones(1))
    assert store.noise_rate(rows) == pytest.approx(2 / 3)  # with the label that a person decided
    restored = LabelStore(torch.tensor([0, 1, 1, 0]), 3)
    restored.load_state_dict(LabelStore(torch.tensor([0, 1, 1, 0]), 3).state_dict())
    assert restored.noise_rate(rows) is None
