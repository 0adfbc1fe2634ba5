"""Where a command may write a single file."""

import os
from pathlib import Path

import pytest

from unflip.errors import RunFolderError
from unflip.runs.folder import Run
from unflip.runs.layout import check_output


def test_a_target_among_the_inputs_or_no_ordinary_file_is_refused_even_with_force(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train_labels.npy").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for given in ("data", "link", "data/train_labels.npy"):
        with pytest.raises(RunFolderError, match="is an input of this command"):
            check_output(tmp_path / "data" / "train_labels.npy", force=True, inputs=[tmp_path / given])
    check_output(tmp_path / "data" / "new.npy", force=False, inputs=[tmp_path / "data"])
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(RunFolderError, match="not a regular file"):
        check_output(tmp_path / "pipe.csv", force=True)


def test_a_file_of_a_run_is_not_replaced_by_another_command(tmp_path: Path) -> None:
    Run(tmp_path).begin()
    for name in ("run.json", "labels.csv"):
        (tmp_path / name).touch()
        with pytest.raises(RunFolderError, match="belongs to the run in that folder; choose another name"):
            check_output(tmp_path / name, force=True)
    check_output(tmp_path / "reviewed.csv", force=False)
