"""What other systems lack is not needed: every module imports, and a run trains, without it."""

import os
import subprocess
import sys
from pathlib import Path

from helpers import blobs, write_npz

SCRIPT = """
import importlib, os, pkgutil, sys

ABSENT = ("fcntl", "grp", "pwd", "resource", "termios")
for name in ABSENT:
    sys.modules[name] = None
import asyncio  # of POSIX here, it asks sysconf
for name in {"sysconf", "sched_getaffinity"} & set(dir(os)):
    delattr(os, name)

import unflip

count = 0
for module in pkgutil.walk_packages(unflip.__path__, "unflip."):
    if module.name == "unflip.__main__":
        continue
    try:
        importlib.import_module(module.name)
        count += 1
    except ImportError as error:  # an extra that is not installed
        assert (error.name or "").split(".")[0] not in (*ABSENT, "unflip"), error
assert count > 100, count

from unflip.data.columns import read_table
from unflip.api.review import reviewer_name

run = unflip.train("a.npz", "run", preset="features", epochs=1)
assert len(read_table(run.folder / "labels.parquet", "labels")) == 150
assert reviewer_name(None)
print("trained")
"""


def test_every_module_imports_and_a_run_trains_without_what_windows_lacks(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", **blobs())
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "trained"


def test_what_an_encoding_lacks_is_printed_as_a_question_mark(tmp_path: Path) -> None:
    table = [sys.executable, "-X", "utf8=0", "-m", "unflip", "paper", "table", "5"]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}  # as Windows writes to a file
    done = subprocess.run(table, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("cp1252")
    assert "±" in text
    assert "?" in text
    assert "↑" in subprocess.run(table, cwd=tmp_path, capture_output=True, check=True).stdout.decode()
