"""The store of decisions against a slow, obvious model, across reopening; conflicts, undoing, foreign files."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reviewing import new_request
from unflip.data.matching import Keys
from unflip.errors import InputError, RunFolderError
from unflip.review.decisions import Choice, Decision, DecisionStore, NotSavedError, State

COUNT = 4
ANN, BOB = "a" * 32, "b" * 32


KEYS = Keys([f"{i}.png" for i in range(COUNT)], None, np.zeros(COUNT, np.int64), [f"class {i}" for i in range(12)])


def opened(path: Path, keys: Keys = KEYS) -> DecisionStore:
    return DecisionStore(path, keys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "review.sqlite"


@pytest.fixture
def store(path: Path) -> Any:
    store = opened(path)
    yield store
    store.close()


def decide(
    store: DecisionStore, person: str, *wanted: tuple[int, int], label: int = 1, request: str | None = None
) -> tuple[list[Decision], list[Decision]]:
    choices = [Choice(example, version, State.ACCEPTED, label) for example, version in wanted]
    return store.decide(choices, person=person, reviewer=person[0], request=request or new_request())


def undo(store: DecisionStore, person: str, request: str | None = None) -> list[Decision]:
    return store.undo(person=person, reviewer=person[0], request=request or new_request())


class StoreAgainstModel(RuleBasedStateMachine):
    """Each person has a list of what they did; an example's value is the last of its stack that was not taken back."""

    @initialize(folder=st.just(None))
    def begin(self, folder: None) -> None:
        import tempfile

        self.path = Path(tempfile.mkdtemp()) / "review.sqlite"
        self.store = opened(self.path)
        self.versions = [0] * COUNT
        self.stacks: list[list[tuple[str, State, int | None]]] = [[] for _ in range(COUNT)]
        self.done: dict[str, list[tuple[str, list[int]]]] = {ANN: [], BOB: []}

    @rule(
        person=st.sampled_from([ANN, BOB]),
        examples=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=COUNT, unique=True),
        state=st.sampled_from(list(State)),
        label=st.integers(0, 3),
        behind=st.integers(0, 1),
    )
    def decide(self, person: str, examples: list[int], state: State, label: int, behind: int) -> None:
        value = label if state.is_decided else None
        seen = {i: max(0, self.versions[i] - behind) for i in examples}
        request = new_request()
        outcome = self.store.decide(
            [Choice(i, seen[i], state, value) for i in examples], person=person, reviewer="x", request=request
        )
        fresh = [i for i in examples if seen[i] == self.versions[i]]
        assert [row.example for row in outcome.written] == fresh
        assert [row.example for row in outcome.conflicts] == [i for i in examples if i not in fresh]
        for i in fresh:
            self.versions[i] += 1
            self.stacks[i].append((request, state, value))
        if fresh:
            self.done[person].append((request, fresh))
        again = self.store.decide(
            [Choice(i, seen[i], state, value) for i in examples], person=person, reviewer="x", request=request
        )
        assert again == outcome  # sent twice, done once

    @rule(person=st.sampled_from([ANN, BOB]))
    def undo(self, person: str) -> None:
        rows = self.store.undo(person=person, reviewer="x", request=new_request())
        for request, examples in reversed(self.done[person]):
            standing = [i for i in examples if self.stacks[i] and self.stacks[i][-1][0] == request]
            if standing:
                assert [row.example for row in rows] == standing
                for i in standing:
                    self.stacks[i].pop()
                    self.versions[i] += 1
                return
        assert rows == []

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = opened(self.path)

    @invariant()
    def it_equals_the_model(self) -> None:
        for i, stack in enumerate(self.stacks):
            _, state, label = stack[-1] if stack else ("", State.OPEN, None)
            held = self.store.current(i)
            assert self.store.states[i] == state
            assert (held.version if held else 0) == self.versions[i]
            assert held is None or (held.state, held.label) == (state, label)
        assert self.store.last_id == sum(self.versions)
        assert [row.id for row in self.store.since(0, 10_000)] == list(range(1, self.store.last_id + 1))

    def teardown(self) -> None:
        self.store.close()


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=15, stateful_step_count=12)


def test_a_decision_on_a_version_that_is_old_is_handed_back_with_what_came_first(store: DecisionStore) -> None:
    decide(store, ANN, (0, 0), label=2)
    written, conflicts = decide(store, BOB, (0, 0), (1, 0), label=3)
    assert [row.example for row in written] == [1]
    assert [(row.example, row.reviewer, row.label, row.version) for row in conflicts] == [(0, "a", 2, 1)]
    assert store.current(0) == conflicts[0]
    taken, none = decide(store, BOB, (0, 1), label=3)  # now with the version that was shown
    assert (taken[0].version, taken[0].label, none) == (2, 3, [])


def test_undoing_passes_over_what_another_person_replaced_and_never_touches_theirs(store: DecisionStore) -> None:
    decide(store, ANN, (1, 0))
    decide(store, ANN, (0, 0))
    decide(store, BOB, (0, 1), label=3)
    assert [row.example for row in undo(store, ANN)] == [1]
    assert undo(store, ANN) == []
    current = store.current(0)
    assert current is not None
    assert current.label == 3
    assert [(row.example, row.label) for row in undo(store, BOB)] == [(0, 1)]  # back to what Ann had decided
    assert [(row.example, row.state) for row in undo(store, ANN)] == [(0, State.OPEN)]


def test_undoing_twice_by_the_same_request_undoes_once(store: DecisionStore) -> None:
    decide(store, ANN, (0, 0))
    decide(store, ANN, (1, 0))
    request = new_request()
    assert undo(store, ANN, request) == undo(store, ANN, request)
    assert store.states.tolist() == [State.ACCEPTED, 0, 0, 0]


def test_of_threads_that_decide_on_the_same_version_one_wins(store: DecisionStore) -> None:
    outcomes: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: outcomes.append(decide(store, f"{i:032x}", (2, 0), label=i)))
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [written for written, _ in outcomes if written]
    assert len(won) == 1
    assert {conflicts[0] for _, conflicts in outcomes if conflicts} == {won[0][0]}


def test_a_decision_is_in_the_file_before_it_is_acknowledged(store: DecisionStore, path: Path) -> None:
    decide(store, ANN, (3, 0), label=2)
    with sqlite3.connect(path) as other:  # another process would see the same
        assert other.execute("SELECT example, version, state, label FROM decisions").fetchall() == [
            (1, 1, "accepted", "class 2")
        ]
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


def test_what_the_disk_does_not_take_does_not_count(
    store: DecisionStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(store, ANN, (0, 0))
    size = int(store._connection.execute("PRAGMA page_count").fetchone()[0])
    store._connection.execute(f"PRAGMA max_page_count = {size}")  # a full disk
    with pytest.raises(NotSavedError, match="full"):
        store.decide([Choice(1, 0, State.UNSURE, None)], person=ANN, reviewer="n" * 100_000, request=new_request())
    assert store.current(1) is None
    assert store.last_id == 1
    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert decide(store, ANN, (1, 0))[0][0].id == 2
    store.close()
    assert opened_states(path) == [1, 1, 0, 0]


def opened_states(path: Path) -> list[int]:
    store = opened(path)
    states: list[int] = store.states.tolist()
    store.close()
    return states


def test_a_version_that_nobody_made_is_refused(store: DecisionStore) -> None:
    with pytest.raises(InputError, match="version 3 of example 1"):
        decide(store, ANN, (1, 3))
    assert np.count_nonzero(store.states) == 0


def test_decisions_follow_their_examples_and_those_about_others_are_kept(store: DecisionStore, path: Path) -> None:
    decide(store, ANN, (0, 0), (3, 0), label=2)
    decide(store, ANN, (1, 0), label=11)
    store.close()
    ids, names = ["new.png", "3.png", "1.png"], KEYS.class_names[:3]
    store = opened(path, Keys(ids, None, np.zeros(3, np.int64), names))
    assert store.states.tolist() == [0, State.ACCEPTED, 0]  # the class of 1.png is gone, and so is 0.png
    assert [(one.example.id, one.label) for one in store.orphans()] == [("0.png", "class 2"), ("1.png", "class 11")]
    decide(store, BOB, (0, 0), (1, 1), label=1)
    store.close()
    for _ in range(2):
        store = opened(path, KEYS)
        labels = [held.label if (held := store.current(i)) else None for i in range(COUNT)]
        assert labels == [2, 11, None, 1]
        assert [one.example.id for one in store.orphans()] == ["new.png"]
        store.close()


@pytest.mark.parametrize("content", ["other database", "text", "later format", "folder"])
def test_a_file_that_is_no_review_is_refused_and_left_alone(path: Path, content: str) -> None:
    if content == "other database":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE mine (a)")
        other.close()
    elif content == "text":
        path.write_text("not a database, and long enough to be looked at" * 40)
    elif content == "later format":
        opened(path).close()
        with sqlite3.connect(path) as other:
            other.execute("PRAGMA user_version = 9")
        other.close()
    else:
        path.mkdir()
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(RunFolderError, match=r"review\.sqlite"):
        opened(path)
    assert (path.read_bytes() if path.is_file() else b"") == before


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_acknowledged_once_the_file_is_gone(store: DecisionStore, path: Path, replaced: bool) -> None:
    decide(store, ANN, (0, 0))
    path.rename(path.with_name("away.sqlite"))
    if replaced:
        path.write_bytes(b"")
    with pytest.raises(NotSavedError, match=r"review\.sqlite was removed or replaced; start unflip review again"):
        decide(store, ANN, (1, 0))
    assert store.current(1) is None
