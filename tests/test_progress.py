"""What a run says while it trains."""

import io
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers import quick_train
from unflip.progress import Bar, Lines, Reporter, make_reporter, summary

METRICS = {
    "epoch": 2,
    "loss": {"labeled": 0.25, "unlabeled": 0.5},
    "val_accuracy": 0.5,
    "test_accuracy": 0.875,
    "label_accuracy": None,
    "changed": 12,
}


def test_a_line_holds_what_people_look_at_first() -> None:
    assert summary(METRICS) == "loss 0.750  val 50.0%  test 87.5%  changed 12"


def test_what_is_not_known_is_left_out() -> None:
    assert summary({"loss": {"loss": 1.0}, "val_accuracy": None, "changed": 0}) == "loss 1.000"
    assert summary({"loss": {"loss": 1.0}, "label_accuracy": 0.9}) == "loss 1.000  labels 90.0%"


def test_a_line_comes_at_most_twice_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("unflip.progress.time.monotonic", lambda: now)
    with Lines() as reporter:
        reporter.start("gce", 5, 1)
        now = 120.0
        reporter.epoch(METRICS | {"epoch": 1})
        now = 140.0
        reporter.epoch(METRICS)
        now = 150.0
        reporter.epoch(METRICS | {"epoch": 3})
    line = "gce epoch 2/5 loss 0.750  val 50.0%  test 87.5%  changed 12, 60 s left\n"
    assert capsys.readouterr().out == line


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with make_reporter(quiet=True) as reporter:
        reporter.start("gce", 5, 1)
        reporter.step(0.5)
        reporter.epoch(METRICS)
    assert type(reporter) is Reporter
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(make_reporter(quiet=False), Lines)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    with make_reporter(quiet=False) as reporter:
        assert isinstance(reporter, Bar)
        reporter.start("gce", 5, 2)
        reporter.step(1.5)
        reporter.epoch(METRICS)
    shown = screen.getvalue()
    assert "gce" in shown
    assert "val 50.0%" in shown


def test_what_is_done_beforehand_is_passed_on_and_shown_if_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unflip.progress._MANY", 3)
    told: list[float | str] = []

    class Told(Reporter):
        def start(self, title: str, total: int, first: int) -> None:
            told.append(f"{title} {total}")

        def step(self, progress: float) -> None:
            told.append(progress)

    assert list(Told().track("ab", "reading", 2)) == ["a", "b"]
    assert told == []
    assert list(Told().track("abc", "reading", 3)) == ["a", "b", "c"]
    assert told == ["reading 3", 1, 2, 3]


def test_steps_are_logged(caplog: pytest.LogCaptureFixture, features: Path, tmp_path: Path) -> None:
    with caplog.at_level("INFO", "unflip"):
        quick_train(features, tmp_path / "run", epochs=2, quiet=True)
    assert any(f"{features}: read as 'arrays': 150 train, 60 test" in message for message in caplog.messages)
    assert sum(message.startswith("epoch 2 of 2: loss ") for message in caplog.messages) == 1


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_gets_a_bar_where_it_can_show_one(
    widgets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(make_reporter(quiet=None)) is Reporter
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    if widgets:
        (tmp_path / "ipywidgets.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    elif find_spec("ipywidgets"):
        pytest.skip("ipywidgets is installed")
    kind = Bar if widgets else Lines
    assert type(make_reporter(quiet=False)) is type(make_reporter(quiet=None)) is kind
    assert type(make_reporter(quiet=True)) is Reporter
