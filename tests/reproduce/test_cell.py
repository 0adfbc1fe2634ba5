"""The hash of a cell: what it depends on and what it does not."""

import os
from pathlib import Path

import numpy as np
import pytest

from helpers import blobs, write_npz
from sweeps import write_grid
from unflip.reproduce.grid import find_cell, fingerprint, read_grid


def name_of(folder: Path, axes: str = 'data = ["blobs.npz"]', config: str = "") -> str:
    grid = read_grid(str(write_grid(folder / "grid.toml", axes, config=config)))
    return find_cell(grid[0], folder, folder).name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    write_npz(folder / "blobs.npz", **blobs())
    return folder


def test_the_same_data_elsewhere_is_the_same_cell(folder: Path) -> None:
    before = name_of(folder)
    assert name_of(folder) == before
    moved = folder.rename(folder.parent / "there")
    (moved / "blobs.npz").rename(moved / "renamed.npz")
    assert name_of(moved, 'data = ["renamed.npz"]') == before
    assert name_of(moved, f'data = ["{moved / "renamed.npz"}"]') == before


def test_a_changed_byte_is_another_cell_despite_the_same_size(folder: Path) -> None:
    path = folder / "blobs.npz"
    before = name_of(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))
    assert name_of(folder) != before


def test_a_folder_includes_linked_folders(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    (data / "a.txt").write_text("a")
    (elsewhere / "b.txt").write_text("b")
    (data / "linked").symlink_to(elsewhere)
    seen = [fingerprint(data)]
    (elsewhere / "b.txt").write_text("c")
    seen.append(fingerprint(data))
    (data / "a.txt").rename(data / "z.txt")
    seen.append(fingerprint(data))
    assert len(set(seen)) == 3
    assert fingerprint(data) == seen[-1]


@pytest.mark.parametrize(
    ("config", "same"),
    [
        ("epochs = 2", True),  # as it is
        ("seed = 0", True),  # the default
        ("data.workers = 3", True),  # affects execution only
        ("data.mmap_threshold_mb = 0", True),
        ("gce.q = 0.5", True),  # of another method
        ("seed = 1", False),
        ("optimizer.momentum = 0.5", False),
        ("data.labels = 'other.npy'", False),
        ("noise = 'sym:0.1'", False),
    ],
)
def test_the_cell_depends_on_what_affects_results(folder: Path, config: str, same: bool) -> None:
    np.save(folder / "other.npy", blobs()["train_labels"])
    grid = write_grid(folder / "a.toml", 'data = ["blobs.npz"]')
    grid.write_text(
        grid.read_text().replace(
            "epochs = 2\n", "epochs = 2\n" if config == "epochs = 2" else f"epochs = 2\n{config}\n"
        )
    )
    point = read_grid(str(grid))[0]
    found = find_cell(point, folder, folder).name
    assert (found == name_of(folder)) is same


def test_labels_count_by_content_too(folder: Path) -> None:
    labels = blobs()["train_labels"]
    np.save(folder / "labels.npy", labels)
    axes = 'data = ["blobs.npz"]\n"data.labels" = ["labels.npy"]'
    before = name_of(folder, axes)
    np.save(folder / "labels.npy", np.roll(labels, 1))
    assert name_of(folder, axes) != before


def test_reviewed_labels_name_the_cell_by_their_content(folder: Path) -> None:
    axes = 'data = ["blobs.npz"]'
    plain = name_of(folder, axes)
    (folder / "reviewed.csv").write_text("index,label\n0,1\n")
    one = name_of(folder, axes, 'data.reviewed = "reviewed.csv"')
    (folder / "moved.csv").write_text("index,label\n0,1\n")
    assert name_of(folder, axes, 'data.reviewed = "moved.csv"') == one
    (folder / "reviewed.csv").write_text("index,label\n0,2\n")
    assert len({plain, one, name_of(folder, axes, 'data.reviewed = "reviewed.csv"')}) == 3
