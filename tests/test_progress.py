"""What a run says while it trains."""

import io
import sys

import pytest

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


def test_lines_are_one_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as reporter:
        reporter.start("gce", 5, 1)
        reporter.step(1.5)
        reporter.epoch(METRICS)
    assert capsys.readouterr().out == "gce epoch 2/5 loss 0.750  val 50.0%  test 87.5%  changed 12\n"


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
        def start(self, title: str, epochs: int, first: int) -> None:
            told.append(f"{title} {epochs}")

        def step(self, progress: float) -> None:
            told.append(progress)

    assert list(Told().track("ab", "reading", 2)) == ["a", "b"]
    assert told == []
    assert list(Told().track("abc", "reading", 3)) == ["a", "b", "c"]
    assert told == ["reading 3", 1, 2, 3]
