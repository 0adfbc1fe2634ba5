"""DecisionStore: a log of review decisions, each on disk before it is confirmed."""

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from enum import IntEnum
from os.path import samestat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unflip.data.arrays import Array
from unflip.errors import InputError, RunFolderError, UnflipError

_FORMAT = 2  # the file's user_version
_APPLICATION = 0x756E666C  # the file's application_id: "unfl"
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
    """A choice for an example, and the version that the reviewer saw."""

    example: int
    version: int
    state: State
    label: int | None


class Decision(NamedTuple):
    """A row of the log; the highest version of an example is current."""

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


class DecisionStore:
    """A log of decisions in SQLite, with the current state in memory.

    The log is append-only. A choice names the version that the reviewer saw; if another decision came first, it is not
    written but returned as a conflict. A request repeated after a lost response changes nothing and gets the same
    response. An undo appends a row with the previous decision.

    Args:
        path: the file; created if missing.
        fingerprint: of the examples; a log of other examples raises RunFolderError.
        count: number of examples n.
        read_only: whether to write nothing, not even beside the file.

    Attributes:
        states: the state of every example (n,).
    """

    def __init__(self, path: Path, *, fingerprint: str, count: int, read_only: bool = False) -> None:
        self.states: Array = np.zeros(count, np.uint8)
        self._path = path
        self._lock = threading.Lock()
        self._rows: dict[int, Decision] = {}
        self._current: dict[int, Decision] = {}
        self._in_force: dict[int, int | None] = {}  # example -> its decision after all undos
        self._before: dict[int, int | None] = {}  # decision -> the one restored by undoing it
        self._requests: dict[str, list[int]] = defaultdict(list)
        self._undoable: dict[str, list[str]] = defaultdict(list)  # person -> requests, oldest first
        self._connection = _open(path, fingerprint, read_only=read_only)
        try:
            for row in self._connection.execute("SELECT * FROM decisions ORDER BY id"):
                self._remember(Decision(*row)._replace(state=State[row[7].upper()]))
        except (sqlite3.Error, KeyError, IndexError) as error:
            self.close()
            raise RunFolderError(f"{path}: damaged ({error}); restore a backup") from error
        self._file = path.stat()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def current(self, example: int) -> Decision | None:
        """Return the current decision about an example; None if there is none."""
        return self._current.get(example)

    def since(self, last: int, limit: int) -> list[Decision]:
        """Return the first ``limit`` rows after row ``last``, in order."""
        return [self._rows[i] for i in range(last + 1, min(last + limit, self.last_id) + 1)]

    @property
    def last_id(self) -> int:
        """Id of the newest row; 0 if there are none."""
        return len(self._rows)

    def decided(self) -> list[Decision]:
        """Return the decisions that set a label or remove an example, by example."""
        return [row for _, row in sorted(dict(self._current).items()) if row.state.is_decided]

    def decide(self, choices: Sequence[Choice], *, person: str, reviewer: str, request: str) -> DecideResult:
        """Write the choices without conflict; they are on disk when this returns."""
        with self._lock:
            done = {self._rows[i].example: self._rows[i] for i in self._requests.get(request, [])}
            free: list[tuple[Choice, int | None]] = []
            conflicts = []
            for choice in choices:
                current = self._current.get(choice.example)
                if choice.example in done:
                    continue
                if choice.version == (current.version if current else 0):
                    free.append((choice, None))
                elif current is not None:
                    conflicts.append(current)
                else:
                    raise InputError(f"version {choice.version} of example {choice.example} does not exist")
            return DecideResult([*done.values(), *self._append(free, person, reviewer, request)], conflicts)

    def undo(self, *, person: str, reviewer: str, request: str) -> list[Decision]:
        """Undo a person's last request; called again, the one before. Later decisions of others stay."""
        with self._lock:
            if request in self._requests:
                return [self._rows[i] for i in self._requests[request]]
            for earlier in reversed(self._undoable[person]):
                rows = [self._rows[i] for i in self._requests[earlier]]
                rows = [row for row in rows if self._in_force[row.example] == row.id]
                if rows:
                    return self._append([(self._previous(row), row.id) for row in rows], person, reviewer, request)
            return []

    def _previous(self, row: Decision) -> Choice:
        before, version = self._before[row.id], self._current[row.example].version
        if before is None:
            return Choice(row.example, version, State.OPEN, None)
        return Choice(row.example, version, self._rows[before].state, self._rows[before].label)

    def _append(
        self, choices: Sequence[tuple[Choice, int | None]], person: str, reviewer: str, request: str
    ) -> list[Decision]:
        """Write rows in one transaction, and update the state in memory once they are on disk."""
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
        """Raise NotSavedError if the file is gone: SQLite would keep writing to a deleted file."""
        if not self._path.exists() or not samestat(self._path.stat(), self._file):
            raise NotSavedError(f"not saved: {self._path.name} was removed or replaced; start unflip review again")

    def _remember(self, row: Decision) -> None:
        self._rows[row.id] = row
        self._current[row.example] = row
        self.states[row.example] = row.state
        if row.undoes is None:
            self._before[row.id] = self._in_force.get(row.example)
            self._in_force[row.example] = row.id
            if row.request not in self._requests:
                self._undoable[row.person].append(row.request)
        else:
            self._in_force[row.example] = self._before[row.undoes]
        self._requests[row.request].append(row.id)


def _open(path: Path, fingerprint: str, *, read_only: bool) -> sqlite3.Connection:
    """Open or create the file; raise RunFolderError, before writing to it, if it is not the log of these examples.

    WAL lets an export read while a decision is written. With synchronous FULL a decision is on disk before it is
    confirmed, so it survives a power cut; this costs one flush per request.
    """
    try:
        exists = path.exists() and path.stat().st_size > 0
        if exists:
            with closing(_open_to_read(path)) as log:
                _check_log(log, path, fingerprint)
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
                connection.execute("INSERT INTO about VALUES (?)", (fingerprint,))
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


def _check_log(connection: sqlite3.Connection, path: Path, fingerprint: str) -> None:
    """Raise RunFolderError if a file is not the log of these examples."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise RunFolderError(f"{path}: not an unflip review; move the file away")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != _FORMAT:
        raise RunFolderError(f"{path}: has format {version}, this version of unflip reads {_FORMAT}")
    if connection.execute("SELECT fingerprint FROM about").fetchall() != [(fingerprint,)]:
        raise RunFolderError(f"{path}: belongs to other examples; move the file away to start a new review")
