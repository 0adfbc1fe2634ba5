"""The moving picture of the README, docs/images/demo.gif: python pages/moving_picture.py

`unflip clean`, the review page and `unflip apply` on the images of the tutorial, which are made in a temporary folder.
Chromium draws the terminal and takes the page; every line in it was printed by the command above it.
"""

import html
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from screenshots import IMAGES, make_images, open_browser, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZE = (960, 540)
SCALE = 0.75  # of the review page
COLORS = 160  # of the palette that all frames share
KEYS = 4  # letters that appear in one frame
Frame = tuple[Image.Image, int]  # milliseconds
TERMINAL = """<body style="margin:0;background:#16211f;color:#d7e3e0;font:15px/1.5 'DejaVu Sans Mono',monospace">
<pre style="margin:28px 32px;white-space:pre-wrap">{}</pre></body>"""


def shot(page: "Page", milliseconds: int) -> Frame:
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return picture, milliseconds


def terminal(page: "Page", folder: Path, *commands: str) -> Iterator[Frame]:
    """Yield frames in which commands are typed and print what they print."""
    shown = ""
    for command in commands:
        for end in [*range(1, len(command), KEYS), len(command)]:
            page.set_content(TERMINAL.format(f"{shown}<b>$ {html.escape(command[:end])}▌</b>"))
            yield shot(page, 60)
        arguments = [sys.executable, "-m", *command.split()]
        done = subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True)
        shown += f"<b>$ {html.escape(command)}</b>\n{html.escape(done.stdout)}\n"
        page.set_content(TERMINAL.format(shown))
        yield shot(page, 3000)


def review(browser: "Browser", run: Path) -> Iterator[Frame]:
    """Yield frames of the review page: a flower is removed, suggestions are accepted, one example is opened."""
    with serve(run) as address:
        width, height = (round(side / SCALE) for side in SIZE)
        page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=SCALE)
        page.goto(address)
        page.wait_for_selector("main img")
        page.wait_for_load_state("networkidle")
        yield shot(page, 2000)
        for key, milliseconds in (("r", 1200), ("a", 800), ("a", 800), ("a", 1200), ("Enter", 3000)):
            page.keyboard.press(key)
            page.wait_for_timeout(300)
            page.wait_for_load_state("networkidle")
            yield shot(page, milliseconds)
        page.close()


def save(frames: list[Frame], path: Path) -> None:
    """Write an animation whose frames share one palette, so that only what changes is stored."""
    strip = Image.new("RGB", (SIZE[0], SIZE[1] * 3))
    for place, number in enumerate((0, len(frames) // 2, -2)):
        strip.paste(frames[number][0], (0, SIZE[1] * place))
    palette = strip.quantize(COLORS)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture, _ in frames]
    durations = [milliseconds for _, milliseconds in frames]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0, optimize=True)
    print(f"{path}: {len(frames)} frames, {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        folder = Path(name)
        make_images(folder)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        frames = [
            *terminal(page, folder, "unflip clean photos --out runs/first"),
            *review(browser, folder / "runs" / "first"),
            *terminal(page, folder, "unflip apply runs/first --out photos-fixed"),
        ]
    save(frames, IMAGES / "demo.gif")


if __name__ == "__main__":
    main()
