"""Pictures of the report and of the review page, for docs/images: python pages/screenshots.py

Both are of the tutorial's run, which is made in a temporary folder; the review page shows its outliers. Chromium takes
the pages.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
REPORT, REVIEW = (1000, 1200), (1280, 760)
COLORS = 128  # of a palette: the pages have few, and files stay small


def make_images(folder: Path) -> None:
    """Make the images of the tutorial."""
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "images.md").read_text("utf-8"), re.DOTALL)[:2]:
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def follow_tutorial(folder: Path) -> Path:
    """Make the images of the tutorial, clean them as its command does, and return the run."""
    make_images(folder)
    command = [sys.executable, "-m", "unflip", "clean", "photos", "--out", "runs/first", "--quiet"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "runs" / "first"


def take(
    browser: "Browser", address: str, size: tuple[int, int], path: Path, *, wait_for: str, issue: str | None = None
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(address)
    page.wait_for_selector(wait_for)
    if issue is not None:
        page.select_option("#issue", issue)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=path)
    page.close()
    with Image.open(path) as picture:
        smaller = picture.convert("RGB").quantize(COLORS)
    smaller.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


@contextmanager
def open_browser() -> "Iterator[Browser]":
    """Start chromium."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_path is None:
        sys.exit("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def serve(run: Path) -> Iterator[str]:
    """Serve the review page of a run, and return its address."""
    command = [sys.executable, "-u", "-m", "unflip", "review", str(run), "--no-browser", "--reviewer", "you"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield next(word for line in server.stdout for word in line.split() if word.startswith("http"))
        server.terminate()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        run = follow_tutorial(Path(folder))
        take(browser, (run / "report.html").as_uri(), REPORT, IMAGES / "report.png", wait_for="main img")
        with serve(run) as address:
            take(browser, address, REVIEW, IMAGES / "review.png", wait_for="main img", issue="outlier")


if __name__ == "__main__":
    main()
