"""The command line: through its real entry points where that matters, within this process where it does not."""

import csv
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import unflip
from helpers import QUICK, Outcome, blobs, quick_train, spawn, spawn_python, write_npz
from unflip.cli.app import COMMANDS, build_app
from unflip.data import datasets
from unflip.methods import methods
from unflip.nn import networks
from unflip.presets import preset_names
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]
SCRIPT = Path(sys.executable).parent / "unflip"
SETTINGS = [part for key, value in QUICK.items() for part in ("--set", f"{key}={json.dumps(value)}")]


@pytest.fixture(scope="module")
def run(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return quick_train(features, tmp_path_factory.mktemp("run") / "run", epochs=5)


def is_one_line_error(done: Outcome, code: int = 2) -> None:
    assert done.code == code, done.err
    assert done.err.startswith("unflip: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    assert "Traceback" not in done.err
    assert done.out == ""


# Real entry points


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX")
@pytest.mark.parametrize(
    "streams", ["| true; exit ${PIPESTATUS[0]}", pytest.param("<&- >&- 2>&-", marks=pytest.mark.soak)]
)
def test_a_reader_that_goes_away_and_closed_streams_stop_no_command(
    streams: str, features: Path, tmp_path: Path
) -> None:
    clean = f"{sys.executable} -m unflip clean {features} --method standard --epochs 1 --out {tmp_path}/run"
    assert spawn("bash", "-c", f"{clean} {streams}") == Outcome(0, "", "")
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output_is_an_error(unbuffered: str) -> None:
    done = spawn("bash", "-c", f"{sys.executable} -m unflip list checks > /dev/full", PYTHONUNBUFFERED=unbuffered)
    is_one_line_error(done)
    assert done.err == "unflip: standard output: No space left on device\n"


def test_help_lists_every_command_by_its_docstring_without_importing_it() -> None:
    code = (
        "import sys\n"
        "from unflip.cli.app import build_app\n"
        "build_app(())(['--help'], standalone_mode=False)\n"
        "sys.exit(bool({'pydantic', 'unflip.cli.clean'} & set(sys.modules)))\n"
    )
    done = spawn_python("-c", code)
    assert done.code == 0, done.err
    whole = CliRunner().invoke(build_app(), ["--help"])
    assert done.out.partition("Commands")[2] == whole.stdout.partition("Commands")[2]
    assert all(f"│ {name} " in done.out for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"], ["list"], []])
def test_what_needs_no_torch_imports_none(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['unflip', *{arguments!r}]\n"
        "from unflip.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    heavy = {'torch', 'numpy', 'sklearn', 'lightning_fabric', 'pyarrow'} & set(sys.modules)\n"
        "    sys.exit(f'imported {sorted(heavy)}' if heavy else 0)\n"
    )
    done = spawn_python("-c", code)
    assert done.code == 0, done.err


def test_one_process_on_a_cpu_imports_nothing_for_several() -> None:
    code = (
        "import sys\n"
        "import unflip.api.clean, unflip.api.train\n"
        "from unflip.engine.distributed import Distributed\n"
        "processes = Distributed('cpu')\n"
        "assert (processes.count, processes.rank, processes.is_first, processes.scaler) == (1, 0, True, None)\n"
        "slow = {'lightning_fabric', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(slow)}' if slow else 0)\n"
    )
    done = spawn_python("-c", code)
    assert done.code == 0, done.err


def test_the_console_script_trains_and_predicts(features: Path, tmp_path: Path) -> None:
    words = ["train", "--data", features, "--out", tmp_path / "run", "--epochs", 5, *SETTINGS]
    done = spawn(SCRIPT, *words, MPLCONFIGDIR="/dev/null/matplotlib")  # as without a home
    assert done.code == 0, done.err
    assert done.err == ""
    assert "<svg" in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert done.out.startswith("unflip on ")  # no line per epoch
    assert "selected epoch" in done.out
    assert "test accuracy" in done.out
    predicted = spawn(SCRIPT, "--verbose", "predict", tmp_path / "run", "--data", features)
    assert predicted.code == 0, predicted.err
    assert f"{features}: read as 'arrays'" in predicted.err  # and nothing of it in the table
    rows = list(csv.DictReader(io.StringIO(predicted.out)))
    right = np.mean([int(row["label"]) for row in rows] == np.load(features)["test_labels"])
    assert right == pytest.approx(Run(tmp_path / "run").result["test_accuracy"]["selected"])


def test_an_error_through_the_real_entry_point_is_one_line() -> None:
    done = spawn_python("-m", "unflip", "paper", "table", "9")
    is_one_line_error(done)
    assert "unknown table '9'" in done.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    import subprocess

    with os.fdopen(write, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "unflip", "list"], stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert b"Traceback" not in done.stderr


# Within this process


def test_the_version_is_printed(cli: Cli) -> None:
    assert cli("--version") == Outcome(0, f"unflip {unflip.__version__}\n", "")


@pytest.mark.parametrize("command", ["demo", "train", "predict", "corrupt", "list"])
def test_every_command_has_its_help(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert done.code == 0
    assert "--help" in done.out
    assert done.err == ""


@pytest.mark.parametrize("kind", ["methods", "networks", "data", "presets"])
def test_list_has_a_line_for_each(cli: Cli, kind: str) -> None:
    registries = {"methods": methods, "networks": networks, "data": datasets}
    names = preset_names() if kind == "presets" else registries[kind].names()
    done = cli("list", kind)
    assert done.code == 0
    title, *lines = done.out.splitlines()
    assert title.strip() == kind
    if kind == "methods":
        assert "such as gce-m" in lines.pop()
    assert [line.split()[0] for line in lines] == names
    assert all(len(line.split()) > 2 for line in lines)
    assert title in cli("list").out


def test_quiet_says_nothing(cli: Cli, features: Path, tmp_path: Path) -> None:
    done = cli("train", "--data", features, "--out", tmp_path / "run", "--epochs", 1, "--quiet", *SETTINGS)
    assert done == Outcome(0, "", "")


def test_every_flag_reaches_the_run(cli: Cli, features: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.load(features)["train_labels"][:120])
    done = cli(
        "train", "--data", features, "--out", tmp_path / "run", "--labels", tmp_path / "labels.npy", "--limit", 100,
        "--method", "sl", "--network", "mlp", "--epochs", 2, "--seed", 5, "--select", "last", "--device", "cpu",
        "--threads", 1, "--set", "sl.alpha=0.5", *SETTINGS,
    )  # fmt: skip
    assert done.code == 0, done.err
    result = Run(tmp_path / "run").result
    assert [result[key] for key in ("method", "epochs", "seed", "selection")] == ["sl", 2, 5, "last"]
    assert len(pyarrow.parquet.read_table(tmp_path / "run" / "labels.parquet")) == 100
    import tomllib

    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["sl"]["alpha"] == 0.5
    assert config["data"]["limit"] == 100


def test_a_selection_that_uses_the_truth_says_so(cli: Cli, features: Path, tmp_path: Path) -> None:
    done = cli(
        "train", "--data", features, "--out", tmp_path / "run", "--epochs", 1, "--select", "best-test", *SETTINGS
    )
    assert "best-test (uses the truth: test labels)" in done.out


def test_resume_and_force_do_what_they_say(cli: Cli, features: Path, tmp_path: Path) -> None:
    arguments = ["train", "--data", features, "--out", tmp_path / "run", *SETTINGS]
    assert cli(*arguments, "--epochs", 1).code == 0
    longer = cli("train", "--out", tmp_path / "run", "--resume", "--epochs", 2)
    assert longer.code == 0, longer.err
    assert len(Run(tmp_path / "run").metrics) == 2
    assert "2 epochs" in longer.out
    assert cli(*arguments, "--epochs", 1, "--force").code == 0
    assert len(Run(tmp_path / "run").metrics) == 1


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_go_to_a_file(cli: Cli, run: Run, features: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"predictions{suffix}"
    assert cli("predict", run.folder, "--data", features, "--out", out) == Outcome(0, "", "")
    expected = unflip.predict(run, features).table()
    if suffix == ".parquet":
        assert pyarrow.parquet.read_table(out).equals(expected)
    else:
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
        assert list(rows[0]) == expected.column_names
        assert [row["label"] for row in rows] == expected["label"].to_pylist()
        assert [float(row["p_1"]) for row in rows] == pytest.approx(expected["p_1"].to_pylist())


def test_predictions_equal_the_accuracy_of_the_run(cli: Cli, run: Run, features: Path, tmp_path: Path) -> None:
    cli("predict", run.folder, "--data", features, "--out", tmp_path / "p.parquet", "--part", "test")
    labels = pyarrow.parquet.read_table(tmp_path / "p.parquet")["label"].to_pylist()
    right = np.mean(np.array(labels).astype(int) == np.load(features)["test_labels"])
    assert right == pytest.approx(run.result["test_accuracy"]["selected"])


# Bad input

BadCase = tuple[Callable[[Path], list[Any]], list[str]]


def data_with(**changes: Any) -> Callable[[Path], list[Any]]:
    """Arguments for a feature file with other arrays in it."""

    def arguments(folder: Path) -> list[Any]:
        content = {key: value for key, value in (blobs() | changes).items() if value is not None}
        return ["--data", write_npz(folder / "bad.npz", **content)]

    return arguments


def one_wrong(name: str, row: int, value: float) -> Callable[[Path], list[Any]]:
    array = blobs()[name].astype(np.float64)
    array[row] = value
    return data_with(**{name: array})


def data_file(name: str, content: bytes) -> Callable[[Path], list[Any]]:
    def arguments(folder: Path) -> list[Any]:
        (folder / name).write_bytes(content)
        return ["--data", folder / name]

    return arguments


def label_file(name: str, content: Any, *more: Any) -> Callable[[Path], list[Any]]:
    """Arguments for the good data with a label file of one's own."""

    def arguments(folder: Path) -> list[Any]:
        if isinstance(content, str):
            (folder / name).write_text(content)
        elif content is not None:
            np.save(folder / name, content, allow_pickle=True)
        return ["--data", write_npz(folder / "good.npz", **blobs()), "--labels", folder / name, *more]

    return arguments


def good(*more: Any) -> Callable[[Path], list[Any]]:
    return lambda folder: ["--data", write_npz(folder / "good.npz", **blobs()), *more]


def config_file(text: str) -> Callable[[Path], list[Any]]:
    def arguments(folder: Path) -> list[Any]:
        (folder / "config.toml").write_text(text)
        return good("--config", folder / "config.toml")(folder)

    return arguments


BAD: dict[str, BadCase] = {
    # files
    "missing data": (lambda folder: ["--data", folder / "no.npz"], ["no.npz", "No such file or folder"]),
    "misspelled data set": (lambda folder: ["--data", "digit"], ["No such file or folder: digit"]),
    "no data": (lambda folder: [], ["'data.path' is missing", "--data"]),
    "garbage npz": (data_file("a.npz", b"garbage"), ["a.npz: not a readable .npz file"]),
    "empty npz": (data_file("a.npz", b""), ["a.npz: not a readable .npz file"]),
    "garbage npy": (data_file("a.npy", b"garbage"), ["a.npy: not a readable .npy file"]),
    "unknown kind of file": (data_file("a.mat", b""), ["cannot read '.mat'"]),
    "missing labels": (label_file("no.npy", None), ["no.npy: No such file"]),
    "pickle as labels": (label_file("a.npy", np.array([{}, None])), ["a.npy: not a readable .npy file"]),
    "pickle as data": (data_with(train=np.array([[{}]] * 150)), ["bad.npz: not a readable .npz file"]),
    "missing config": (good("--config", "/no/config.toml"), ["/no/config.toml: No such file"]),
    "config that is no TOML": (config_file("epochs = "), ["config.toml: not TOML"]),
    # lengths
    "train labels of another length": (data_with(train_labels=np.zeros(149)), ["shape (149,) for 150 examples"]),
    "test labels of another length": (data_with(test_labels=np.zeros(59)), ["shape (59,) for 60 examples"]),
    "label file too short": (
        label_file("a.npy", np.arange(100) % 3),
        ["a.npy: 100 labels for 150 examples", "--limit 100"],
    ),
    "label file too long": (label_file("a.npy", np.arange(151) % 3), ["151 labels for 150 examples"]),
    "label file shorter than take": (
        label_file("a.npy", np.arange(100) % 3, "--limit", 120),
        ["100 labels for 120 examples"],
    ),
    "take beyond the data": (good("--limit", 151), ["limit = 151", "150"]),
    # labels
    "label infinite": (one_wrong("train_labels", 8, np.inf), ["row 8: label inf"]),
    "label not an integer": (one_wrong("train_labels", 9, 0.5), ["row 9: label 0.5"]),
    "label out of range": (one_wrong("test_labels", 3, 17), ["row 3: label 17"]),
    "label out of the declared range": (good("--set", "data.classes=2"), ["label 2", "from 0 to 1"]),
    "label in text not an integer": (label_file("a.txt", "1.5\n" * 150), ["a.txt, row 0: label 1.5"]),
    "unknown class name": (
        label_file("a.txt", "ape\nbee\nbeee\n" * 50, "--set", 'data.classes=["ape", "bee"]'),
        ["row 2: unknown class 'beee'", "'bee'"],
    ),
    "one class": (data_with(train_labels=np.zeros(150, int)), ["1 class among 150 labels"]),
    # features
    "NaN in train": (one_wrong("train", 11, np.nan), ["'train', row 11: nan"]),
    "infinity in train": (one_wrong("train", 12, np.inf), ["'train', row 12: inf"]),
    "NaN in test": (one_wrong("test", 13, np.nan), ["'test', row 13: nan"]),
    "one dimension": (data_with(train=np.zeros(150)), ["shape (150,)"]),
    "other shape in test": (data_with(test=np.zeros((60, 2))), ["(2,)", "(6,)"]),
    # names and choices
    "unknown method": (good("--method", "gcee"), ["unknown method 'gcee'", "did you mean 'gce'"]),
    "unknown network": (good("--network", "mpl"), ["unknown network 'mpl'", "did you mean 'mlp'"]),
    "unknown key": (good("--set", "optimizer.lrr=1"), ["'optimizer.lrr'", "did you mean 'optimizer.lr'"]),
    "unknown key in a file": (config_file("epoch = 3"), ["'epoch'", "did you mean 'epochs'"]),
    "unknown section": (good("--set", "optim.lr=1"), ["unknown configuration key 'optim'", "optimizer"]),
    "section of another method": (
        good("--method", "sl", "--set", "gce.q=0.5"),
        ["section 'gce' is not used; method 'sl'"],
    ),
    "unknown preset": (good("--preset", "feature"), ["unknown preset 'feature'", "did you mean 'features'"]),
    "unknown choice": (good("--set", "select=nosy-val"), ["'nosy-val'", "did you mean 'noisy-val'"]),
    "unknown choice of a flag": (good("--select", "nosy-val"), ["nosy-val", "noisy-val"]),
    "unknown device": (good("--device", "gpu"), ["gpu", "cpu"]),
    "value out of range": (good("--set", "data.val_fraction=1.5"), ["data.val_fraction = 1.5", "less than 1"]),
    "no epochs": (good("--epochs", 0), ["epochs = 0", "greater than 0"]),
    "negative seed": (good("--seed", -1), ["seed = -1"]),
    "setting without a value": (good("--set", "epochs"), ["write key=value"]),
    "selection without the truth": (good("--method", "plc", "--select", "clean-val"), ["needs clean labels"]),
    "selection without validation": (good("--select", "noisy-val"), ["needs validation examples", "data.val_fraction"]),
    "unknown flag": (good("--epoch", 3), ["--epoch"]),
    "not a number": (good("--epochs", "many"), ["--epochs", "integer"]),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "fragments"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_with_code_two_and_nothing_is_written(
    cli: Cli, tmp_path: Path, arguments: Callable[[Path], list[Any]], fragments: list[str]
) -> None:
    typed = arguments(tmp_path)
    done = cli("train", "--out", tmp_path / "out", *typed)
    is_one_line_error(done)
    for fragment in fragments:
        assert fragment in done.err
    assert not (tmp_path / "out").exists()


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_a_folder_that_holds_a_run_is_left_alone(cli: Cli, run: Run, features: Path) -> None:
    before = snapshot(run.folder)
    done = cli("train", "--data", features, "--out", run.folder)
    is_one_line_error(done)
    assert "already contains a run" in done.err
    assert "--resume" in done.err
    assert "--force" in done.err
    assert snapshot(run.folder) == before


def test_resuming_another_configuration_is_refused(cli: Cli, run: Run) -> None:
    before = snapshot(run.folder)
    done = cli("train", "--out", run.folder, "--resume", "--set", "optimizer.lr=0.5")
    is_one_line_error(done)
    assert "optimizer.lr = 0.05, now it is 0.5" in done.err
    assert snapshot(run.folder) == before


def test_resuming_where_nothing_is_is_refused(cli: Cli, features: Path, tmp_path: Path) -> None:
    done = cli("train", "--data", features, "--out", tmp_path / "out", "--resume")
    is_one_line_error(done)
    assert "no run to resume" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_a_place_where_nothing_can_be_written_is_refused(cli: Cli, features: Path, tmp_path: Path, below: str) -> None:
    """A file in the way: unlike permissions, it stops the superuser too."""
    (tmp_path / "file").write_text("mine")
    done = cli("train", "--data", features, "--out", tmp_path / "file" / below, *SETTINGS)
    is_one_line_error(done)
    assert str(tmp_path / "file") in done.err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_permission_is_refused(cli: Cli, features: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    is_one_line_error(cli("train", "--data", features, "--out", tmp_path / "out", *SETTINGS))


def test_a_terminated_command_leaves_no_partial_files(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    done = cli("corrupt", "--data", "digits", "--noise", "sym:0.1", "--out", tmp_path / "labels.npy", "--quiet")
    signal.signal(signal.SIGTERM, before)
    assert (done.code, done.err) == (143, "unflip: stopped\n")
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_one_line(cli: Cli, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    done = cli("train", "--data", features, "--out", tmp_path / "out", "--quiet", *SETTINGS)
    is_one_line_error(done)
    assert "No space left on device" in done.err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".unflip-lock"]


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["predict", "RUN", "--data", "FEATURES", "--out", "a.json"], ["cannot write '.json'", ".csv or .parquet"]),
        (["predict", "RUN", "--data", "FEATURES", "--part", "tset"], ["unknown part 'tset'"]),
        (["predict", "RUN", "--data", "no.npz"], ["No such file"]),
        (["predict", "nowhere", "--data", "FEATURES"], ["is this the folder of a finished run"]),
        (["predict", "RUN", "--data", "FEATURES", "--out", "no/folder/p.csv"], ["no/folder does not exist"]),
        (["predict", "RUN"], ["--data"]),
        (["train"], ["--out"]),
        (["trian"], ["trian"]),
        (["list", "method"], ["method"]),
    ],
)
def test_other_commands_fail_in_one_line_too(
    cli: Cli, run: Run, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str],
    fragments: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    places = {"RUN": str(run.folder), "FEATURES": str(features)}
    done = cli(*(places.get(argument, argument) for argument in arguments))
    is_one_line_error(done)
    for fragment in fragments:
        assert fragment in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_says_so(cli: Cli, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unflip.engine.run.Session.write_results", interrupt)
    done = cli("train", "--data", features, "--out", tmp_path / "run", "--quiet", *SETTINGS)
    assert done == Outcome(130, "", "unflip: stopped\n")


def test_only_the_first_of_several_processes_speaks(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    done = cli("train", "--data", tmp_path / "no.npz", "--out", tmp_path / "run")
    assert done == Outcome(2, "", "")


INTERRUPT = """
import sys
module = sys.argv.pop(1)
class Interrupt:
    def find_spec(self, name, *rest):
        if name == module:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from unflip.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "pydantic", "unflip.cli.app", "torch", "pyarrow", "unflip.api.clean"])
def test_an_interrupt_while_the_command_is_loading_is_one_line(tmp_path: Path, module: str) -> None:
    done = spawn_python("-c", INTERRUPT, module, "clean", "digits", "--out", tmp_path / "run", "--dry-run")
    assert done == (130, "", "unflip: stopped\n")
