"""Reviews for tests: runs to look through, a server in this process, and a client that sends what it is told."""

import http.client
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.csv

from unflip.review import Order
from unflip.review.review import Review, open_review
from unflip.runs.folder import Run
from unflip.runs.labels import Issue, issues_table


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


_numbers = itertools.count()


class Client:
    """A program that knows the token; ``person`` is who it is."""

    def __init__(self, address: str, person: int = 0) -> None:
        parts = urlsplit(address)
        self.address, self.host, self.token = address, parts.netloc, parse_qs(parts.query)["token"][0]
        self.port = parts.port
        self.person = f"{person:032x}"

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Send exactly this, with no header but these and Host."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port or 0, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    @property
    def known(self) -> dict[str, str]:
        """Headers of one who may."""
        return {"Authorization": f"Bearer {self.token}", "Cookie": f"unflip-person={self.person}"}

    def get(self, path: str) -> Answer:
        return self.send("GET", path, headers=self.known)

    def post(self, path: str, content: Any) -> Answer:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.send("POST", path, body, {**self.known, "Content-Type": "application/json"})

    def decide(self, action: str, *items: tuple[int, int], reviewer: str = "ann", **more: Any) -> Answer:
        """Decide about (index, version) pairs."""
        body = {"action": action, "reviewer": reviewer, "request": new_request(), **more}
        return self.post("/api/decide", {**body, "items": [{"index": i, "version": v} for i, v in items]})

    def undo(self, *, reviewer: str = "ann", request: str | None = None) -> Answer:
        return self.post("/api/undo", {"reviewer": reviewer, "request": request or new_request()})


def write_issues(run: Path, **found: Issue) -> None:
    """Write what a run found by name, in the format of ``unflip clean``."""
    pa.csv.write_csv(issues_table(Run(run).labels(), found), Run(run).own("issues.csv"))


def issue(
    rows: Sequence[int], reasons: Sequence[str], *, groups: Sequence[int] | None = None, flagged: int | None = None
) -> Issue:
    """Issues about examples, the first ``flagged`` of them worth a look."""
    flags = np.arange(len(rows)) < (len(rows) if flagged is None else flagged)
    scores = np.linspace(0.9, 0.1, len(rows))
    return Issue(np.array(rows), scores, flags, reasons, None if groups is None else np.array(groups))


def decided(export: str) -> str:
    """Return an export without who decided, and what identifies the examples besides index and name."""
    return "".join(line.rsplit(",", 3)[0] + "\n" for line in export.splitlines())


def new_request() -> str:
    return f"request-{next(_numbers):08}"


@contextmanager
def served(run: Path, **options: Any) -> Iterator[tuple[str, Review]]:
    """Serve the review of a run from a thread; yields its address."""
    from unflip.review.pages import listen, prepare

    with open_review(run, reviewer="ann", order=options.pop("order", Order.LOWEST_QUALITY)) as review:
        host = options.pop("host", "127.0.0.1")
        serving = prepare(review, listen(host, 0), host)
        thread = threading.Thread(target=serving.run)
        thread.start()
        try:
            yield serving.address, review
        finally:
            serving.server.should_exit = True
            thread.join(20)
