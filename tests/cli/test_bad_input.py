"""A table of bad input over every command: exit code 2, one line that names it, no traceback, nothing touched."""

import json
import os
import pickle
import re
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import typer
from safetensors import safe_open
from safetensors.torch import save_file

import tiny_backbone
from helpers import Outcome, blobs, quick_train, result_line, write_npz, write_results
from pictures import write_picture
from unflip.cli.app import build_app
from unflip.runs.folder import Run
from unflip.runs.model_file import load_model

Cli = Callable[..., Outcome]
Content = Callable[[Path], object]


def _text(text: str) -> Content:
    return lambda path: path.write_text(text, "utf-8")


def _bytes(content: bytes) -> Content:
    return lambda path: path.write_bytes(content)


def _array(content: Any) -> Content:
    return lambda path: np.save(path, np.asarray(content))


def _blobs(**changes: Any) -> Content:
    return lambda path: write_npz(path, **blobs() | changes)


def _half(write: Content) -> Content:
    """The first half of a good file."""

    def cut(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut


def _with(value: float) -> np.ndarray[Any, Any]:
    features = blobs()["train"].copy()
    features[7, 2] = value
    return features


def _results(*changes: dict[str, Any]) -> Content:
    lines = [result_line({"method": "plc", "seed": i}, 0.5) | change for i, change in enumerate(changes)]
    return lambda path: write_results(path, lines)


GRID = '[config]\ndata = "good.npz"\nepochs = 1\n[axes]\nseed = [0]\n'
FILES: dict[str, Content] = {
    # feature arrays
    "good.npz": _blobs(),
    "five.npz": lambda path: write_npz(path, **blobs(columns=5)),
    "half.npz": _half(_blobs()),
    "empty.npz": _bytes(b""),
    "nan.npz": _blobs(train=_with(np.nan)),
    "infinite.npz": _blobs(train=_with(np.inf)),
    "flat.npz": _blobs(train=np.zeros(150, np.float32)),
    "words.npz": _blobs(train=np.full((150, 6), "word")),
    "none.npz": _blobs(train=np.zeros((0, 6), np.float32), train_labels=np.zeros(0, int)),
    "trainless.npz": lambda path: write_npz(path, features=np.zeros((3, 3))),
    "unlabeled.npz": lambda path: write_npz(path, train=np.zeros((150, 6), np.float32)),
    "one-class.npz": _blobs(train_labels=np.zeros(150, int)),
    "huge.npz": _blobs(train_labels=np.full(150, 10**15)),
    "short.npz": _blobs(train_labels=np.zeros(3, int)),
    "unnamed.npy": _array(np.zeros((150, 6))),
    "half.npy": _half(_array(np.zeros((150, 6)))),
    # labels
    "labels.npy": _array(np.arange(150) % 3),
    "short.npy": _array([0, 1]),
    "scalar.npy": _array(3),
    "flat.npy": _array(np.zeros((3, 3))),
    "nan.npy": _array(np.full(150, np.nan)),
    "half.txt": _text("0.5\n" * 150),
    "names.txt": _text("ape\nbee\n" * 75),
    "empty.txt": _text(""),
    "binary.txt": _bytes(b"\xff\xfe\x00"),
    "labels.csv": _text("name,score\na,1\n"),
    "crowd.csv": _text("id,ann,ben\na,ape,ape\nb,bee,\nc,ape,bee\n"),
    "both.csv": _text("id,annotator,label\na,ann,ape\na,ben,ape\nb,ann,bee\na,ben,bee\n"),
    "object.json": _text("{}"),
    "ragged.csv": _text("id,label\na,1\nb\n"),
    "latin.csv": _bytes("label\ncafé\n".encode("latin-1")),
    # what recipes need
    "rows.npy": _array(np.full((3, 3), 0.5)),
    "wide.npy": _array(np.full((3, 2), 0.5)),
    "four.npy": _array(np.eye(4)),
    "minus.npy": _array([[2.0, -1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    "nans.npy": _array(np.full((3, 3), np.nan)),
    "eta.npy": _array(np.full((150, 2), 0.5)),
    "eta-sum.npy": _array(np.full((150, 3), 0.5)),
    "eta-nan.npy": _array(np.full((150, 3), np.nan)),
    "eta-int.npy": _array(np.ones((150, 3), int)),
    "several.npz": lambda path: write_npz(path, a=np.zeros(3), b=np.zeros(3)),
    "broken.json": _text("{"),
    "list.json": _text("[1]"),
    "strange.json": _text('{"zebra": "ape"}'),
    "itself.json": _text('{"0": "0"}'),
    "binary.json": _bytes(b"\xff\xfe"),
    # configurations
    "broken.toml": _text("= 3"),
    "key.toml": _text("optim = 1\n"),
    "section.toml": _text("optimizer = 3\n"),
    "range.toml": _text("[optimizer]\nmomentum = 1.0\n"),
    "kind.toml": _text('epochs = "many"\n'),
    "binary.toml": _bytes(b"\xff\xfe"),
    # tables and manifests
    "table.csv": _text("x,y,town,label\n" + "1,2,Rome,a\n2,1,Oslo,b\n" * 10),
    "plain.csv": _text("x,y,label\n" + "1,2,a\n2,1,b\n" * 10),
    "unlabeled.csv": _text("x,y\n1,2\n2,1\n"),
    "one-class.csv": _text("x,label\n1,a\n2,a\n"),
    "infinite.csv": _text("x,y,label\n" + "1,inf,a\n2,1,b\n" * 10),
    "rows.csv": _text("x,label\n"),
    "empty.csv": _text(""),
    "twice.csv": _text("x,x,label\n1,2,a\n2,1,b\n"),
    "paths.csv": _text("path,label\nno/such.png,1\nnor/this.png,0\n"),
    "headless.csv": _text("a,b\n1,2\n3,5\n4,1\n"),
    "bad.parquet": _bytes(b"PAR1 is not enough"),
    "columns.parquet": lambda path: pyarrow.parquet.write_table(pa.table({"a": [1, 2]}), path),
    "half.parquet": _half(lambda path: pyarrow.parquet.write_table(pa.table({"x": [1.0, 2.0], "label": [0, 1]}), path)),
    # labels that people decided
    "reviewed.csv": _text("index,label\n900,0\n"),
    "reviewed-class.csv": _text("index,label\n3,zebra\n"),
    "reviewed-twice.csv": _text("index,label\n3,0\n3,1\n"),
    "reviewed-path.csv": _text("path,label\nc/9.png,a\n"),
    "reviewed-columns.csv": _text("a,b\n1,2\n"),
    "reviewed.jsonl": _text('{"index": 3\n'),
    # images
    "photos/a/0.png": lambda path: write_picture(path, 0, (20, 20)),
    "photos/b/1.png": lambda path: write_picture(path, 1, (20, 20)),
    "lonely/a/0.png": lambda path: write_picture(path, 0, (20, 20)),
    "loose/0.png": lambda path: write_picture(path, 0, (20, 20)),
    "torn/a/0.png": _half(lambda path: write_picture(path, 0, (20, 20))),
    "torn/b/1.png": lambda path: write_picture(path, 1, (20, 20)),
    "blank/a/0.png": _bytes(b""),
    "blank/b/1.png": _text("no image"),
    "parts/train/a/0.png": lambda path: write_picture(path, 0, (20, 20)),
    "parts/train/b/1.png": lambda path: write_picture(path, 1, (20, 20)),
    "parts/test/c/2.png": lambda path: write_picture(path, 1, (20, 20)),
    "odd/a/\udcff.png": lambda path: path.write_bytes(b""),
    "odd/b/1.png": lambda path: write_picture(path, 1, (20, 20)),
    "odd\udcff.npz": _blobs(),
    "folder/nothing.txt": _text("no image"),
    "arrays/features.npy": _array(np.zeros((3, 3))),
    # weights
    "empty.pth": _bytes(b""),
    "words.pth": _text("no weights"),
    "lone.pth": lambda path: torch.save(torch.zeros(3), path),
    "module.pth": lambda path: torch.save(torch.nn.Linear(2, 2), path),
    "pickle.pth": lambda path: path.write_bytes(pickle.dumps({"weight": 3})),
    "half.pth": _half(lambda path: torch.save({"weight": torch.zeros(3, 1, 1, 1)}, path)),
    "words.safetensors": _text("no weights"),
    "shape.safetensors": lambda path: save_file({"weight": torch.zeros(3)}, path),
    "other.safetensors": lambda path: save_file({"bias": torch.zeros(3)}, path),
    # grids
    "good.toml": _text(GRID),
    "grid-key.toml": _text("epochs = 3\n[axes]\nseed = [0]\n"),
    "grid-axes.toml": _text('[config]\ndata = "good.npz"\n'),
    "grid-empty.toml": _text('[config]\ndata = "good.npz"\n[axes]\nseed = []\n'),
    "grid-scalar.toml": _text('[config]\ndata = "good.npz"\n[axes]\nseed = 3\n'),
    "grid-list.toml": _text("axes = [1]\n"),
    "grid-block.toml": _text("[grid]\na = 1\n"),
    "grid-method.toml": _text('[config]\ndata = "good.npz"\n[axes]\nmethod = ["plcc"]\n'),
    "grid-section.toml": _text('[config]\ndata = "good.npz"\nmethod = "sl"\n[axes]\n"gce.q" = [0.5]\n'),
    "grid-range.toml": _text('[config]\ndata = "good.npz"\n[axes]\nepochs = [0]\n'),
    "grid-data.toml": _text('[config]\ndata = "no.npz"\n[axes]\nseed = [0]\n'),
    "grid-dataless.toml": _text("[axes]\nseed = [0]\n"),
    "grid-preset.toml": _text('[config]\npreset = "cifar11"\ndata = "good.npz"\n[axes]\nseed = [0]\n'),
    # results
    "results.jsonl": _results({}, {}),
    "seeds.jsonl": _results({"seed": 0}, {"seed": 0, "axes": {"method": "plc", "seed": 0, "x": 1}}),
    "mixed.jsonl": _results({"epochs": 3}, {"epochs": 4}),
    "broken.jsonl": _text('{"cell": 3\n'),
    "list.jsonl": _text("[1, 2]\n"),
    "keys.jsonl": _text('{"cell": "a"}\n'),
    "axes.jsonl": _results({"axes": 3}),
    "binary.jsonl": _bytes(b"\xff\xfe\n"),
    # folders
    "strange/my.txt": _text("mine"),
}
"""All bad files, and the good ones beside which they are bad."""


# Damaged runs: RUN/WHAT/HOW stands for a copy of the run in which a file is damaged in some way


def _missing(path: Path) -> None:
    path.unlink()


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xffgarbage" * 20)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _json(content: Any) -> Content:
    return lambda path: path.write_text(json.dumps(content))


def _older_model(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        description = json.loads(file.metadata()["model"])
    save_file(tensors, path, {"model": json.dumps(description | {"format": 1})})


def _unknown_network(path: Path) -> None:
    replace(load_model(path), network="mpl").save(path)


def _columnless(path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"index": range(150)}), path)


def _sqlite(*statements: str) -> Content:
    def write(path: Path) -> None:
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    return write


DAMAGES: dict[str, Content] = {
    "missing": _missing,
    "garbage": _garbage,
    "empty": _empty,
    "cut": _cut,
    "directory": _directory,
    "format1": _json({"format": 1}),
    "format99": _json({"format": 99, "unflip": "9.9"}),
    "a-list": _json([1, 2]),
    "a-number": _json(3),
    "an-object": _json({}),
    "older": _older_model,
    "unknown-network": _unknown_network,
    "columnless": _columnless,
    "without-accuracies": _text('{"epoch": 1}\n'),
    "not-toml": _text("= 3"),
    "unknown-key": _text("optim = 3\n"),
    "latin": _bytes("# café\n".encode("latin-1")),
    "foreign": _sqlite("CREATE TABLE mine (a TEXT)"),
    "of-another-run": _sqlite(
        "CREATE TABLE about (fingerprint TEXT NOT NULL)",
        "INSERT INTO about VALUES ('another')",
        "PRAGMA application_id = 1970169452",
        "PRAGMA user_version = 1",
    ),
    "newer": _sqlite("CREATE TABLE about (a TEXT)", "PRAGMA application_id = 1970169452", "PRAGMA user_version = 9"),
}


def damaged(place: Path, name: str) -> Path:
    """Make the copy that ``RUN/WHAT/HOW`` stands for, and return it."""
    of, what, how = name.split("/")
    run = Path(shutil.copytree(place / of, place / name.replace("/", "-")))
    if how == "missing" and what == "checkpoints":
        shutil.rmtree(run / what)
    else:
        DAMAGES[how](run / what)
    return run


OUT = ["--out", "out"]
TRAIN = ["--data", "good.npz", *OUT]
CORRUPT = ["--data", "good.npz", "--out", "new.npy", "--noise"]
EMBED = ["photos", "--out", "new.npz", "--backbone", "tiny"]
Row = tuple[list[str], list[str]]
"""What is typed after the command, and what the answer must name."""

BAD: dict[str, dict[str, Row]] = {
    "": {
        "no such command": (["tarin"], ["tarin"]),
        "no such flag": (["--verison"], ["--verison"]),
        "a flag before the command": (["--data", "good.npz", "train"], ["--data"]),
    },
    "train": {
        # the command line
        "no place": (["--data", "good.npz"], ["--out"]),
        "no data": (OUT, ["--data"]),
        "a misspelled flag": ([*TRAIN, "--metod", "gce"], ["--metod"]),
        "an argument too many": ([*TRAIN, "more"], ["more"]),
        "a flag without its value": ([*TRAIN, "--method"], ["--method"]),
        "epochs without end": ([*TRAIN, "--epochs", str(10**26)], ["epochs = 1000", "99999"]),
        "a seed of too many digits": ([*TRAIN, "--seed", str(10**26)], ["seed = 1000", "less than"]),
        "data whose name is no text": (["--data", "odd\udcff.npz", *OUT], ["odd\\udcff.npz", "not UTF-8"]),
        "a place whose name is no text": (["--data", "good.npz", "--out", "odd\udcff"], ["--out odd\\udcff"]),
        # how it is kept from loss
        "no checkpoint kept": ([*TRAIN, "--keep-checkpoints", "0"], ["keep_checkpoints = 0", "greater than 0"]),
        "negative minutes": ([*TRAIN, "--checkpoint-minutes", "-1"], ["checkpoint_minutes = -1", "greater than"]),
        "minutes that are no number": ([*TRAIN, "--checkpoint-minutes", "soon"], ["--checkpoint-minutes", "number"]),
        "minutes NaN": ([*TRAIN, "--checkpoint-minutes", "nan"], ["checkpoint_minutes"]),
        "resume what is not there": ([*OUT, "--resume"], ["no run to resume"]),
        "resume a file": (["--out", "good.npz", "--resume"], ["good.npz"]),
        "resume another seed": (["--out", "RUN", "--resume", "--seed", "9"], ["seed = 0, now it is 9"]),
        "resume fewer epochs": (["--out", "RUN", "--resume", "--epochs", "1"], ["epochs = 2", "only raise that"]),
        "resume another method": (["--out", "RUN", "--resume", "--method", "gce"], ["method = unflip"]),
        "resume an older format": (["--out", "RUN/run.json/format1", "--resume"], ["format 1"]),
        "resume a newer format": (["--out", "RUN/run.json/format99", "--resume"], ["format 99"]),
        "resume a run without its marker": (["--out", "RUN/run.json/missing", "--resume"], ["RUN-run.json-missing"]),
        "resume a run with a broken marker": (["--out", "RUN/run.json/garbage", "--resume"], ["run.json"]),
        "resume without a configuration": (["--out", "RUN/config.toml/missing", "--resume"], ["no run to resume"]),
        "resume a broken configuration": (["--out", "RUN/config.toml/not-toml", "--resume"], ["config.toml: not TOML"]),
        "resume a strange configuration": (["--out", "RUN/config.toml/unknown-key", "--resume"], ["'optim'"]),
        "resume a configuration in Latin-1": (["--out", "RUN/config.toml/latin", "--resume"], ["config.toml"]),
        "a run in the way": (["--data", "good.npz", "--out", "RUN"], ["already contains a run"]),
        "a file in the way": (["--data", "good.npz", "--out", "labels.npy"], ["labels.npy", "is a file"]),
        "a file above it": (["--data", "good.npz", "--out", "labels.npy/run"], ["labels.npy"]),
        "resume and dry run": ([*TRAIN, "--resume", "--dry-run"], ["--dry-run", "cannot be combined"]),
        "dry run of an unknown method": ([*TRAIN, "--dry-run", "--method", "plcc"], ["unknown method 'plcc'"]),
        "dry run with a bad keep": ([*TRAIN, "--dry-run", "--keep-checkpoints", "-2"], ["keep_checkpoints = -2"]),
        "dry run of missing data": (["--data", "no.npz", *OUT, "--dry-run"], ["no.npz"]),
        # configuration
        "config that is not there": ([*TRAIN, "--config", "no.toml"], ["no.toml: No such file"]),
        "config that is a folder": ([*TRAIN, "--config", "folder"], ["folder: Is a directory"]),
        "config that is no TOML": ([*TRAIN, "--config", "broken.toml"], ["broken.toml: not TOML"]),
        "config that is no text": ([*TRAIN, "--config", "binary.toml"], ["binary.toml: not TOML"]),
        "config with an unknown key": ([*TRAIN, "--config", "key.toml"], ["'optim'"]),
        "config with a value for a section": ([*TRAIN, "--config", "section.toml"], ["optimizer = 3"]),
        "config out of range": ([*TRAIN, "--config", "range.toml"], ["optimizer.momentum = 1.0", "less than 1"]),
        "config of another type": ([*TRAIN, "--config", "kind.toml"], ["epochs = 'many'", "whole number"]),
        "unknown preset": ([*TRAIN, "--preset", "cifar11"], ["unknown preset 'cifar11'", "cifar10"]),
        "unknown method": ([*TRAIN, "--method", "plcc"], ["unknown method 'plcc'", "plc"]),
        "calibration of an unknown method": ([*TRAIN, "--method", "plcc-m"], ["plcc"]),
        "unknown network": ([*TRAIN, "--network", "mpl"], ["unknown network 'mpl'", "mlp"]),
        "network for images": ([*TRAIN, "--network", "preact_resnet18"], ["PreActResNet18", "--network mlp"]),
        "unknown rule": ([*TRAIN, "--select", "best"], ["unknown select 'best'", "best-test"]),
        "unknown device": ([*TRAIN, "--device", "tpu"], ["tpu", "cpu"]),
        "set without a key": ([*TRAIN, "--set", "=3"], ["write key=value"]),
        "set without a value": ([*TRAIN, "--set", "epochs"], ["write key=value"]),
        "set with an empty part": ([*TRAIN, "--set", "optimizer..lr=3"], ["write key=value"]),
        "set below a value": ([*TRAIN, "--set", "epochs.many=3"], ["epochs"]),
        "set a whole section": ([*TRAIN, "--set", "optimizer=3"], ["optimizer = 3"]),
        "set a learning rate NaN": ([*TRAIN, "--set", "optimizer.lr=nan"], ["optimizer.lr"]),
        "set a learning rate of infinity": ([*TRAIN, "--set", "optimizer.lr=inf"], ["optimizer.lr"]),
        "set a negative learning rate": ([*TRAIN, "--set", "optimizer.lr=-1"], ["optimizer.lr"]),
        "set a method that is a number": ([*TRAIN, "--set", "method=3"], ["method = 3", "must be a name"]),
        "set a batch of one": ([*TRAIN, "--set", "optimizer.batch_size=1"], ["optimizer.batch_size = 1"]),
        "set no hidden width": ([*TRAIN, "--set", "mlp.hidden=[0]"], ["mlp.hidden"]),
        "set the section of another method": ([*TRAIN, "--method", "sl", "--set", "gce.q=0.5"], ["gce"]),
        "threads that are none": ([*TRAIN, "--threads", "0"], ["threads = 0"]),
        "half precision of a kind that is none": ([*TRAIN, "--set", "precision=float8"], ["precision 'float8'"]),
        "float16 on the processor": ([*TRAIN, "--device", "cpu", "--set", "precision=float16"], ["needs a GPU"]),
        "epochs below zero": ([*TRAIN, "--epochs", "-1"], ["epochs = -1"]),
        "a negative seed": ([*TRAIN, "--seed", "-1"], ["seed = -1"]),
        "a seed that is no number": ([*TRAIN, "--seed", "one"], ["--seed", "integer"]),
        "all held out": ([*TRAIN, "--set", "data.val_fraction=1"], ["data.val_fraction = 1"]),
        # data
        "data that is not there": (["--data", "no.npz", *OUT], ["no.npz"]),
        "data of no kind": (["--data", "binary.txt", *OUT], ["binary.txt"]),
        "arrays without labels": (["--data", "unnamed.npy", *OUT], ["unnamed.npy"]),
        "an archive without labels": (["--data", "unlabeled.npz", *OUT], ["unlabeled.npz"]),
        "an archive without train": (["--data", "trainless.npz", *OUT], ["trainless.npz", "train"]),
        "an empty archive": (["--data", "empty.npz", *OUT], ["empty.npz"]),
        "half an archive": (["--data", "half.npz", *OUT], ["half.npz"]),
        "half an array": (["--data", "half.npy", *OUT], ["half.npy"]),
        "NaN among the features": (["--data", "nan.npz", *OUT], ["nan.npz", "row 7"]),
        "infinity among the features": (["--data", "infinite.npz", *OUT], ["infinite.npz", "row 7"]),
        "features of one dimension": (["--data", "flat.npz", *OUT], ["flat.npz"]),
        "features that are words": (["--data", "words.npz", *OUT], ["words.npz"]),
        "no examples": (["--data", "none.npz", *OUT], ["none.npz"]),
        "one class": (["--data", "one-class.npz", *OUT], ["one-class.npz", "at least two"]),
        "labels beyond all bounds": (["--data", "huge.npz", *OUT], ["huge.npz"]),
        "labels of another length": (["--data", "short.npz", *OUT], ["short.npz"]),
        "a folder of arrays without train": (["--data", "arrays", *OUT], ["arrays", "train"]),
        "a folder without images": (["--data", "folder", *OUT], ["folder"]),
        "torn images": (["--data", "torn", "--network", "mlp", *OUT], ["0.png"]),
        "a manifest of images that are not there": (["--data", "paths.csv", "--network", "mlp", *OUT], ["such.png"]),
        "a manifest without a column path": (["--data", "headless.csv", *OUT], ["headless.csv", "no column 'label'"]),
        "a manifest that is no parquet": (["--data", "bad.parquet", *OUT], ["bad.parquet"]),
        "half a parquet": (["--data", "half.parquet", *OUT], ["half.parquet"]),
        "a parquet without a column path": (["--data", "columns.parquet", *OUT], ["columns.parquet"]),
        "a table with text among numbers": (["--data", "table.csv", "--numeric", "town", *OUT], ["table.csv", "town"]),
        "a table in Latin-1": (["--data", "latin.csv", *OUT], ["latin.csv"]),
        "a table with infinity": (["--data", "infinite.csv", *OUT], ["infinite.csv"]),
        "an empty table": (["--data", "empty.csv", *OUT], ["empty.csv"]),
        "a table of a header": (["--data", "rows.csv", *OUT], ["rows.csv"]),
        "a table with a column twice": (["--data", "twice.csv", *OUT], ["twice.csv", "x"]),
        "labels without a column label": ([*TRAIN, "--labels", "labels.csv"], ["labels.csv", "no column 'label'"]),
        "labels with a short row": ([*TRAIN, "--labels", "ragged.csv"], ["ragged.csv", "Expected 2 columns, got 1"]),
        "labels that are no text": ([*TRAIN, "--labels", "binary.txt"], ["binary.txt: not a text file"]),
        "labels in a table": ([*TRAIN, "--labels", "flat.npy"], ["flat.npy"]),
        "labels in a scalar": ([*TRAIN, "--labels", "scalar.npy"], ["scalar.npy"]),
        "labels that are NaN": ([*TRAIN, "--labels", "nan.npy"], ["nan.npy", "nan"]),
        "labels that are halves": ([*TRAIN, "--labels", "half.txt"], ["half.txt", "0.5"]),
        "labels in an empty file": ([*TRAIN, "--labels", "empty.txt"], ["empty.txt"]),
        "labels in a folder": ([*TRAIN, "--labels", "folder"], ["folder"]),
        "labels of no kind": ([*TRAIN, "--labels", "broken.json"], ["cannot read '.json'"]),
        "take none": ([*TRAIN, "--limit", "0"], ["data.limit = 0"]),
        "take more than there is": ([*TRAIN, "--limit", "1000000000000"], ["limit = 1000000000000"]),
        "noise that is none": ([*TRAIN, "--noise", "snow:0.3"], ["snow"]),
        "noise without a level": ([*TRAIN, "--noise", "sym"], ["sym"]),
        "noise without a class map": ([*TRAIN, "--noise", "asym:0.3"], ["asym:0.3", "--set noise.class_map="]),
        "noise without superclasses": ([*TRAIN, "--noise", "asym-pairs:0.3"], ["--set noise.class_map=cifar100"]),
        "noise without a matrix": ([*TRAIN, "--noise", "matrix"], ["--set noise.matrix="]),
        "reviewed labels of unknown items": ([*TRAIN, "--reviewed", "reviewed.csv"], ["reviewed.csv", "900"]),
        "reviewed labels of no kind": ([*TRAIN, "--reviewed", "broken.json"], ["broken.json"]),
        "reviewed labels twice": ([*TRAIN, "--reviewed", "reviewed-twice.csv"], ["reviewed-twice.csv"]),
        "a folder of other files": (["--data", "good.npz", "--out", "strange"], ["strange", "my.txt"]),
        "set a learning rate beyond all": ([*TRAIN, "--set", "optimizer.lr=1e999"], ["optimizer.lr"]),
        "a name with a null byte": (["--data", "good\0.npz", *OUT], ["good\\x00.npz"]),
    },
    "predict": {
        "no data": (["RUN"], ["--data"]),
        "no run": (["--data", "good.npz"], ["RUN"]),
        "a folder that is not there": (["nowhere", "--data", "good.npz"], ["nowhere"]),
        "a file for a run": (["good.npz", "--data", "good.npz"], ["good.npz"]),
        "what is no run": (["folder", "--data", "good.npz"], ["finished run"]),
        "no model": (["RUN/model.safetensors/missing", "--data", "good.npz"], ["model.safetensors"]),
        "a broken model": (["RUN/model.safetensors/garbage", "--data", "good.npz"], ["not a readable model"]),
        "half a model": (["RUN/model.safetensors/cut", "--data", "good.npz"], ["not a readable model"]),
        "an empty model": (["RUN/model.safetensors/empty", "--data", "good.npz"], ["not a readable model"]),
        "a folder for a model": (["RUN/model.safetensors/directory", "--data", "good.npz"], ["model.safetensors"]),
        "a model of an older format": (["RUN/model.safetensors/older", "--data", "good.npz"], ["format 1"]),
        "a model of an unknown network": (["RUN/model.safetensors/unknown-network", "--data", "good.npz"], ["mpl"]),
        "a run of a newer format": (["RUN/run.json/format99", "--data", "good.npz"], ["format 99"]),
        "a run with a broken marker": (["RUN/run.json/garbage", "--data", "good.npz"], ["run.json"]),
        "data that is not there": (["RUN", "--data", "no.npz"], ["no.npz"]),
        "half the data": (["RUN", "--data", "half.npz"], ["half.npz"]),
        "NaN in the data": (["RUN", "--data", "nan.npz", "--part", "train"], ["nan.npz", "row 7"]),
        "data of another shape": (["RUN", "--data", "five.npz"], ["(5,)", "(6,)"]),
        "images for features": (["RUN", "--data", "photos"], ["photos", "6 features"]),
        "an unknown part": (["RUN", "--data", "good.npz", "--part", "tset"], ["unknown part 'tset'"]),
        "an unknown kind of file": (["RUN", "--data", "good.npz", "--out", "p.xls"], ["'.xls'"]),
        "a missing folder": (["RUN", "--data", "good.npz", "--out", "no/p.csv"], ["no/p.csv"]),
        "a folder for a file": (["RUN", "--data", "good.npz", "--out", "strange.csv"], ["strange.csv"]),
        "an unknown device": (["RUN", "--data", "good.npz", "--device", "tpu"], ["tpu"]),
        "an argument too many": (["RUN", "RUN", "--data", "good.npz"], ["RUN"]),
        "an empty table": (["RUN", "--data", "empty.csv"], ["empty.csv"]),
    },
    "clean": {
        "no place": (["good.npz"], ["--out"]),
        "no data": (OUT, ["data"]),
        "an unknown flag": (["good.npz", *OUT, "--fast"], ["--fast"]),
        "nothing there": (["no", *OUT], ["no"]),
        "half an archive": (["half.npz", *OUT], ["half.npz"]),
        "an archive without labels": (["unlabeled.npz", *OUT], ["unlabeled.npz"]),
        "NaN among the features": (["nan.npz", "--quiet", *OUT], ["nan.npz", "row 7"]),
        "one class": (["one-class.npz", *OUT], ["one-class.npz", "at least two"]),
        "images without class folders": (["loose", *OUT], ["loose", "label"]),
        "images of one class": (["lonely", *OUT, "--backbone", "tiny"], ["lonely", "at least two"]),
        "torn images": (["torn", *OUT, "--backbone", "tiny"], ["torn", "0.png"]),
        "an image whose name is no text": (["odd", *OUT, "--backbone", "tiny"], ["a/\\udcff.png", "not UTF-8"]),
        "fewer epochs than warm up": (
            ["good.npz", *OUT, "--method", "plc", "--epochs", "1"],
            ["plc.warmup = 5 is not below epochs = 1", "try --epochs 15"],
        ),
        "a table without labels": (["unlabeled.csv", *OUT], ["unlabeled.csv", "--label-column"]),
        "a label column that is not there": (["plain.csv", *OUT, "--label-column", "kind"], ["'kind'"]),
        "text among numbers": (["table.csv", "--numeric", "town", *OUT], ["town", "not a number"]),
        "a column to ignore that is not there": (["plain.csv", *OUT, "--ignore", "z"], ["'z'"]),
        "all columns ignored": (["plain.csv", *OUT, "--ignore", "x", "--ignore", "y"], ["plain.csv"]),
        "one class in a table": (["one-class.csv", *OUT], ["one-class.csv", "at least two"]),
        "an empty table": (["empty.csv", *OUT], ["empty.csv"]),
        "a run in the way": (["good.npz", "--out", "RUN"], ["RUN: already contains a run", "--force"]),
        "a file in the way": (["good.npz", "--out", "plain.csv"], ["plain.csv", "is a file"]),
        "reviewed labels of unknown items": (["good.npz", *OUT, "--reviewed", "reviewed.csv"], ["reviewed.csv", "900"]),
        "reviewed labels of no class": (["good.npz", *OUT, "--reviewed", "reviewed-class.csv"], ["zebra"]),
        "reviewed labels of unknown images": (
            ["photos", *OUT, "--backbone", "tiny", "--reviewed", "reviewed-path.csv"],
            ["reviewed-path.csv", "c/9.png"],
        ),
        "reviewed labels without columns": (["good.npz", *OUT, "--reviewed", "reviewed-columns.csv"], ["'label'"]),
        "reviewed labels that are no JSON": (["good.npz", *OUT, "--reviewed", "reviewed.jsonl"], ["reviewed.jsonl"]),
        "reviewed labels that are not there": (["good.npz", *OUT, "--reviewed", "no.csv"], ["no.csv"]),
        "an unknown method": (["good.npz", *OUT, "--method", "unflp"], ["unknown method 'unflp'"]),
        "an unknown backbone": (["photos", *OUT, "--backbone", "resnet"], ["unknown backbone 'resnet'"]),
        "weights that are not there": (["photos", *OUT, "--backbone", "tiny", "--weights", "no.pth"], ["no.pth"]),
        "weights of a pickle": (["photos", *OUT, "--backbone", "tiny", "--weights", "pickle.pth"], ["pickle.pth"]),
        "an unknown device": (["good.npz", *OUT, "--device", "tpu"], ["tpu"]),
        "no epochs": (["good.npz", *OUT, "--epochs", "0"], ["epochs = 0"]),
        "a negative seed": (["good.npz", *OUT, "--seed", "-1"], ["seed = -1"]),
        "an image size of nothing": (["photos", *OUT, "--image-size", "0"], ["data.image_size = 0"]),
    },
    "embed": {
        "no place": (["photos"], ["--out"]),
        "no images": (["--out", "new.npz"], ["data"]),
        "nothing there": (["no", "--out", "new.npz"], ["no"]),
        "features": (["good.npz", "--out", "new.npz", "--backbone", "tiny"], ["good.npz", "is for images"]),
        "a folder without images": (["folder", "--out", "new.npz", "--backbone", "tiny"], ["folder"]),
        "torn images": (["torn", "--out", "new.npz", "--backbone", "tiny"], ["torn", "0.png"]),
        "an unknown kind of file": (["photos", "--out", "new.csv", "--backbone", "tiny"], ["new.csv", "use .npz"]),
        "a missing folder": (["photos", "--out", "no/new.npz", "--backbone", "tiny"], ["no/new.npz"]),
        "a folder for a file": (["photos", "--out", "strange.npz", "--backbone", "tiny"], ["strange.npz"]),
        "a file in the way": (["photos", "--out", "good.npz", "--backbone", "tiny"], ["good.npz", "--force"]),
        "an unknown backbone": (["photos", "--out", "new.npz", "--backbone", "tinny"], ["unknown backbone 'tinny'"]),
        "an unknown device": ([*EMBED, "--device", "tpu"], ["tpu"]),
        "another size than it takes": (
            ["photos", "--out", "new.npz", "--backbone", "fixed", "--image-size", "32"],
            ["--image-size 32", "24"],
        ),
        "a size that is no number": ([*EMBED, "--image-size", "big"], ["--image-size", "integer"]),
        "an unknown way to scale": ([*EMBED, "--resample", "cubic"], ["resample", "bicubic"]),
        "a batch of nothing": ([*EMBED, "--batch-size", "0"], ["batch_size = 0"]),
        "a size to crop from of nothing": ([*EMBED, "--image-resize", "0"], ["data.image_resize = 0"]),
        "weights that are not there": ([*EMBED, "--weights", "no.pth"], ["no.pth: No such file"]),
        "weights that are a folder": ([*EMBED, "--weights", "folder"], ["folder: Is a directory"]),
        "weights in an empty file": ([*EMBED, "--weights", "empty.pth"], ["empty.pth"]),
        "weights that are words": ([*EMBED, "--weights", "words.pth"], ["words.pth"]),
        "weights that are a pickle": ([*EMBED, "--weights", "pickle.pth"], ["pickle.pth", ".safetensors"]),
        "weights that are a module": ([*EMBED, "--weights", "module.pth"], ["module.pth", ".safetensors"]),
        "weights that are one tensor": ([*EMBED, "--weights", "lone.pth"], ["lone.pth", "no named tensors"]),
        "half the weights": ([*EMBED, "--weights", "half.pth"], ["half.pth"]),
        "safetensors that are none": ([*EMBED, "--weights", "words.safetensors"], ["words.safetensors"]),
        "weights of another shape": ([*EMBED, "--weights", "shape.safetensors"], ["shape.safetensors", "mismatch"]),
        "weights of another network": ([*EMBED, "--weights", "other.safetensors"], ["other.safetensors", "'weight'"]),
        "a file for a folder": (["photos", "--out", "good.npz/x.npz", "--backbone", "tiny"], ["good.npz/x.npz"]),
    },
    "corrupt": {
        "a seed of too many digits": ([*CORRUPT, "sym:0.3", "--seed", str(10**26)], ["seed = 1000", "less than"]),
        "no recipe": (["--data", "good.npz", "--out", "new.npy"], ["--noise"]),
        "no data": (["--noise", "sym:0.1", "--out", "new.npy"], ["--data"]),
        "no place": (["--data", "good.npz", "--noise", "sym:0.1"], ["--out"]),
        "nothing": ([*CORRUPT, ""], ["noise recipe ''"]),
        "an unknown step": ([*CORRUPT, "pmd4:0.3"], ["pmd4"]),
        "more than all": ([*CORRUPT, "sym:1.5"], ["1.5"]),
        "all": ([*CORRUPT, "sym:1"], ["1"]),
        "less than nothing": ([*CORRUPT, "sym:-0.1"], ["-0.1"]),
        "NaN": ([*CORRUPT, "sym:nan"], ["nan"]),
        "a huge number": ([*CORRUPT, "sym:1e999"], ["1e999"]),
        "no number": ([*CORRUPT, "sym:lots"], ["lots"]),
        "a dangling plus": ([*CORRUPT, "sym:0.1 +"], ["+"]),
        "pmd on noisy labels": ([*CORRUPT, "sym:0.3 + pmd1:0.3"], ["pmd1:0.3"]),
        "a matrix with a level": ([*CORRUPT, "matrix:0.3"], ["matrix:0.3"]),
        "an unknown kind of file": (["--data", "good.npz", "--noise", "sym:0.1", "--out", "a.xml"], ["xml"]),
        "over a file": (["--data", "good.npz", "--noise", "sym:0.1", "--out", "labels.npy"], ["labels.npy", "--force"]),
        "a missing folder": (["--data", "good.npz", "--noise", "sym:0.1", "--out", "no/a.npy"], ["no/a.npy"]),
        "data that is not there": (["--data", "no.npz", "--noise", "sym:0.1", "--out", "a.npy"], ["no.npz"]),
        "half the data": (["--data", "half.npz", "--noise", "sym:0.1", "--out", "a.npy"], ["half.npz"]),
        "data without labels": (["--data", "unlabeled.npz", "--noise", "sym:0.1", "--out", "a.npy"], ["unlabeled"]),
        "one class": (["--data", "one-class.npz", "--noise", "sym:0.1", "--out", "a.npy"], ["one-class.npz"]),
        "labels of another length": ([*CORRUPT, "sym:0.1", "--labels", "short.npy"], ["short.npy"]),
        "labels that are NaN": ([*CORRUPT, "sym:0.1", "--labels", "nan.npy"], ["nan.npy"]),
        "a negative seed": ([*CORRUPT, "sym:0.1", "--seed", "-1"], ["seed = -1"]),
        "take none": ([*CORRUPT, "sym:0.1", "--limit", "0"], ["data.limit = 0"]),
        "take more than there is": ([*CORRUPT, "sym:0.1", "--limit", "151"], ["151"]),
        "an unknown device": ([*CORRUPT, "sym:0.1", "--device", "tpu"], ["tpu"]),
        "posteriors of another shape": ([*CORRUPT, "pmd1:0.3", "--posterior", "eta.npy"], ["posterior", "(150, 3)"]),
        "posteriors that sum to more": ([*CORRUPT, "pmd1:0.3", "--posterior", "eta-sum.npy"], ["posterior: row 0"]),
        "posteriors that are NaN": ([*CORRUPT, "pmd1:0.3", "--posterior", "eta-nan.npy"], ["posterior: row 0", "nan"]),
        "posteriors that are whole": ([*CORRUPT, "pmd1:0.3", "--posterior", "eta-int.npy"], ["eta-int.npy"]),
        "posteriors that are not there": ([*CORRUPT, "pmd1:0.3", "--posterior", "no.npy"], ["no.npy"]),
        "posteriors among others": ([*CORRUPT, "pmd1:0.3", "--posterior", "several.npz"], ["several.npz"]),
        "posteriors of no kind": ([*CORRUPT, "pmd1:0.3", "--posterior", "cross-fitted"], ["cross-fitted"]),
        "a matrix of rows that are none": ([*CORRUPT, "matrix", "--matrix", "rows.npy"], ["transition matrix: row 0"]),
        "a matrix that is not square": ([*CORRUPT, "matrix", "--matrix", "wide.npy"], ["(3, 2)"]),
        "a matrix of other classes": ([*CORRUPT, "matrix", "--matrix", "four.npy"], ["4 classes"]),
        "a matrix with less than nothing": ([*CORRUPT, "matrix", "--matrix", "minus.npy"], ["-1"]),
        "a matrix of NaN": ([*CORRUPT, "matrix", "--matrix", "nans.npy"], ["nan"]),
        "no matrix": ([*CORRUPT, "matrix"], ["needs a transition matrix", "--matrix"]),
        "no map": ([*CORRUPT, "asym:0.2"], ["asym:0.2", "--class-map"]),
        "no superclasses": ([*CORRUPT, "asym-cycle:0.2"], ["--class-map cifar100"]),
        "superclasses of other classes": ([*CORRUPT, "asym-pairs:0.2", "--class-map", "cifar100"], ["100"]),
        "a map that is no JSON": ([*CORRUPT, "asym:0.2", "--class-map", "broken.json"], ["broken.json"]),
        "a map that is no text": ([*CORRUPT, "asym:0.2", "--class-map", "binary.json"], ["binary.json"]),
        "a map that is a list": ([*CORRUPT, "asym:0.2", "--class-map", "list.json"], ["list.json"]),
        "a map of other classes": ([*CORRUPT, "asym:0.2", "--class-map", "strange.json"], ["zebra"]),
        "a map that is not there": ([*CORRUPT, "asym:0.2", "--class-map", "no.json"], ["no.json"]),
        "an unknown map": ([*CORRUPT, "asym:0.2", "--class-map", "cifar"], ["cifar"]),
        "posteriors to an unknown kind": ([*CORRUPT, "pmd1:0.3", "--save-posterior", "eta.xml"], ["eta.xml"]),
        "a map of a class to itself": ([*CORRUPT, "asym:0.2", "--class-map", "itself.json"], ["class 0"]),
        "below a file": (["--data", "good.npz", "--noise", "sym:0.1", "--out", "good.npz/a.npy"], ["good.npz/a.npy"]),
    },
    "annotators": {
        "no labels": (["--out", "runs"], ["data"]),
        "no place": (["crowd.csv"], ["--out"]),
        "a file that is not there": (["nowhere.csv", "--out", "runs"], ["nowhere.csv"]),
        "columns that mean something else": (["labels.csv", "--out", "runs"], ["labels.csv", "annotator"]),
        "a column that is not there": (["crowd.csv", "--annotator-columns", "ann,eve", "--out", "runs"], ["eve"]),
        "one annotator": (["crowd.csv", "--annotator-columns", "ann", "--out", "runs"], ["one annotator", "ann"]),
        "two labels of one example": (["both.csv", "--out", "runs"], ["both.csv, row 1", "ape", "bee"]),
        "what is no export": (["object.json", "--out", "runs"], ["object.json", "Label Studio"]),
        "a run in the way": (["crowd.csv", "--annotator-columns", "ann,ben", "--out", "RUN"], ["RUN", "--force"]),
    },
    "paper label-error-benchmark": {
        "no folder": ([], ["folder"]),
        "a folder without it": (["folder"], ["folder", "label-error-detection-benchmarks"]),
    },
    "paper table": {
        "no name": ([], ["name"]),
        "an unknown name": (["7"], ["7"]),
        "unknown numbers": (["1", "--show", "first"], ["unknown --show 'first'", "last"]),
        "nothing to show": (["1", "--no-paper"], ["--results"]),
        "what the paper does not have": (["1", "--show", "labels"], ["--show labels", "--results"]),
        "an unknown method": (["1", "--methods", "magic"], ["magic"]),
        "a condition without a value": (["1", "--results", "results.jsonl", "--where", "epochs"], ["--where epochs"]),
        "a condition on what is not there": (["1", "--results", "results.jsonl", "--where", "color=red"], ["color"]),
        "results that are not there": (["1", "--results", "no.jsonl"], ["no.jsonl"]),
        "a folder without results": (["1", "--results", "folder"], ["folder/results.jsonl"]),
        "results that are no JSON": (["1", "--results", "broken.jsonl"], ["broken.jsonl, line 1"]),
        "results that are a list": (["1", "--results", "list.jsonl"], ["list.jsonl, line 1"]),
        "results without keys": (["1", "--results", "keys.jsonl"], ["keys.jsonl, line 1"]),
        "results with other axes": (["1", "--results", "axes.jsonl"], ["axes.jsonl, line 1"]),
        "results that are no text": (["1", "--results", "binary.jsonl"], ["binary.jsonl"]),
        "an argument too many": (["1", "2"], ["2"]),
    },
    "report": {
        "no run": ([], ["RUN"]),
        "a folder that is not there": (["nowhere"], ["nowhere"]),
        "a file for a run": (["good.npz"], ["good.npz"]),
        "what is no run": (["folder"], ["folder"]),
        "an unknown kind of page": (["RUN", "--out", "r.pdf"], ["r.pdf", ".html"]),
        "a missing folder": (["RUN", "--out", "no/r.html"], ["no/r.html"]),
        "a folder for a file": (["RUN", "--out", "strange.html"], ["strange.html"]),
        "data for a comparison": (["RUN", "RUN", "--data", "good.npz"], ["--data"]),
        "data without pictures": (["RUN", "--data", "good.npz"], ["--data good.npz", "no pictures"]),
        "other data without pictures": (["RUN", "--data", "five.npz"], ["--data five.npz", "no pictures"]),
        "one of two that is not there": (["RUN", "nowhere"], ["nowhere"]),
        "no result": (["RUN/result.json/missing"], ["result.json"]),
        "a result that is no JSON": (["RUN/result.json/garbage"], ["result.json"]),
        "an empty result": (["RUN/result.json/empty"], ["result.json"]),
        "half a result": (["RUN/result.json/cut"], ["result.json"]),
        "a folder for a result": (["RUN/result.json/directory"], ["result.json"]),
        "no labels": (["RUN/labels.parquet/missing"], ["labels.parquet"]),
        "garbage for labels": (["RUN/labels.parquet/garbage"], ["labels.parquet"]),
        "half the labels": (["RUN/labels.parquet/cut"], ["labels.parquet"]),
        "no figures of the epochs": (["RUN/metrics.jsonl/missing"], ["metrics.jsonl"]),
        "garbage for figures": (["RUN/metrics.jsonl/garbage"], ["metrics.jsonl"]),
        "a run of a newer format": (["RUN/run.json/format99"], ["format 99"]),
        "a broken marker": (["RUN/run.json/garbage"], ["run.json"]),
        "a marker that is a list": (["RUN/run.json/a-list"], ["run.json"]),
        "a marker that is a number": (["RUN/run.json/a-number"], ["run.json"]),
        "a marker without a format": (["RUN/run.json/an-object"], ["run.json"]),
        "empty labels": (["RUN/labels.parquet/empty"], ["labels.parquet"]),
    },
    "paper sweep": {
        "no grid": (OUT, ["GRID"]),
        "no place": (["good.toml"], ["--out"]),
        "an unknown name": (["smoke/digit", *OUT], ["smoke/digit", "smoke/digits"]),
        "a file that is not there": (["no.toml", *OUT], ["no.toml"]),
        "a folder for a grid": (["folder", *OUT], ["folder"]),
        "no TOML": (["broken.toml", *OUT], ["broken.toml"]),
        "no text": (["binary.toml", *OUT], ["binary.toml"]),
        "an unknown key": (["grid-key.toml", *OUT], ["epochs", "[config]"]),
        "no axes": (["grid-axes.toml", *OUT], ["grid-axes", "axes"]),
        "an axis without values": (["grid-empty.toml", *OUT], ["grid-empty", "'seed'"]),
        "an axis that is no list": (["grid-scalar.toml", *OUT], ["grid-scalar", "'seed'"]),
        "axes that are a list": (["grid-list.toml", *OUT], ["grid-list", "axes"]),
        "a block that is none": (["grid-block.toml", *OUT], ["grid-block", "[[grid]]"]),
        "an unknown method": (["grid-method.toml", *OUT], ["grid-method", "plcc"]),
        "a section of another method": (["grid-section.toml", *OUT], ["grid-section", "gce"]),
        "a value out of range": (["grid-range.toml", *OUT], ["grid-range", "epochs = 0"]),
        "an unknown preset": (["grid-preset.toml", *OUT], ["grid-preset", "cifar11"]),
        "data that is not there": (["grid-data.toml", *OUT], ["no.npz", "--data-root"]),
        "no data": (["grid-dataless.toml", *OUT], ["grid-dataless", "data"]),
        "a root without the data": (["good.toml", *OUT, "--data-root", "folder"], ["good.npz", "--data-root"]),
        "a grid twice": (["good.toml", "good.toml", *OUT], ["good.toml, good.toml", "names must differ"]),
        "a file in the way": (["good.toml", "--out", "good.npz"], ["good.npz"]),
        "no jobs": (["good.toml", *OUT, "--jobs", "0"], ["--jobs"]),
        "no threads": (["good.toml", *OUT, "--threads", "0"], ["--threads"]),
        "an unknown place": (["good.toml", *OUT, "--backend", "moon"], ["unknown --backend 'moon'", "local"]),
        "an address without Ray": (["good.toml", *OUT, "--address", "here"], ["--address here", "no Ray cluster"]),
        "what is kept, misspelled": (["good.toml", *OUT, "--keep", "some"], ["unknown --keep 'some'", "results"]),
        "dry run of a bad grid": (["grid-method.toml", *OUT, "--dry-run"], ["plcc"]),
        "in a folder of other files": (["good.toml", "--out", "strange"], ["strange", "my.txt"]),
        "dry run in a folder of other files": (["good.toml", "--out", "strange", "--dry-run"], ["strange", "my.txt"]),
        "below a file": (["good.toml", "--out", "good.npz/sweep"], ["good.npz"]),
    },
    "apply": {
        "no run": (["--out", "fixed"], ["RUN"]),
        "no place": (["RUN"], ["--out"]),
        "a folder that is not there": (["nowhere", "--out", "fixed"], ["nowhere"]),
        "what is no run": (["folder", "--out", "fixed"], ["folder"]),
        "no labels": (["RUN/labels.parquet/missing", "--out", "fixed"], ["labels.parquet"]),
        "data that is not there": (["RUN", "--out", "fixed.npz", "--data", "nowhere.npz"], ["nowhere.npz"]),
        "what cannot be dropped": (["RUN", "--out", "fixed.npz", "--drop", "everything"], ["drop", "label-issues"]),
        "labels of nobody": (["RUN", "--out", "fixed.npz", "--only", "me"], ["only", "reviewed"]),
        "more than certain": (["RUN", "--out", "fixed.npz", "--min-confidence", "2"], ["min_confidence"]),
        "labels that are not there": (["RUN", "--out", "fixed.npz", "--labels", "nowhere.csv"], ["nowhere.csv"]),
    },
    "check": {
        "no run": (["--data", "good.npz"], ["RUN"]),
        "no data": (["RUN"], ["--data"]),
        "a folder that is not there": (["nowhere", "--data", "good.npz"], ["nowhere"]),
        "what is no run": (["folder", "--data", "good.npz"], ["folder"]),
        "data that is not there": (["RUN", "--data", "nowhere.npz"], ["nowhere.npz"]),
        "a limit that is no share": (["RUN", "--data", "good.npz", "--max-wrong", "many"], ["--max-wrong"]),
        "a limit above all": (["RUN", "--data", "good.npz", "--max-wrong", "200%"], ["--max-wrong"]),
        "a baseline that is not there": (
            ["RUN", "--data", "good.npz", "--max-wrong", "5%", "--baseline", "nowhere"],
            ["nowhere"],
        ),
    },
    "review": {
        "no run": ([], ["RUN"]),
        "a folder that is not there": (["nowhere"], ["nowhere"]),
        "a file for a run": (["good.npz"], ["good.npz"]),
        "what is no run": (["folder"], ["folder"]),
        "a run that is not finished": (["RUN/result.json/missing"], ["RUN-result.json-missing"]),
        "a broken result": (["RUN/result.json/garbage"], ["result.json"]),
        "no labels": (["RUN/labels.parquet/missing"], ["labels.parquet"]),
        "garbage for labels": (["RUN/labels.parquet/garbage"], ["labels.parquet"]),
        "a run of an older format": (["RUN/run.json/format1"], ["format 1"]),
        "a name of nothing": (["RUN", "--reviewer", " "], ["--reviewer"]),
        "a name with control characters": (["RUN", "--reviewer", "a\x07"], ["--reviewer"]),
        "a name that is too long": (["RUN", "--reviewer", "a" * 81], ["--reviewer"]),
        "a port beyond all": (["RUN", "--port", "70000"], ["--port"]),
        "a port that is no number": (["RUN", "--port", "http"], ["--port"]),
        "an export of nothing": (["RUN", "--export", "r.csv"], ["not reviewed yet"]),
        "an export to an unknown kind": (["RUN", "--export", "r.xls"], ["'.xls'"]),
        "garbage for decisions": (["RUN/review.sqlite/garbage", "--export", "r.csv"], ["review.sqlite"]),
        "decisions of another program": (["RUN/review.sqlite/foreign", "--export", "r.csv"], ["review.sqlite"]),
        "no history": (["RUN/history.parquet/missing"], ["history.parquet"]),
        "garbage for history": (["RUN/history.parquet/garbage"], ["history.parquet"]),
        "no configuration": (["RUN/config.toml/missing"], ["config.toml"]),
        "data that is not there": (["RUN", "--data", "no.npz"], ["no.npz", "--data"]),
    },
    "export": {
        "no place": (["RUN"], ["--out"]),
        "no run": (["--out", "l.csv"], ["RUN"]),
        "a folder that is not there": (["nowhere", "--out", "l.csv"], ["nowhere"]),
        "a file for a run": (["good.npz", "--out", "l.csv"], ["good.npz"]),
        "what is no run": (["folder", "--out", "l.csv"], ["folder"]),
        "an unknown format": (["RUN", "--format", "xml", "--out", "l.xml"], ["unknown format 'xml'", "jsonl"]),
        "an ending of another format": (["RUN", "--format", "parquet", "--out", "l.csv"], ["l.csv", ".parquet"]),
        "no ending": (["RUN", "--out", "l"], ["--out l"]),
        "a prefix without images": (["RUN", "--prefix", "here", "--out", "l.csv"], ["--prefix", "label-studio"]),
        "data for a table": (["RUN", "--data", "good.npz", "--out", "l.csv"], ["--data", "label-studio"]),
        "a missing folder": (["RUN", "--out", "no/l.csv"], ["no/l.csv"]),
        "a folder for a file": (["RUN", "--out", "strange.csv"], ["strange.csv"]),
        "no labels": (["RUN/labels.parquet/missing", "--out", "l.csv"], ["labels.parquet"]),
        "garbage for labels": (["RUN/labels.parquet/garbage", "--out", "l.csv"], ["labels.parquet"]),
        "empty labels": (["RUN/labels.parquet/empty", "--out", "l.csv"], ["labels.parquet"]),
        "half the labels": (["RUN/labels.parquet/cut", "--out", "l.csv"], ["labels.parquet"]),
        "no result": (
            ["RUN/result.json/missing", "--format", "label-studio", "--out", "l.json"],
            ["result.json"],
        ),
        "a run without its marker": (["RUN/run.json/missing", "--out", "l.csv"], ["no run.json"]),
        "a run of a newer format": (["RUN/run.json/format99", "--out", "l.csv"], ["format 99"]),
    },
    "list": {
        "what is no kind": (["method"], ["unknown kind 'method'", "methods"]),
        "two kinds": (["methods", "networks"], ["networks"]),
        "an unknown flag": (["--all"], ["--all"]),
    },
    "demo": {
        "an unknown flag": (["--fast"], ["--fast"]),
        "in a file": (["--out", "good.npz", "--quiet"], ["good.npz"]),
        "below a file": (["--out", "good.npz/demo", "--quiet"], ["good.npz"]),
        "an argument too many": (["digits"], ["digits"]),
        "in a folder of other files": (["--out", "strange", "--quiet"], ["strange", "my.txt"]),
    },
}  # fmt: skip
ROWS = [(command, name) for command, rows in BAD.items() for name in rows]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all the files, a finished run, and one of a method that calibrates."""
    folder = tmp_path_factory.mktemp("place")
    for name, write in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name)
    for name in ("strange.csv", "strange.npz", "strange.png", "strange.html"):
        (folder / name).mkdir()
    quick_train(folder / "good.npz", folder / "RUN", epochs=2)
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder below a folder, and itself: when it was changed, and what is in it."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


def is_one_line(done: Outcome) -> None:
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("unflip: "), done.err
    assert done.err.endswith("\n"), done.err
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err


def flags_in(text: str, typed: Sequence[str]) -> set[str]:
    """Return the flags that a message recommends: not those that were typed, nor those of another command."""
    text = re.sub(r"`[^`]*`|unflip [a-z]+ .*|(corrupt|train) takes [^,]*", "", text)
    return {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)} - {*typed}


def flags_of(command: str) -> set[str]:
    """Return the flags of a command."""
    found: Any = typer.main.get_command(build_app())
    for word in command.split():
        found = found.commands[word]
    return {flag for parameter in found.params for flag in parameter.opts}


@pytest.mark.parametrize(("command", "name"), ROWS, ids=[f"{command}: {name}" for command, name in ROWS])
def test_bad_input_is_one_line_with_code_two_and_nothing_is_touched(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    arguments, fragments = BAD[command][name]
    tiny_backbone.register(monkeypatch)
    monkeypatch.setattr("unflip.review.pages.Serving.run", _served)
    monkeypatch.chdir(place)
    runs = {part: damaged(place, part) for part in arguments if part.startswith("RUN/")}
    try:
        before = snapshot(place)
        done = cli(*command.split(), *(runs[part].name if part in runs else part for part in arguments))
        after = snapshot(place)
    finally:
        for run in runs.values():
            shutil.rmtree(run)
    is_one_line(done)
    for fragment in fragments:
        assert fragment in done.err
    assert flags_in(done.err, arguments) <= flags_of(command)
    assert after.keys() == before.keys()
    assert [path for path in before if after[path] != before[path]] == []


def _served(*_: object) -> None:
    raise AssertionError("a page was served")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--data", "shut.npz", "--out", "out"],
        ["train", "--data", "good.npz", "--labels", "shut.npz", "--out", "out"],
        ["train", "--data", "good.npz", "--config", "shut.npz", "--out", "out"],
        ["clean", "shut.npz", "--out", "out"],
        ["predict", "RUN", "--data", "shut.npz"],
        ["paper", "table", "1", "--results", "shut.npz"],
    ],
)
def test_a_file_that_may_not_be_read_is_one_line(
    cli: Cli, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "RUN", tmp_path / "RUN")
    for name in ("good.npz", "shut.npz"):
        shutil.copy(place / "good.npz", tmp_path / name)
    (tmp_path / "shut.npz").chmod(0)
    done = cli(*arguments)
    is_one_line(done)
    assert "shut.npz" in done.err


def test_every_command_has_rows() -> None:
    from unflip.cli.app import build_app
    from unflip.cli.paper import paper_app

    names = {info.name or (info.callback.__name__ if info.callback else "") for info in build_app().registered_commands}
    names |= {
        f"paper {info.callback.__name__.replace('_', '-')}" for info in paper_app.registered_commands if info.callback
    }
    counts = {command: len(rows) for command, rows in BAD.items()}
    assert names <= counts.keys()
    assert sum(counts.values()) >= 200
    typed = [(command, *arguments) for command, rows in BAD.items() for arguments, _ in rows.values()]
    assert len(set(typed)) == len(typed)


# A malicious pickle wherever a file is read


class Bomb:
    """Unpickling it makes a file, which no reader of ours may do."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def pickled_npz(path: Path, bomb: Bomb) -> None:
    bombs = np.array([bomb], dtype=object)
    np.savez(path, allow_pickle=True, **blobs() | {"train": bombs, "train_labels": bombs})


def pickle_bytes(bomb: Bomb) -> bytes:
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
    "labels.npy": ("npy", ["train", *TRAIN, "--labels", "FILE"]),
    "raw.npy": ("raw", ["train", *TRAIN, "--labels", "FILE"]),
    "labels.txt": ("raw", ["train", *TRAIN, "--labels", "FILE"]),
    "posterior.npy": ("npy", ["corrupt", *CORRUPT, "pmd1:0.3", "--posterior", "FILE"]),
    "posterior.npz": ("npz", ["corrupt", *CORRUPT, "pmd1:0.3", "--posterior", "FILE"]),
    "matrix.npy": ("npy", ["corrupt", *CORRUPT, "matrix", "--matrix", "FILE"]),
    "map.json": ("raw", ["corrupt", *CORRUPT, "asym:0.3", "--class-map", "FILE"]),
    "manifest.parquet": ("raw", ["train", "--data", "FILE", "--out", "out"]),
    "manifest.csv": ("raw", ["train", "--data", "FILE", "--out", "out"]),
    "config.toml": ("raw", ["train", *TRAIN, "--config", "FILE"]),
    "cifar": ("cifar", ["train", "--data", "FILE", "--out", "out"]),
    "weights.pth": ("raw", ["embed", "photos", "--out", "out.npz", "--backbone", "tiny", "--weights", "FILE"]),
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
    tiny_backbone.register(monkeypatch)
    shutil.copytree(place / "photos", tmp_path / "photos")
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
    assert Path(name).name in done.err
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

    Run(tmp_path).begin()
    (tmp_path / "result.json").write_bytes(pickle_bytes(Bomb(tmp_path / "exploded")))
    with pytest.raises(UnflipError, match=r"result\.json"):
        Run(tmp_path).result  # noqa: B018
    assert json.loads((place / "RUN" / "result.json").read_text())["epochs"] == 2
