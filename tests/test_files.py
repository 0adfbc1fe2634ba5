"""A reader sees the old file or the new one, never half of either."""

import errno
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from unflip.engine.checkpoints import save_tree
from unflip.errors import RunFolderError
from unflip.files import write_atomically, write_json, write_text
from unflip.runs.model_file import load_model


class PowerCut(BaseException):
    pass


@pytest.fixture
def tiny_disk() -> Iterator[None]:
    """Let no file grow beyond 4 kB, which fails as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_text_is_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "é\n")
    write_text(tmp_path / "a.txt", "ü\n")
    assert (tmp_path / "a.txt").read_bytes() == "ü\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644  # others may read it, unlike a temporary file


def test_the_temporary_file_is_in_a_folder_of_its_own_beside_the_target(tmp_path: Path) -> None:
    seen: list[Path] = []
    write_atomically(tmp_path / "a.parquet", lambda path: seen.append(path) or path.touch())  # type: ignore[func-returns-value]
    assert seen[0].parent.parent == tmp_path
    assert seen[0].name == "a.parquet"
    assert seen[0].parent.name.startswith(".unflip-partial-")  # so that no pattern of ours or anybody's finds it
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_crash_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def cut(*args: Any) -> None:
        raise PowerCut

    if where == "fsync":
        monkeypatch.setattr(os, "fsync", cut)
    elif where == "replace":
        monkeypatch.setattr(Path, "replace", cut)
    with pytest.raises(PowerCut):
        write_atomically(target, cut if where == "write" else lambda path: path.write_text("new"))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("where", ["write", "fsync"])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"^cannot write .*a\.txt: No space left on device$"):
        write_atomically(target, full if where == "write" else lambda path: path.write_text("new"))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("tiny_disk")
def test_tensors_that_find_no_space_are_the_same_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"^cannot write .*a\.safetensors: .*File too large"):
        save_tree(tmp_path / "a.safetensors", {"big": torch.zeros(10_000)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("tiny_disk")
def test_text_that_finds_no_space_is_the_same_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="File too large"):
        write_text(tmp_path / "a.txt", "a" * 10_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_a_folder_that_is_none_is_an_error(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"^cannot write .*a\.txt: (No such file|Not a directory)"):
        write_text(tmp_path / folder / "a.txt", "")


def test_a_file_that_may_not_be_read_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")

    def refuse(*_: object, **__: object) -> None:  # as the system does, but not to the superuser
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RunFolderError, match=f"^{path}: Permission denied$"):
        load_model(path)


def test_json_is_read_back_and_refuses_nan(tmp_path: Path) -> None:
    content = {"a": None, "b": [1.5, "é"], "c": {"d": 0.1}}
    write_json(tmp_path / "a.json", content)
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == content
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == content


def test_files_are_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "a.txt", "")
        save_tree(tmp_path / "b.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
