"""Issues that clean finds besides label issues: in issues.csv, in its result, and in its summary."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import tiny_backbone
import unflip
from helpers import Outcome, blobs, write_npz
from pictures import write_picture
from unflip.api.clean import plan_cleaning
from unflip.cli.clean import _pairs, summary
from unflip.data.arrays import read_npz
from unflip.errors import ConfigError

Cli = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_backbone.register(monkeypatch)


def with_outliers(path: Path) -> Path:
    """Write features of three classes, twelve examples that are nothing like them, and a class of one."""
    content = blobs(classes=3, train=150, columns=12)
    random = np.random.default_rng(0)
    foreign = content["train"].mean(0) + 60 * np.eye(12)[6:9].repeat(4, 0) + random.normal(size=(12, 12))
    content["train"] = np.r_[content["train"], foreign, random.normal(size=(1, 12))].astype(np.float32)
    content["train_labels"] = np.r_[content["train_labels"], np.arange(12) % 3, 3]
    return write_npz(path, **content)


def test_clean_writes_returns_and_summarizes_issues(tmp_path: Path) -> None:
    cleaned = plan_cleaning(with_outliers(tmp_path / "data.npz"), tmp_path / "run", device="cpu", quiet=True).execute()
    issues = cleaned.other_issues()
    assert issues is not None
    flagged = issues.filter(issues["flag"]).to_pylist()
    outliers = {row["index"] for row in flagged if row["issue"] == "outlier"}
    assert outliers <= {*range(150, 163)}
    assert len(outliers) >= 9
    assert [row["index"] for row in flagged if row["issue"] == "class_quality"] == [None]
    told = next(line for line in summary(cleaned).splitlines() if line.startswith("Other issues"))
    assert "outliers" in told
    assert "1 low-quality class" in told
    assert str(tmp_path / "run" / "issues.csv") in told


def test_the_most_frequent_pairs_are_told() -> None:
    """Not more than three; the others are counted."""
    told = _pairs(["a"] * 7, list("bcdefgh"))
    assert told == "  a -> b (1), a -> c (1), a -> d (1), 4 other pairs (4)"


def test_checks_can_be_skipped(tmp_path: Path, cli: Cli) -> None:
    data = with_outliers(tmp_path / "data.npz")
    done = cli("clean", data, "--out", tmp_path / "run", "--skip-check", "outlier", "--skip-check", "class_quality",
               "--device", "cpu")  # fmt: skip
    assert done.code == 0, done.err
    assert "outlier" not in (tmp_path / "run" / "issues.csv").read_text()
    with pytest.raises(ConfigError, match="unknown check 'nope'"):
        unflip.clean(data, tmp_path / "other", skip_check=["nope"])
    assert not (tmp_path / "other").exists()


def test_image_quality_uses_the_statistics_recorded_when_embedding(tmp_path: Path) -> None:
    for i in range(60):
        write_picture(tmp_path / "photos" / ("red", "green")[i % 2] / f"{i:02}.png", i % 2, (40, 30))
    odd = tmp_path / "photos" / "red"
    PIL.Image.new("RGB", (40, 30), (120, 120, 120)).save(odd / "gray.png")
    write_picture(odd / "long.png", 0, (400, 20))
    write_picture(odd / "tiny.png", 0, (9, 8))
    PIL.Image.linear_gradient("L").resize((40, 30)).convert("RGB").save(odd / "blurry.png")
    out = tmp_path / "run"
    cleaned = unflip.clean(tmp_path / "photos", out, backbone="tiny", device="cpu", quiet=True)
    flagged = cleaned.issues.to_dict("records")
    found = {
        Path(row["path"]).name: row["reason"].partition(":")[0] for row in flagged if row["issue"] == "image_quality"
    }
    assert found == {"gray.png": "nearly blank", "long.png": "odd shape", "tiny.png": "tiny", "blurry.png": "blurry"}
    content = read_npz(out / "embedded.npz")
    sizes = dict(zip(content["train_ids"].tolist(), content["train_image_stats"].tolist(), strict=True))
    by_name = {Path(name).name: stats for name, stats in sizes.items()}
    assert by_name["long.png"][3:] == [400, 20]
    assert by_name["gray.png"][:2] == pytest.approx([120 / 255, 0], abs=1e-3)
    again = unflip.clean(out / "embedded.npz", tmp_path / "again", device="cpu", quiet=True)
    assert "image_quality" in set(again.issues["issue"])


def test_examples_removed_from_training_do_not_leak(tmp_path: Path) -> None:
    content = blobs(classes=3, train=150, columns=12)
    content["test"] = np.r_[content["train"][:10], content["test"]]
    content["test_labels"] = np.r_[content["train_labels"][:10], content["test_labels"]]
    data = write_npz(tmp_path / "data.npz", **content)
    first = unflip.clean(data, tmp_path / "first", device="cpu", quiet=True)
    assert first.result["tests"]["test"]["leaked"] == 10
    (tmp_path / "reviewed.csv").write_text("index,label,decision\n" + "".join(f"{i},,remove\n" for i in range(10)))
    reviewed = tmp_path / "reviewed.csv"
    again = plan_cleaning(data, tmp_path / "second", reviewed=reviewed, device="cpu", quiet=True).execute()
    issues = again.other_issues()
    assert issues is not None
    assert "leakage" not in issues["issue"].to_pylist()
    assert not again.result["tests"]["test"].get("leaked")
    assert "leaked" not in summary(again)
