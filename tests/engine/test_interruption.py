"""SIGTERM and Ctrl-C end the step, save and say how to resume; two processes do not share a run folder."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import Outcome, assert_same_run, blobs, quick_train, write_npz
from unflip.errors import DivergedError, RunFolderError, Stopped
from unflip.files import Interruption
from unflip.methods.base import Batch, EpochOutputs, LabelStore, LossOutput, Method, Phase
from unflip.methods.plc import PLC
from unflip.runs.folder import Run

METHOD: dict[str, Any] = {
    "method": "plc",
    "epochs": 4,
    "settings": {"plc.warmup": 2, "plc.rounds": 2, "mlp.dropout": 0.2},
}
ARGUMENTS = ["--method", "plc", "--epochs", "4", "--set", "plc.warmup=2", "--set", "plc.rounds=2", "--set"]
ARGUMENTS += ["mlp.dropout=0.2", "--set", "optimizer.batch_size=32", "--set", "optimizer.lr=0.05"]
ARGUMENTS += ["--set", "mlp.hidden=[16]", "--device", "cpu"]


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """What began in the background ignores Ctrl-C, and so would these tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs()
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.fixture(scope="module")
def undisturbed(noisy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return quick_train(noisy, tmp_path_factory.mktemp("undisturbed") / "run", **METHOD)


def signal_at(monkeypatch: pytest.MonkeyPatch, hook: str, call: int, number: int) -> None:
    """Send this process a signal in the ``call``-th call of a method's hook, until ``monkeypatch.undo()``."""
    calls = 0
    plain = getattr(PLC, hook)

    def signaling(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), number)
        return plain(self, *args)

    monkeypatch.setattr(PLC, hook, signaling)


@pytest.mark.parametrize(
    ("hook", "call", "number"),
    [
        ("loss", 15, signal.SIGTERM),
        ("end_epoch", 2, signal.SIGINT),
        pytest.param("loss", 1, signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param("loss", 18, signal.SIGINT, marks=pytest.mark.soak),
        pytest.param("end_epoch", 2, signal.SIGTERM, marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_the_step_saves_and_says_how_to_resume(
    cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, noisy: Path, undisturbed: Run, tmp_path: Path,
    hook: str, call: int, number: int,
) -> None:  # fmt: skip
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as patch:
        signal_at(patch, hook, call, number)
        done = cli("train", "--data", noisy, "--out", tmp_path / "run", *ARGUMENTS, "--quiet")
    assert done.code == 128 + number
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert f"resume with: unflip train --out {tmp_path / 'run'} --resume" in done.err
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    newest = max(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert ("phase" in newest) == (hook == "loss")
    again = cli("train", "--out", tmp_path / "run", "--resume", "--quiet")
    assert again == Outcome(0, "", "")
    assert_same_run(undisturbed, Run(tmp_path / "run"))


def test_the_second_signal_does_not_wait() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGINT)
        assert interruption.signal is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_a_run_works_without_signals(noisy: Path, tmp_path: Path, undisturbed: Run) -> None:
    thread = threading.Thread(target=lambda: quick_train(noisy, tmp_path / "run", **METHOD))
    thread.start()
    thread.join()
    assert_same_run(undisturbed, Run(tmp_path / "run"))


def test_stopped_is_no_error_that_anybody_handles_by_mistake() -> None:
    assert not issubclass(Stopped, Exception)


HOLD = """
import sys, time
from pathlib import Path
from unflip.runs.folder import Claim, Run
with Claim(Run(Path(sys.argv[1])), force=True) as claim:
    claim.hold()
    print("claimed", flush=True)
    time.sleep(100)
"""


def test_a_folder_is_refused_while_another_process_has_it_and_free_when_that_was_killed(
    noisy: Path, tmp_path: Path
) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(RunFolderError, match="run: another process is using this run; wait until it has finished"):
            quick_train(noisy, tmp_path / "run", epochs=1)
        with pytest.raises(RunFolderError, match="another process is using this run"):
            quick_train(noisy, tmp_path / "run", epochs=1, force=True)
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".unflip-lock"]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert quick_train(noisy, tmp_path / "run", epochs=1).is_finished


class Diverging(Method):
    """Cross-entropy that becomes NaN in an epoch as long as the learning rate is above a limit."""

    records_probs = True
    where, limit = (2, 3), 0.02

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> list[Phase]:
        self.lr = 0.05 * self.context.lr_factor(epoch - 1)
        self.step = 0
        return [Phase(self.context.train)]

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        self.step += 1
        step = super().loss(batch, phase)
        if self.lr > self.limit and (batch.epoch, self.step) == self.where:
            return LossOutput({"loss": step.terms["loss"] * float("nan")}, step.logits)
        return step


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> type[Diverging]:
    monkeypatch.setattr("unflip.methods.base.Standard", Diverging)
    return Diverging


def test_divergence_stops_with_epoch_batch_and_hint(
    cli: Callable[..., Outcome], noisy: Path, tmp_path: Path, diverging: type[Diverging]
) -> None:
    settings = ["--epochs", "3", "--set", "optimizer.lr=0.05", "--set", "optimizer.batch_size=32", "--device", "cpu"]
    done = cli("train", "--data", noisy, "--out", tmp_path / "nan", "--method", "standard", *settings, "--quiet")
    assert done.code == 2
    assert done.err == (
        "unflip: the loss became nan in epoch 2, batch 3; try a smaller learning rate (--set optimizer.lr=...)\n"
    )


def test_a_checkpoint_never_holds_weights_that_are_lost(noisy: Path, tmp_path: Path) -> None:
    from unflip.engine.checkpoints import load_tree

    with pytest.raises(DivergedError):
        quick_train(noisy, tmp_path / "run", method="standard", epochs=3, checkpoint_minutes=0,
                    settings={"optimizer.lr": 1e30, "data.val_fraction": 0.0, "select": "last"})  # fmt: skip
    for path in (tmp_path / "run").glob("checkpoints/*"):
        (state,) = load_tree(path)["networks"]
        assert all(bool(value.isfinite().all()) for value in state.values())
