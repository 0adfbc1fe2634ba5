"""DecisionStore: a log of review decisions, each on disk before it is confirmed."""

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple
from datetime import UTC, datetime
from enum import IntEnum
from os.path import samestat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unflip.data.arrays import Array
from unflip.data.matching import Keys, Matcher, Reference
from unflip.errors import InputError, RunFolderError, UnflipError

_FORMAT = 3  # the file's user_version
_APPLICATION = 0x756E666C  # the file's application_id: "unfl"
_TABLES = """
CREATE TABLE examples (
    number INTEGER PRIMARY KEY,
    place INTEGER NOT NULL,
    name TEXT,
    given TEXT NOT NULL,
    digest TEXT
);
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    person TEXT NOT NULL,
    reviewer TEXT NOT NULL,
    request TEXT NOT NULL,
    example INTEGER NOT NULL REFERENCES examples (number),
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    label TEXT,
    undoes INTEGER REFERENCES decisions (id),
    UNIQUE (example, version),
    UNIQUE (request, example)
);
"""
ABSENT = -1
"""The index of examples that the log has and the run does not."""


class State(IntEnum):
    """The state of an example."""

    OPEN = 0
    ACCEPTED = 1
    KEPT = 2
    CHANGED = 3
    UNSURE = 4
    REMOVED = 5

    @property
    def is_decided(self) -> bool:
        """Whether the example has a reviewed label or is removed."""
        return self not in (State.OPEN, State.UNSURE)


class NotSavedError(UnflipError):
    """A decision could not be written to disk."""


class Choice(NamedTuple):
    """A choice for an example, the version that the reviewer saw, and the decision that it undoes, if any."""

    example: int
    version: int
    state: State
    label: int | None
    undoes: int | None = None


class Decision(NamedTuple):
    """A row of the log; the highest version of an example is current. The run may not have the example any more."""

    id: int
    at: str
    person: str
    reviewer: str
    request: str
    example: int
    version: int
    state: State
    label: int | None
    undoes: int | None


class DecideResult(NamedTuple):
    """What a request wrote, and what others had decided first."""

    written: list[Decision]
    conflicts: list[Decision]


class Orphan(NamedTuple):
    """A decision about an example that the run does not have: its label, None if it was removed, by name."""

    example: Reference
    label: str | None


class DecisionStore:
    """A log of decisions in SQLite, with the current state in memory.

    The log is append-only. A choice names the version that the reviewer saw; if another decision came first, it is not
    written but returned as a conflict. A request repeated after a lost response changes nothing and gets the same
    response. An undo appends a row with the previous decision.

    The log says by itself which examples and classes it means. If the run was replaced, by one on data that was
    reordered or has grown, its decisions are those about the same examples; see :class:`unflip.data.matching.Matcher`.
    The others stay in the log.

    Args:
        path: the file; created if missing.
        keys: what identifies the n examples of the run.
        read_only: whether to write nothing, not even beside the file.

    Attributes:
        states: the state of every example (n,).
    """

    def __init__(self, path: Path, keys: Keys, *, read_only: bool = False) -> None:
        self.states: Array = np.zeros(len(keys.given), np.uint8)
        self._path, self._keys = path, keys
        self._lock = threading.Lock()
        self._rows: list[Decision] = []
        self._current: dict[int, Decision] = {}
        self._in_force: dict[int, list[Decision]] = defaultdict(list)  # example -> decisions that are not undone
        self._requests: dict[str, list[Decision]] = defaultdict(list)
        self._numbers: dict[int, int] = {}  # example of the run -> its number in the log
        self._absent: dict[int, Orphan | None] = {}  # by number; None if undecided
        self._connection = _open(path, read_only=read_only)
        try:
            self._load()
        except (sqlite3.Error, KeyError, IndexError, TypeError) as error:
            self.close()
            raise RunFolderError(f"{path}: damaged ({error}); restore a backup") from error
        self._file = path.stat()

    def _load(self) -> None:
        """Read the log, and find its examples in the run."""
        examples = self._connection.execute("SELECT * FROM examples ORDER BY number")
        references = {number: Reference(*rest) for number, *rest in examples}
        rows = self._connection.execute("SELECT * FROM decisions ORDER BY id").fetchall()
        classes = {name: label for label, name in enumerate(self._keys.class_names)}
        gone = {row[5] for row in rows if row[8] is not None and row[8] not in classes}  # their class is
        matcher = Matcher(self._keys)
        for number, example in references.items():
            index = None if number in gone else matcher.find(example)
            if index is not None:
                self._numbers.setdefault(index, number)
        indices = {number: index for index, number in self._numbers.items()}
        for row in rows:
            number, state, label = row[5], State[row[7].upper()], row[8]
            if number not in indices:
                self._absent[number] = Orphan(references[number], label) if state.is_decided else None
            place = indices.get(number, ABSENT)
            known = None if place == ABSENT or label is None else classes[label]
            self._remember(Decision(*row)._replace(example=place, state=state, label=known))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def current(self, example: int) -> Decision | None:
        """Return the current decision about an example; None if there is none."""
        return self._current.get(example)

    def since(self, last: int, limit: int) -> list[Decision]:
        """Return the first ``limit`` rows after row ``last``, in order."""
        return self._rows[last : last + limit]

    @property
    def last_id(self) -> int:
        """Id of the newest row; 0 if there are none."""
        return len(self._rows)

    def decided(self) -> list[Decision]:
        """Return the decisions that set a label or remove an example, by example."""
        return [row for _, row in sorted(dict(self._current).items()) if row.state.is_decided]

    def orphans(self) -> list[Orphan]:
        """Return the decisions about examples that the run does not have."""
        return [orphan for _, orphan in sorted(self._absent.items()) if orphan is not None]

    def decide(self, choices: Sequence[Choice], *, person: str, reviewer: str, request: str) -> DecideResult:
        """Write the choices without conflict; they are on disk when this returns."""
        with self._lock:
            done = {row.example: row for row in self._requests.get(request, [])}
            free, conflicts = [], []
            for choice in choices:
                current = self._current.get(choice.example)
                if choice.example in done:
                    continue
                if choice.version == (current.version if current else 0):
                    free.append(choice)
                elif current is not None:
                    conflicts.append(current)
                else:
                    raise InputError(f"version {choice.version} of example {choice.example} does not exist")
            return DecideResult([*done.values(), *self._append(free, person, reviewer, request)], conflicts)

    def undo(self, *, person: str, reviewer: str, request: str) -> list[Decision]:
        """Undo a person's last request; called again, the one before. Later decisions of others stay."""
        with self._lock:
            if request in self._requests:
                return self._requests[request]
            for rows in reversed(self._requests.values()):
                last = [row for row in rows if row.person == person and self._in_force[row.example][-1:] == [row]]
                if last:
                    return self._append([self._without(row) for row in last], person, reviewer, request)
            return []

    def _without(self, row: Decision) -> Choice:
        """Return the choice that undoes the decision in force, by repeating the one before."""
        version, before = self._current[row.example].version, self._in_force[row.example][-2:-1]
        state, label = (before[0].state, before[0].label) if before else (State.OPEN, None)
        return Choice(row.example, version, state, label, row.id)

    def _append(self, choices: Sequence[Choice], person: str, reviewer: str, request: str) -> list[Decision]:
        """Write rows in one transaction, and update the state in memory once they are on disk."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        rows = [
            Decision(number, at, person, reviewer, request, *choice._replace(version=choice.version + 1))
            for number, choice in enumerate(choices, self.last_id + 1)
        ]
        if rows:
            self._check_file()
            try:
                self._write(rows)
            except sqlite3.Error as error:
                raise NotSavedError(f"not saved: {self._path.name}: {error}") from error
        for row in rows:
            self._remember(row)
        return rows

    def _write(self, rows: Sequence[Decision]) -> None:
        """Write rows, and examples that the log does not have yet, in one transaction."""
        new = [row.example for row in rows if row.example not in self._numbers]
        first = len(self._numbers) + len(self._absent) + 1
        numbers = self._numbers | {index: number for number, index in enumerate(dict.fromkeys(new), first)}
        examples = [(numbers[index], *astuple(self._keys.reference(index))) for index in dict.fromkeys(new)]
        names = self._keys.class_names
        decisions = [
            (*row[:5], numbers[row.example], row.version, row.state.name.lower(),
             None if row.label is None else names[row.label], row.undoes)
            for row in rows
        ]  # fmt: skip
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO examples VALUES (?, ?, ?, ?, ?)", examples)
            self._connection.executemany("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", decisions)
        self._numbers = numbers

    def _check_file(self) -> None:
        """Raise NotSavedError if the file is gone: SQLite would keep writing to a deleted file."""
        if not self._path.exists() or not samestat(self._path.stat(), self._file):
            raise NotSavedError(f"not saved: {self._path.name} was removed or replaced; start unflip review again")

    def _remember(self, row: Decision) -> None:
        self._rows.append(row)
        if row.example == ABSENT:
            return
        self._requests[row.request].append(row)
        self._current[row.example] = row
        self.states[row.example] = row.state
        if row.undoes is None:
            self._in_force[row.example].append(row)
        else:
            self._in_force[row.example].pop()


def _open(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open or create the file; raise RunFolderError, before writing to it, if it is not a log.

    WAL lets an export read while a decision is written. With synchronous FULL a decision is on disk before it is
    confirmed, so it survives a power cut; this costs one flush per request.
    """
    try:
        exists = path.exists() and path.stat().st_size > 0
        if exists:
            with closing(_open_to_read(path)) as log:
                _check_log(log, path)
        if read_only:
            return _open_to_read(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if not exists:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
        return connection
    except sqlite3.Error as error:
        raise RunFolderError(f"{path}: cannot be used ({error})") from error


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Open a log without writing anything; one that is in use shows the decisions so far."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    address = f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
    return sqlite3.connect(address, uri=True)


def _check_log(connection: sqlite3.Connection, path: Path) -> None:
    """Raise RunFolderError if a file is not a log of decisions."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise RunFolderError(f"{path}: not an unflip review; move the file away")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != _FORMAT:
        raise RunFolderError(f"{path}: has format {version}, this version of unflip reads {_FORMAT}")
