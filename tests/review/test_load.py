"""Fifty clients decide while the server is killed: not one decision that was acknowledged may be lost."""

import http.client
import itertools
import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reviewing import Client

CLIENTS = 50
PATIENCE = 300.0  # seconds; machines are shared


class Server:
    """``unflip review`` in a process of its own, which can be killed and started again."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "unflip", "review", str(self._run), "--no-browser", "--reviewer", "load"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.fullmatch(r"review: (http://127\.0\.0\.1:\d+/\?token=\S+)\n", line)
        assert found, line
        self.address = found[1]

    def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(how)
        code = self._process.wait(30)
        self._process.stdout.close()
        return code


@contextmanager
def started(run: Path) -> Iterator[Server]:
    server = Server(run)
    server.start()
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)  # which does nothing to one that has ended


class Person(threading.Thread):
    """Decides about all examples in turn, and remembers what was acknowledged.

    What somebody else decided first it replaces deliberately, by the version that it was shown.
    """

    def __init__(self, number: int, server: Server, count: int, stop: threading.Event) -> None:
        super().__init__()
        self.number, self.server, self.count, self.stop = number, server, count, stop
        self.acknowledged: list[dict[str, Any]] = []
        self.conflicts = self.lost = 0
        self.waits: list[float] = []
        self.versions: dict[int, int] = {}

    def run(self) -> None:
        for step in itertools.count():
            if self.stop.is_set():
                return
            index = (self.number * 7 + step * 13) % self.count
            body = {
                "action": ("accept", "keep", "unsure")[step % 3],
                "reviewer": f"person {self.number}",
            }
            for attempt in ("first", "again"):
                item = {"index": index, "version": self.versions.get(index, 0)}
                if self._decide({**body, "request": f"load-{self.number}-{step}-{attempt}", "items": [item]}):
                    break

    def _decide(self, body: dict[str, Any]) -> bool:
        """Send until there is an answer, as the page does: the same request, so that nothing is done twice."""
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                client = Client(self.server.address, self.number)
                answer = client.post("/api/decide", body)
            except (OSError, http.client.HTTPException):
                self.lost += 1
                time.sleep(0.1)
                continue
            if answer.status == 403:  # started again, with a new token
                time.sleep(0.05)
                continue
            assert answer.status == 200, answer
            self.waits.append(time.monotonic() - began)
            for row in answer.json["written"]:
                self.acknowledged.append(row)
                self.versions[row["index"]] = row["version"]
            for row in answer.json["conflicts"]:
                self.conflicts += 1
                self.versions[row["index"]] = row["version"]
            return bool(answer.json["written"])
        return False


def go_on(people: list[Person], seconds: float, least: int) -> None:
    """Let people decide for so long, and until so many more decisions were acknowledged."""

    def acknowledged() -> int:
        return sum(len(person.acknowledged) for person in people)

    began, before = time.monotonic(), acknowledged()
    while (passed := time.monotonic() - began) < seconds or acknowledged() < before + least:
        assert passed < seconds + PATIENCE, "no answers"
        time.sleep(0.02)


def survive(run: Path, *, seconds: float, kills: int, least: int = 1) -> dict[str, Any]:
    """Let fifty people decide, kill the server in between, and look for what they were told.

    Before and after each kill there is a share of the seconds, and there are at least so many decisions.
    """
    with started(run) as server:
        count = Client(server.address).get("/api/about").json["examples"]
        stop = threading.Event()
        people = [Person(number, server, count, stop) for number in range(CLIENTS)]
        for person in people:
            person.start()
        downtime = 0.0
        for _ in range(kills):
            go_on(people, seconds / (kills + 1), least)
            server.end(signal.SIGKILL)
            began = time.monotonic()
            server.start()
            downtime += time.monotonic() - began
        go_on(people, seconds / (kills + 1), least)
        stop.set()
        for person in people:
            person.join(30)
        assert not any(person.is_alive() for person in people)
        assert server.end(signal.SIGTERM) == 0
    assert not (run / "review.sqlite-wal").exists()  # an orderly end leaves one file
    with sqlite3.connect(run / "review.sqlite") as file:
        columns = "id, place, version, state, label, reviewer"
        rows = file.execute(f"SELECT {columns} FROM decisions JOIN examples ON example = number").fetchall()
        kept: dict[int, tuple[Any, ...]] = {
            row[0]: (*row[:4], None if row[4] is None else int(row[4]), row[5]) for row in rows
        }
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()
    acknowledged = [row for person in people for row in person.acknowledged]
    for row in acknowledged:
        expected = tuple(row[name] for name in ("id", "index", "version", "state", "label", "reviewer"))
        assert kept.get(row["id"]) == expected
    assert len({row["id"] for row in acknowledged}) == len(acknowledged)  # nobody was told the same thing
    assert sorted(kept) == list(range(1, len(kept) + 1))
    by_example: dict[int, list[int]] = {}
    for _, example, version, *_ in kept.values():
        by_example.setdefault(example, []).append(version)
    assert all(sorted(versions) == list(range(1, len(versions) + 1)) for versions in by_example.values())
    waits = sorted(wait for person in people for wait in person.waits)
    return {
        "clients": CLIENTS,
        "seconds": seconds,
        "kills": kills,
        "acknowledged": len(acknowledged),
        "conflicts": sum(person.conflicts for person in people),
        "attempts without an answer": sum(person.lost for person in people),
        "rows": len(kept),
        "seconds down": round(downtime, 1),
        "median answer (ms)": round(1000 * waits[len(waits) // 2], 1),
        "99th percentile (ms)": round(1000 * waits[int(len(waits) * 0.99)], 1),
    }


def test_no_acknowledged_decision_is_lost_when_the_server_is_killed(run: Path) -> None:
    figures = survive(run, seconds=0, kills=1, least=60)
    assert figures["acknowledged"] >= 120


@pytest.mark.soak
def test_fifty_people_decide_for_a_minute_while_the_server_is_killed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = survive(run, seconds=60, kills=4)
    assert figures["acknowledged"] > 1000
    with capsys.disabled():
        print(json.dumps(figures))  # noqa: T201
