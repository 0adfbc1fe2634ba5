"""DecisionStore: every decision of every person, on disk before anybody is told that it is kept."""

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum
from os.path import samestat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unflip.data.files.arrays import Array
from unflip.errors import InputError, RunFolderError, UnflipError

_FORMAT = 1  # of the file; kept in its user_version
_APPLICATION = 0x756E666C  # "unfl": so that another program's file is not taken for ours
_TABLES = """
CREATE TABLE about (fingerprint TEXT NOT NULL);
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    person TEXT NOT NULL,
    reviewer TEXT NOT NULL,
    request TEXT NOT NULL,
    example INTEGER NOT NULL,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    label INTEGER,
    undoes INTEGER REFERENCES decisions (id),
    UNIQUE (example, version),
    UNIQUE (request, example)
);
"""


class State(IntEnum):
    """What became of an example; the label of those from ACCEPTED to CHANGED is decided."""

    OPEN = 0
    ACCEPTED = 1
    KEPT = 2
    CHANGED = 3
    UNSURE = 4

    @property
    def is_decided(self) -> bool:
        """Whether a person settled the label."""
        return self in (State.ACCEPTED, State.KEPT, State.CHANGED)


class NotSavedError(UnflipError):
    """The disk did not take a decision; nothing of it counts."""


class Choice(NamedTuple):
    """What somebody wants an example to be, and the version of it that they saw."""

    example: int
    version: int
    state: State
    label: int | None


class Decision(NamedTuple):
    """A row of the log. The highest version of an example is what holds."""

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


class Outcome(NamedTuple):
    """What became of a request: what was written, and what somebody else had decided first."""

    written: list[Decision]
    conflicts: list[Decision]


class DecisionStore:
    """A log of decisions in SQLite, and in memory what follows from it.

    Rows are only ever added. A choice names the version that its maker saw; if another decision came first, the choice
    is not written but handed back as a conflict. A request that is sent again, since its answer got lost, changes
    nothing and gets the same answer. Undoing adds a row too, with what held before.
    """

    def __init__(self, path: Path, *, fingerprint: str, count: int) -> None:
        self.states: Array = np.zeros(count, np.uint8)
        """The state of every example, for filters."""
        self._path = path
        self._lock = threading.Lock()
        self._rows: dict[int, Decision] = {}
        self._current: dict[int, Decision] = {}
        self._stands_for: dict[int, int | None] = {}  # example -> the decision whose content holds, past all undoing
        self._before: dict[int, int | None] = {}  # decision -> the one that its undoing brings back
        self._requests: dict[str, list[int]] = defaultdict(list)
        self._undoable: dict[str, list[str]] = defaultdict(list)  # person -> requests, the last one last
        self._connection = _open(path, fingerprint)
        try:
            for row in self._connection.execute("SELECT * FROM decisions ORDER BY id"):
                self._remember(Decision(*row)._replace(state=State[row[7].upper()]))
        except (sqlite3.Error, KeyError, IndexError) as error:
            self.close()
            raise RunFolderError(f"{path}: damaged ({error}); bring a copy back") from error
        self._file = path.stat()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def current(self, example: int) -> Decision | None:
        """Return what holds for an example; None before anybody decided."""
        return self._current.get(example)

    def since(self, last: int, limit: int) -> list[Decision]:
        """Return the first ``limit`` rows after row ``last``, in order."""
        return [self._rows[i] for i in range(last + 1, min(last + limit, self.last_id) + 1)]

    @property
    def last_id(self) -> int:
        """The number of the newest row; 0 for none."""
        return len(self._rows)

    def decided(self) -> list[Decision]:
        """Return what was settled, in order of the examples."""
        current = dict(self._current)
        return [current[i] for i in sorted(current) if current[i].state.is_decided]

    def decide(self, choices: Sequence[Choice], *, person: str, reviewer: str, request: str) -> Outcome:
        """Write those of the choices that nobody came before; they are on disk when this returns."""
        with self._lock:
            done = {self._rows[i].example: self._rows[i] for i in self._requests.get(request, [])}
            free: list[tuple[Choice, int | None]] = []
            conflicts = []
            for choice in choices:
                held = self._current.get(choice.example)
                if choice.example in done:
                    continue
                if choice.version == (held.version if held else 0):
                    free.append((choice, None))
                elif held is None:
                    raise InputError(f"version {choice.version} of example {choice.example}: nobody has decided it yet")
                else:
                    conflicts.append(held)
            return Outcome([*done.values(), *self._append(free, person, reviewer, request)], conflicts)

    def undo(self, *, person: str, reviewer: str, request: str) -> list[Decision]:
        """Take back a person's last request, as far as it still holds; asked again, the one before it.

        What others decided since stays as it is, and is passed over.
        """
        with self._lock:
            if request in self._requests:
                return [self._rows[i] for i in self._requests[request]]
            for earlier in reversed(self._undoable[person]):
                standing = [i for i in self._requests[earlier] if self._stands_for[self._rows[i].example] == i]
                if standing:
                    back = [(self._content_before(i), i) for i in standing]
                    return self._append(back, person, reviewer, request)
            return []

    def _content_before(self, number: int) -> Choice:
        example, before = self._rows[number].example, self._before[number]
        version = self._current[example].version
        if before is None:
            return Choice(example, version, State.OPEN, None)
        return Choice(example, version, self._rows[before].state, self._rows[before].label)

    def _append(
        self, choices: Sequence[tuple[Choice, int | None]], person: str, reviewer: str, request: str
    ) -> list[Decision]:
        """Write rows in one transaction, and only when they are on disk take them into account."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        first = self.last_id + 1
        rows = [
            Decision(first + i, at, person, reviewer, request, example, version + 1, state, label, undoes)
            for i, ((example, version, state, label), undoes) in enumerate(choices)
        ]
        if rows:
            self._check_file()
            try:
                with self._connection:
                    self._connection.execute("BEGIN IMMEDIATE")
                    self._connection.executemany(
                        "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        [(*row[:7], row.state.name.lower(), *row[8:]) for row in rows],
                    )
            except sqlite3.Error as error:
                raise NotSavedError(f"not saved: {self._path.name}: {error}") from error
        for row in rows:
            self._remember(row)
        return rows

    def _check_file(self) -> None:
        """Refuse to write where nobody would find it: SQLite goes on in a file that was removed under it."""
        try:
            same = samestat(self._path.stat(), self._file)
        except OSError:
            same = False
        if not same:
            raise NotSavedError(f"not saved: {self._path.name} was removed or replaced; start unflip review again")

    def _remember(self, row: Decision) -> None:
        self._rows[row.id] = row
        self._current[row.example] = row
        self.states[row.example] = row.state
        if row.undoes is None:
            self._before[row.id] = self._stands_for.get(row.example)
            self._stands_for[row.example] = row.id
            if row.request not in self._requests:
                self._undoable[row.person].append(row.request)
        else:
            self._stands_for[row.example] = self._before[row.undoes]
        self._requests[row.request].append(row.id)


def _open(path: Path, fingerprint: str) -> sqlite3.Connection:
    """Open or create the file.

    WAL lets an export read while a decision is written. With synchronous FULL a decision is on disk before it is
    acknowledged, so that even a power cut does not lose it; that costs one flush a request.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    except sqlite3.Error as error:
        raise RunFolderError(f"{path}: cannot be opened ({error})") from error
    try:
        wrong = _prepare(connection, fingerprint)
    except sqlite3.Error as error:
        wrong = f"cannot be used ({error})"
    if wrong:
        connection.close()
        raise RunFolderError(f"{path}: {wrong}")
    return connection


def _prepare(connection: sqlite3.Connection, fingerprint: str) -> str | None:
    """Create the tables where there are none; return what is wrong with a file that has others."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and application != _APPLICATION:
        return "not a review of unflip's; move it away"
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if not tables:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO about VALUES (?)", (fingerprint,))
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != _FORMAT:
        return f"of format {version}, this unflip reads {_FORMAT}; use the version that wrote it"
    if connection.execute("SELECT fingerprint FROM about").fetchall() != [(fingerprint,)]:
        return "decisions about other examples than the run now has; move it away to begin a new review"
    return None
