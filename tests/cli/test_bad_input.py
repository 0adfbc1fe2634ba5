"""A table of bad input over every command: exit code 2, one line that names it, no traceback, nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from helpers import Outcome, blobs, quick_train, write_npz
from unflip.runs.folder import Run

Cli = Callable[..., Outcome]


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _array(content: Any) -> Callable[[Path], object]:
    return lambda path: np.save(path, np.asarray(content))


FILES: dict[str, Callable[[Path], object]] = {
    "good.npz": lambda path: write_npz(path, **blobs()),
    "unnamed.npy": _array(np.zeros((150, 6))),
    "labels.npy": _array(np.arange(150) % 3),
    "short.npy": _array([0, 1]),
    "flat.npy": _array(np.zeros((3, 3))),
    "rows.npy": _array(np.full((3, 3), 0.5)),
    "eta.npy": _array(np.full((150, 2), 0.5)),
    "eta-sum.npy": _array(np.full((150, 3), 0.5)),
    "labels.csv": _text("name,score\na,1\n"),
    "ragged.csv": _text("id,label\na,1\nb\n"),
    "binary.txt": _bytes(b"\xff\xfe\x00"),
    "empty.npz": _bytes(b""),
    "broken.json": _text("{"),
    "list.json": _text("[1]"),
    "strange.json": _text('{"zebra": "ape"}'),
    "broken.toml": _text("= 3"),
    "key.toml": _text("optimiser = 1\n"),
    "section.toml": _text("optimizer = 3\n"),
    "range.toml": _text("[optimizer]\nmomentum = 1.0\n"),
    "kind.toml": _text('epochs = "many"\n'),
    "binary.toml": _bytes(b"\xff\xfe"),
    "paths.csv": _text("path,label\nno/such.png,1\nnor/this.png,0\n"),
    "headless.csv": _text("a,b\n1,2\n"),
    "bad.parquet": _bytes(b"PAR1 is not enough"),
    "columns.parquet": lambda path: pyarrow.parquet.write_table(pa.table({"a": [1, 2]}), path),
    "folder/nothing.txt": _text("no image"),
}
TRAIN = ["train", "--data", "good.npz", "--out", "out"]
CORRUPT = ["corrupt", "--data", "good.npz", "--out", "new.npy", "--noise"]
BAD: dict[str, tuple[list[str], list[str]]] = {
    # the command line itself
    "no such command": (["tarin"], ["tarin"]),
    "train without a place": (["train", "--data", "good.npz"], ["--out"]),
    "train with a flag twice misspelt": ([*TRAIN, "--metod", "gce"], ["--metod"]),
    "train with an argument too many": ([*TRAIN, "more"], ["more"]),
    "list of what is no kind": (["list", "method"], ["unknown kind 'method'", "methods"]),
    "demo with an unknown flag": (["demo", "--fast"], ["--fast"]),
    "demo in a file": (["demo", "--out", "good.npz", "--quiet"], ["good.npz"]),
    # train: how it is kept from loss
    "no checkpoint kept": ([*TRAIN, "--keep", "0"], ["keep = 0", "greater than 0"]),
    "negative minutes": ([*TRAIN, "--checkpoint-minutes", "-1"], ["checkpoint_minutes = -1", "greater than or equal"]),
    "minutes that are no number": ([*TRAIN, "--checkpoint-minutes", "soon"], ["--checkpoint-minutes", "number"]),
    "minutes NaN": ([*TRAIN, "--checkpoint-minutes", "nan"], ["checkpoint_minutes"]),
    "unknown answer to NaN": ([*TRAIN, "--on-nan", "restart"], ["unknown on_nan 'restart'", "restore"]),
    "resume what is not there": (["train", "--out", "out", "--resume"], ["holds no run to resume"]),
    "resume another seed": (["train", "--out", "RUN", "--resume", "--seed", "9"], ["seed = 0, now it is 9"]),
    "resume fewer epochs": (["train", "--out", "RUN", "--resume", "--epochs", "1"], ["epochs = 2", "only raise that"]),
    "resume another method": (["train", "--out", "RUN", "--resume", "--method", "gce"], ["method = unflip"]),
    "a run in the way": (["train", "--data", "good.npz", "--out", "RUN"], ["already holds a run"]),
    "a file in the way": (["train", "--data", "good.npz", "--out", "labels.npy"], ["labels.npy: is a file"]),
    "resume and dry run": ([*TRAIN, "--resume", "--dry-run"], ["--dry-run", "leave --resume out"]),
    "dry run of an unknown method": ([*TRAIN, "--dry-run", "--method", "plcc"], ["unknown method 'plcc'"]),
    "dry run with a bad keep": ([*TRAIN, "--dry-run", "--keep", "-2"], ["keep = -2"]),
    # train: configuration
    "config that is not there": ([*TRAIN, "--config", "no.toml"], ["no.toml: No such file"]),
    "config that is a folder": ([*TRAIN, "--config", "folder"], ["folder: Is a directory"]),
    "config that is no TOML": ([*TRAIN, "--config", "broken.toml"], ["broken.toml: not TOML"]),
    "config that is no text": ([*TRAIN, "--config", "binary.toml"], ["binary.toml: not a text file"]),
    "config with an unknown key": ([*TRAIN, "--config", "key.toml"], ["'optimiser'"]),
    "config with a value for a section": ([*TRAIN, "--config", "section.toml"], ["optimizer = 3"]),
    "config out of range": ([*TRAIN, "--config", "range.toml"], ["optimizer.momentum = 1.0", "< 1.0"]),
    "config of another type": ([*TRAIN, "--config", "kind.toml"], ["epochs = 'many'", "integer"]),
    "unknown preset": ([*TRAIN, "--preset", "cifar11"], ["unknown preset 'cifar11'", "cifar10"]),
    "set without a key": ([*TRAIN, "--set", "=3"], ["write key=value"]),
    "set with an empty part": ([*TRAIN, "--set", "optimizer..lr=3"], ["write key=value"]),
    "set below a value": ([*TRAIN, "--set", "epochs.many=3"], ["epochs"]),
    "set a whole section": ([*TRAIN, "--set", "optimizer=3"], ["optimizer = 3"]),
    "set a learning rate NaN": ([*TRAIN, "--set", "optimizer.lr=nan"], ["optimizer.lr"]),
    "set a learning rate of infinity": ([*TRAIN, "--set", "optimizer.lr=inf"], ["optimizer.lr"]),
    "set a method that is a number": ([*TRAIN, "--set", "method=3"], ["method = 3", "must be a name"]),
    "set a batch of one": ([*TRAIN, "--set", "optimizer.batch_size=1"], ["optimizer.batch_size = 1"]),
    "set no hidden width": ([*TRAIN, "--set", "mlp.hidden=[0]"], ["mlp.hidden"]),
    "threads that are none": ([*TRAIN, "--threads", "0"], ["--threads"]),
    "half precision of a kind that is none": ([*TRAIN, "--set", "precision=float8"], ["unknown precision 'float8'"]),
    "float16 on the processor": ([*TRAIN, "--device", "cpu", "--set", "precision=float16"], ["needs a GPU"]),
    # train: data
    "arrays without labels": (["train", "--data", "unnamed.npy", "--out", "out"], ["unnamed.npy"]),
    "an empty archive": (["train", "--data", "empty.npz", "--out", "out"], ["empty.npz"]),
    "a folder without images": (["train", "--data", "folder", "--out", "out"], ["folder"]),
    "a manifest of images that are not there": (["train", "--data", "paths.csv", "--out", "out"], ["such.png"]),
    "a manifest without a column path": (["train", "--data", "headless.csv", "--out", "out"], ["headless.csv", "path"]),
    "a manifest that is no parquet": (["train", "--data", "bad.parquet", "--out", "out"], ["bad.parquet"]),
    "a parquet without a column path": (["train", "--data", "columns.parquet", "--out", "out"], ["columns.parquet"]),
    "labels without a column label": ([*TRAIN, "--labels", "labels.csv"], ["labels.csv", "no column 'label'"]),
    "labels with a short row": ([*TRAIN, "--labels", "ragged.csv"], ["ragged.csv, row 1"]),
    "labels that are no text": ([*TRAIN, "--labels", "binary.txt"], ["binary.txt: not a text file"]),
    "labels in a table": ([*TRAIN, "--labels", "flat.npy"], ["flat.npy", "3 labels for 150"]),
    "labels of no kind": ([*TRAIN, "--labels", "broken.json"], ["cannot read '.json'"]),
    "noise that is none": ([*TRAIN, "--noise", "snow:0.3"], ["snow"]),
    "noise without a level": ([*TRAIN, "--noise", "sym"], ["sym"]),
    # corrupt
    "corrupt without a recipe": (["corrupt", "--data", "good.npz", "--out", "new.npy"], ["--noise"]),
    "corrupt by nothing": ([*CORRUPT, ""], ["noise recipe ''"]),
    "corrupt by an unknown step": ([*CORRUPT, "pmd4:0.3"], ["pmd4"]),
    "corrupt by more than all": ([*CORRUPT, "sym:1.5"], ["1.5"]),
    "corrupt by less than nothing": ([*CORRUPT, "sym:-0.1"], ["-0.1"]),
    "corrupt by no number": ([*CORRUPT, "sym:lots"], ["lots"]),
    "corrupt by a dangling plus": ([*CORRUPT, "sym:0.1 +"], ["+"]),
    "corrupt into no kind": (["corrupt", "--data", "good.npz", "--noise", "sym:0.1", "--out", "a.xml"], ["xml"]),
    "corrupt over a file": (
        ["corrupt", "--data", "good.npz", "--noise", "sym:0.1", "--out", "labels.npy"],
        ["labels.npy", "--force"],
    ),
    "corrupt into a missing folder": (
        ["corrupt", "--data", "good.npz", "--noise", "sym:0.1", "--out", "no/a.npy"],
        ["no"],
    ),
    "corrupt no data": (["corrupt", "--data", "no.npz", "--noise", "sym:0.1", "--out", "a.npy"], ["no.npz"]),
    "corrupt over labels of another length": ([*CORRUPT, "sym:0.1", "--labels", "short.npy"], ["short.npy"]),
    "corrupt with a negative seed": ([*CORRUPT, "sym:0.1", "--seed", "-1"], ["--seed"]),
    "posteriors of another shape": ([*CORRUPT, "pmd1:0.3", "--posterior", "eta.npy"], ["posterior", "(150, 3)"]),
    "posteriors that sum to more": ([*CORRUPT, "pmd1:0.3", "--posterior", "eta-sum.npy"], ["posterior: row 0"]),
    "corrupt with posteriors of no kind": ([*CORRUPT, "pmd1:0.3", "--posterior", "cross-fitted"], ["cross-fitted"]),
    "a matrix of rows that are none": ([*CORRUPT, "matrix", "--matrix", "rows.npy"], ["transition matrix: row 0"]),
    "corrupt by a matrix without one": ([*CORRUPT, "matrix"], ["needs a transition matrix"]),
    "corrupt with a map that is no JSON": ([*CORRUPT, "asym:0.2", "--class-map", "broken.json"], ["broken.json"]),
    "corrupt with a map that is a list": ([*CORRUPT, "asym:0.2", "--class-map", "list.json"], ["list.json"]),
    "corrupt with a map of other classes": ([*CORRUPT, "asym:0.2", "--class-map", "strange.json"], ["zebra"]),
    "corrupt with an unknown map": ([*CORRUPT, "asym:0.2", "--class-map", "cifar"], ["cifar"]),
    # noise inspect
    "inspect without the truth": (["noise", "inspect", "labels.npy"], ["--clean"]),
    "inspect what is not there": (["noise", "inspect", "no.npy", "--clean", "good.npz"], ["no.npy"]),
    "inspect against what is not there": (["noise", "inspect", "labels.npy", "--clean", "no.npz"], ["no.npz"]),
    "inspect against an empty file": (["noise", "inspect", "labels.npy", "--clean", "empty.npz"], ["empty.npz"]),
    "inspect more labels than there are": (["noise", "inspect", "labels.npy", "--clean", "short.npy"], ["short.npy"]),
    "inspect a table": (["noise", "inspect", "flat.npy", "--clean", "good.npz"], ["flat.npy"]),
    "inspect the first none": (["noise", "inspect", "labels.npy", "--clean", "good.npz", "--take", "0"], ["--take"]),
    "inspect without a verb": (["noise", "look"], ["look"]),
    # predict
    "predict without data": (["predict", "RUN"], ["--data"]),
    "predict with what is no run": (["predict", "folder", "--data", "good.npz"], ["finished run"]),
    "predict with a broken model": (["predict", "BROKEN", "--data", "good.npz"], ["not a readable model"]),
    "predict data of another shape": (["predict", "RUN", "--data", "unnamed5.npz"], ["(5,)", "(6,)"]),
    "predict an unknown part": (["predict", "RUN", "--data", "good.npz", "--part", "tset"], ["unknown part 'tset'"]),
    "predict into an unknown kind": (["predict", "RUN", "--data", "good.npz", "--out", "p.xls"], ["'.xls'"]),
    "predict into a missing folder": (["predict", "RUN", "--data", "good.npz", "--out", "no/p.csv"], ["cannot write"]),
    "predict on an unknown device": (["predict", "RUN", "--data", "good.npz", "--device", "tpu"], ["tpu"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all the files, a finished run, and one whose model is broken."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "folder").mkdir()
    for name, write in FILES.items():
        write(folder / name)
    write_npz(folder / "unnamed5.npz", **blobs(columns=5))
    run = quick_train(folder / "good.npz", folder / "RUN", epochs=2)
    shutil.copytree(run.folder, folder / "BROKEN")
    (folder / "BROKEN" / "model.safetensors").write_bytes(b"\x00" * 100)
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


@pytest.mark.parametrize(("arguments", "fragments"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_with_code_two_and_nothing_is_written(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], fragments: list[str]
) -> None:
    monkeypatch.chdir(place)
    before = snapshot(place)
    done = cli(*arguments)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("unflip: ")
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    for fragment in fragments:
        assert fragment in done.err
    assert snapshot(place) == before


def test_the_table_is_long_enough() -> None:
    assert len(BAD) >= 60


# A malicious pickle wherever a file is read


class Bomb:
    """Unpickling it makes a file, which no reader of ours may do."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def pickled_npz(path: Path, bomb: Bomb) -> None:
    np.savez(path, allow_pickle=True, **blobs() | {"train": np.array([bomb], dtype=object)})


def pickle_bytes(bomb: Bomb) -> bytes:
    import pickle

    return pickle.dumps(bomb)


def cifar_folder(path: Path, bomb: Bomb) -> None:
    folder = path / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle_bytes(bomb))


BOMBS: dict[str, tuple[str, list[str]]] = {
    "features.npz": ("npz", ["train", "--data", "FILE", "--out", "out"]),
    "features.npy": ("npy", ["train", "--data", "FILE", "--out", "out"]),
    "archive.npz": ("raw", ["train", "--data", "FILE", "--out", "out"]),
    "labels.npy": ("npy", [*TRAIN, "--labels", "FILE"]),
    "raw.npy": ("raw", [*TRAIN, "--labels", "FILE"]),
    "labels.txt": ("raw", [*TRAIN, "--labels", "FILE"]),
    "posterior.npy": ("npy", [*CORRUPT, "pmd1:0.3", "--posterior", "FILE"]),
    "posterior.npz": ("npz", [*CORRUPT, "pmd1:0.3", "--posterior", "FILE"]),
    "matrix.npy": ("npy", [*CORRUPT, "matrix", "--matrix", "FILE"]),
    "map.json": ("raw", [*CORRUPT, "asym:0.3", "--class-map", "FILE"]),
    "clean.npz": ("npz", ["noise", "inspect", "labels.npy", "--clean", "FILE"]),
    "noisy.npy": ("npy", ["noise", "inspect", "FILE", "--clean", "good.npz"]),
    "manifest.parquet": ("raw", ["train", "--data", "FILE", "--out", "out"]),
    "manifest.csv": ("raw", ["train", "--data", "FILE", "--out", "out"]),
    "config.toml": ("raw", [*TRAIN, "--config", "FILE"]),
    "cifar": ("cifar", ["train", "--data", "FILE", "--out", "out"]),
    "run/model.safetensors": ("raw", ["predict", "run", "--data", "good.npz"]),
    "run/config.toml": ("raw", ["train", "--out", "run", "--resume"]),
    "run/checkpoints/epoch-00002.safetensors": ("raw", ["train", "--out", "run", "--resume", "--epochs", "3"]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_is_refused_and_not_run(
    cli: Cli, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, arguments = BOMBS[name]
    bomb, target = Bomb(tmp_path / "exploded"), tmp_path / name
    for needed in ("good.npz", "labels.npy"):
        if needed != name:
            shutil.copy(place / needed, tmp_path / needed)
    if name.startswith("run/"):
        shutil.copytree(place / "RUN", tmp_path / "run")
        for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
            checkpoint.unlink()
    if kind == "npy":
        np.save(target, np.array([bomb], dtype=object), allow_pickle=True)
    elif kind == "npz":
        pickled_npz(target, bomb)
    elif kind == "cifar":
        cifar_folder(target, bomb)
    else:
        target.write_bytes(pickle_bytes(bomb))
    monkeypatch.chdir(tmp_path)
    done = cli(*(name if argument == "FILE" else argument for argument in arguments))
    assert done.code == 2, done
    assert done.err.count("\n") == 1, done.err
    assert not bomb.mark.exists()
    assert not (tmp_path / "out").exists()


def test_the_bomb_would_explode(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([Bomb(tmp_path / "exploded")], dtype=object), allow_pickle=True)
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert (tmp_path / "exploded").exists()


def test_gaussians_are_read_without_pickle(tmp_path: Path) -> None:
    from unflip.errors import UnflipError

    path = tmp_path / "gaussians.safetensors"
    path.write_bytes(pickle_bytes(Bomb(tmp_path / "exploded")))
    with pytest.raises(UnflipError, match=r"gaussians\.safetensors"):
        _ = Run(tmp_path).gaussians
    assert not (tmp_path / "exploded").exists()


def test_a_result_that_is_no_json_is_one_line(place: Path, tmp_path: Path) -> None:
    from unflip.errors import UnflipError

    (tmp_path / "result.json").write_bytes(pickle_bytes(Bomb(tmp_path / "exploded")))
    with pytest.raises(UnflipError, match=r"result\.json"):
        Run(tmp_path).result  # noqa: B018
    assert json.loads((place / "RUN" / "result.json").read_text())["epochs"] == 2
