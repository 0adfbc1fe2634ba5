"""The review page with 1,000,000 examples: the first page within 300 ms, the next within 100 ms."""

import http.client
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.csv
from PIL import Image

from limits import Limits
from unflip import train
from unflip.data.images import Pictures
from unflip.review import Order
from unflip.review.decisions import Choice, State
from unflip.review.pages import listen, prepare
from unflip.review.review import open_review
from unflip.runs.labels import Issue, issues_table

EXAMPLES, CLASSES, COLUMNS, PAGE = 1_000_000, 100, 64, 60
FOUND = EXAMPLES // 10
FIRST, NEXT = 0.300, 0.100  # seconds, the worst of all tries: at most
_WATCH = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("[role=option]")) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.shown = performance.now(); });
}).observe(document, { childList: true, subtree: true });
"""  # when the first examples are drawn, in milliseconds since the address was opened
_TURN = """() => new Promise((resolve) => {
  const began = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => resolve(performance.now() - began));
  }).observe(document.querySelector("[role=listbox]"), { childList: true });
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "]", bubbles: true }));
})"""


class Client:
    """One connection that stays open, as a browser's."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(parts.netloc)
        self._headers = {"Authorization": f"Bearer {parts.query.removeprefix('token=')}"}

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def post(self, path: str, body: dict[str, Any]) -> None:
        headers = {**self._headers, "Content-Type": "application/json"}
        self._connection.request("POST", path, json.dumps(body), headers)
        answer = self._connection.getresponse()
        assert answer.read(), answer.status
        assert answer.status == 200


def make_run(folder: Path) -> Path:
    """Train for one epoch on random features, of which a fifth is called wrong; a tenth are found to be copies."""
    random = np.random.default_rng(0)
    labels = np.arange(EXAMPLES) % CLASSES
    centers = random.normal(size=(CLASSES, COLUMNS))
    features = (centers[labels] + 0.6 * random.normal(size=(EXAMPLES, COLUMNS))).astype(np.float32)
    wrong = random.random(EXAMPLES) < 0.2
    labels[wrong] = random.integers(0, CLASSES, wrong.sum())
    np.savez(folder / "data.npz", train=features, train_labels=labels)
    run = train(folder / "data.npz", folder / "run", method="standard", epochs=1, device="cpu", threads=1)
    rows, reasons = random.permutation(EXAMPLES)[:FOUND], ["nearly the same as another one"] * FOUND
    copies = Issue(rows, np.linspace(1, 0.5, FOUND), np.ones(FOUND, bool), reasons, np.arange(FOUND) // 2)
    pa.csv.write_csv(issues_table(run.labels(), {"near_duplicate": copies}), run.own("issues.csv"))
    return run.folder


def random_pictures() -> Pictures:
    pixels = np.random.default_rng(1).integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8)
    return Pictures(EXAMPLES, "image/png", lambda index, size: Image.fromarray(pixels[index % 1000]))


def tell(limits: Limits, what: str, seconds: list[float], limit: float | None = None) -> None:
    median, worst = statistics.median(seconds), max(seconds)
    print(f"{what}: median {median * 1000:.1f} ms, worst of {len(seconds)} {worst * 1000:.1f} ms")
    if limit is not None:
        limits.at_most(f"{what}, worst", 1000 * worst, 1000 * limit, "{:.1f} ms")


def timed(call: Callable[[int], object], times: int) -> list[float]:
    taken = []
    for i in range(times):
        began = time.perf_counter()
        call(i)
        taken.append(time.perf_counter() - began)
    return taken


def main() -> None:
    limits = Limits()
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name))
        began = time.perf_counter()
        with open_review(run, reviewer="bench") as review:
            print(f"opening {EXAMPLES:,} examples: {time.perf_counter() - began:.2f} s")
            review.pictures = random_pictures()
            decided = [
                Choice(int(i), 0, State.UNSURE, None) for i in review.examples.ranking(Order.LOWEST_QUALITY).order[::5]
            ]
            review.decisions.decide(decided, person="0" * 32, reviewer="bench", request="the-first-ones")
            serving = prepare(review, listen("127.0.0.1", 0), "127.0.0.1")
            thread = threading.Thread(target=serving.run)
            thread.start()
            try:
                measure(limits, serving.address)
                measure_in_browser(limits, serving.address)
            finally:
                serving.server.should_exit = True
                thread.join()
    limits.finish()


def measure(limits: Limits, address: str) -> None:
    client = Client(address)
    static = [path.name for path in (files("unflip.review") / "static").iterdir()]
    first = f"/api/examples?differs=true&state=open&count={PAGE}"

    def first_page(_: int) -> None:
        client.get("/")
        for name in static:
            client.get(f"/static/{name}")
        client.get("/api/about")
        client.get(first)

    tell(limits, "first page: the page, its files, the filters, 60 examples", timed(first_page, 20), FIRST)
    began = time.perf_counter()
    client.get("/api/examples?order=informative")
    print(f"most informative first, asked for the first time: {time.perf_counter() - began:.2f} s")
    for name, query in (
        ("next page, undecided that differ", "differs=true&state=open"),
        ("next page, all examples", "state=any"),
        ("next page, one class, undecided", "label_class=7&state=open"),
        ("next page, far behind", "state=decided&after=90000"),
        ("next page, a issue about 100,000 examples", "issue=near_duplicate&state=open"),
        ("next page, most informative first", "differs=true&state=open&order=informative"),
    ):
        after = json.loads(client.get(f"/api/examples?{query}&count={PAGE}"))["last"]

        def next_page(_: int, query: str = query) -> None:
            nonlocal after
            place = "" if "after" in query else f"&after={after}"
            after = json.loads(client.get(f"/api/examples?{query}{place}&count={PAGE}"))["last"]

        tell(limits, name, timed(next_page, 50), NEXT)
    differ, same = (
        [one["index"] for one in json.loads(client.get(f"/api/examples?{query}&count=50"))["examples"]]
        for query in ("differs=true", "state=any&after=99000")
    )
    tell(
        limits,
        "one example, its neighbors of two classes",
        timed(lambda i: client.get(f"/api/examples/{differ[i]}"), 50),
    )
    tell(
        limits,
        "one example, its neighbors of all classes",
        timed(lambda i: client.get(f"/api/examples/{same[i]}"), 50),
    )
    tell(limits, "what others did", timed(lambda i: client.get("/api/changes?since=19999&differs=true"), 50), NEXT)
    about = json.loads(client.get("/api/about"))
    clients = [Client(address) for _ in range(6)]  # as many as browsers open

    def pictures(step: int) -> None:
        def some(part: int) -> None:
            for i in range(part, PAGE, 6):
                clients[part].get(f"{about['pictures']}small/{step * PAGE + i}")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(some, range(6)))

    tell(limits, f"{PAGE} pictures of 32 x 32 pixels, over six connections", timed(pictures, 10))
    undecided = [one["index"] for one in json.loads(client.get("/api/examples?state=open&count=200"))["examples"]]

    def decide(i: int) -> None:
        body = {"action": "accept", "reviewer": "bench", "request": f"decision-{i}"}
        client.post("/api/decide", {**body, "items": [{"index": undecided[i], "version": 0}]})

    tell(limits, "one decision, on disk", timed(decide, 100), NEXT)


def measure_in_browser(limits: Limits, address: str) -> None:
    """Time what a person sees: from opening the address, with empty caches, to the examples; and from key to key."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("no playwright: nothing measured in a browser")
        return
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium: nothing measured in a browser")
        return
    first, following = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(10):
            page = browser.new_context().new_page()
            page.add_init_script(_WATCH)
            page.goto(address)
            page.wait_for_function("() => window.shown")
            first.append(page.evaluate("() => window.shown") / 1000)
            for _ in range(3):
                page.wait_for_timeout(500)  # the pictures come
                following.append(page.evaluate(_TURN) / 1000)
            page.context.close()
        browser.close()
    tell(limits, "in chromium, first page", first, FIRST)
    tell(limits, "in chromium, next page", following, NEXT)


if __name__ == "__main__":
    main()
