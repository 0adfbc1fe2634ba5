"""Pages of the documentation, run as a reader would: block after block, with what they show as output compared."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import Outcome

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: Path, section: str | None = None) -> list[tuple[str, str]]:
    """Return the language and the text of every block of a page, or of one of its sections."""
    text = page.read_text("utf-8")
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run_page(page: Path, cli: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> int:
    """Run a page's ``python`` and ``sh`` blocks in order, in the current folder; return how many outputs it shows.

    A ``text`` block is what the block before it printed, with ``...`` for any lines. Numbers may differ, since machines
    add in different orders.
    """
    names: dict[str, object] = {}
    printed, shown = "", 0
    for language, text in blocks(page):
        if language == "text":
            pattern = re.escape(masked(text)).replace(re.escape("\n...\n"), "\n(?:.*\n)*")
            assert re.fullmatch(pattern, masked(printed)), (page.name, printed)
            shown += 1
        elif language == "python":
            capsys.readouterr()
            exec(text, names)
            printed = capsys.readouterr().out
        elif language == "sh":
            printed = "".join(_run(line, cli) for line in text.splitlines())
    return shown


def masked(output: str) -> str:
    """Return an output with single spaces, and # for every number."""
    lines = (re.sub(r"\d[\d.,e-]*", "#", " ".join(line.split())) for line in output.splitlines())
    return "\n".join(lines)


def _run(line: str, cli: Callable[..., Outcome]) -> str:
    program, *arguments = shlex.split(line)
    if program != "unflip":
        return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout
    if arguments[0] == "review":
        serve_and_stop(arguments)
        return ""
    done = cli(*arguments)
    assert done.code == 0, (line, done.err)
    return done.out


def serve_and_stop(arguments: list[str]) -> None:
    """Start a review as a page says, without a browser, and end it as the page says."""
    command = [sys.executable, "-m", "unflip", *arguments, "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("review: http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
