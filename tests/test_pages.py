"""Pages whose code a reader types: all of it runs, and prints what the page shows."""

import csv
import json
import re
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import unflip
from helpers import Outcome, blobs, quick_train, write_npz
from page_blocks import DOCS, blocks, masked, run_page
from unflip.compute import repair_torchvision
from unflip.reproduce.grid import read_grid
from unflip.reproduce.tables import paper_table


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which cleanlab ends its forked workers
    yield
    signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@pytest.mark.filterwarnings("ignore")  # of cleanlab and scikit-learn, as a reader sees them
@pytest.mark.parametrize(("page", "outputs"), [("tables", 5), ("texts", 8), ("others", 3), ("annotators", 4)])
def test_a_page_does_what_it_says(
    page: str, outputs: int, cli: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_page(DOCS / f"{page}.md", cli, capsys) == outputs


@pytest.mark.filterwarnings("ignore")  # of the libraries, as a reader sees them
@pytest.mark.parametrize(
    ("section", "package"),
    [
        ("Plain PyTorch", "sklearn"),
        ("Lightning", "lightning"),
        ("Hugging Face Trainer", "accelerate"),
        ("timm", "timm"),
    ],
)
def test_label_correction_in_a_loop_of_ones_own_makes_labels_better(
    section: str, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    repair_torchvision()
    names: dict[str, object] = {}
    for language, text in blocks(DOCS / "own-loop.md", section):
        if language == "python":
            exec(text, names)
    printed = dict(re.findall(r"^(given|corrected) labels: ([\d.]+) right$", capsys.readouterr().out, re.MULTILINE))
    assert float(printed["corrected"]) > float(printed["given"]) + 0.08


@pytest.mark.parametrize("kind", ["mean", "covariance"])
def test_the_twenty_lines_of_the_paper_draw_from_the_same_gaussians(kind: Literal["mean", "covariance"]) -> None:
    (text,) = [text for language, text in blocks(DOCS / "paper.md") if language == "python"]
    names: dict[str, Any] = {}
    exec(text, names)
    torch.manual_seed(0)
    labels = torch.arange(400) % 2
    features = torch.randn(400, 4) @ torch.randn(4, 4) + 3 * labels[:, None]
    drawn, classes = names["draw"](features, labels, 2, 200_000, kind)
    calibration = unflip.DistributionCalibration(torch.nn.Linear(4, 2), 2, kind=kind)
    calibration.step(labels, features=features)
    assert calibration.gaussians is not None
    ours, _ = calibration.gaussians.sample(100_000, torch.Generator().manual_seed(0))
    for c in range(2):
        mine, theirs = drawn[classes == c], ours[c * 100_000 : (c + 1) * 100_000]
        torch.testing.assert_close(mine.mean(0), theirs.mean(0), atol=0.05, rtol=0.0)
        torch.testing.assert_close(mine.T.cov(), theirs.T.cov(), atol=0.15, rtol=0.05)
    head = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(50):
        names["calibrate"](head, optimizer, features, labels, 2, kind)
    assert (head(features).argmax(1) == labels).float().mean() > 0.8


@pytest.mark.filterwarnings("ignore")  # of cleanlab and of Hugging Face's library
def test_labels_go_to_other_tools_and_come_back(
    cli: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = blobs(classes=2)
    content["train_labels"][:20] = 1 - content["train_labels"][:20]
    ids = np.array([f"{'cat' if label else 'dog'}/{i}.png" for i, label in enumerate(content["train_labels"])])
    data = write_npz(tmp_path / "photos.npz", **content, train_ids=ids, class_names=np.array(["dog", "cat"]))
    quick_train(data, tmp_path / "runs" / "photos", epochs=5)
    assert cli("export", "runs/photos", "--all", "--out", "first.json").code == 0
    tasks = json.loads(Path("first.json").read_text("utf-8"))
    annotated = [task | {"annotations": task["predictions"]} for task in tasks[:30]]  # as if all were accepted
    Path("annotated.json").write_text(json.dumps(annotated), "utf-8")
    run_page(DOCS / "exchange.md", cli, capsys)
    assert len(Path("reviewed.csv").read_text("utf-8").splitlines()) == 31
    result = json.loads(Path("runs/again/result.json").read_text("utf-8"))
    assert result["reviewed"] == 30


def test_columns_are_read_as_the_page_shows(cli: Callable[..., Outcome]) -> None:
    random = np.random.default_rng(0)
    words = ["late", "order", "asked", "again", "about", "price", "was", "happy", "with", "help", "no", "reply", "yet"]
    zips = sorted({f"{code:05}" for code in random.integers(1000, 99999, 180)})
    with Path("table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "age", "plan", "paid", "since", "revenue", "zip", "note", "churned"])
        for i in range(1000):
            age, paid = "" if i % 30 == 0 else random.integers(18, 90), "" if i == 5 else random.integers(2)
            since = np.datetime64("2020-01-01") + random.integers(1000)
            row = [f"c-{i:04}", age, random.choice(["basic", "free", "pro", "team"]), paid, since]
            money = f"€{random.uniform(3, 98_204):,.2f}"
            writer.writerow([*row, money, random.choice(zips), " ".join(random.choice(words, 5)), "ny"[i % 2]])
    shown = next(text for _, text in blocks(DOCS / "your-data.md") if text.startswith("  customer"))
    printed = cli("clean", "table.csv", "--label-column", "churned", "--out", "run", "--dry-run").out
    lines = [line for line in printed.splitlines() if line.startswith("  ")]
    assert masked("\n".join(lines)) == masked(shown)


def test_the_grid_of_table_1_has_its_rows() -> None:
    (text,) = [text for _, text in blocks(DOCS / "experiments.md") if text.startswith("# Table 1")]
    Path("table1.toml").write_text(text, "utf-8")
    points = read_grid("table1.toml")
    assert len(points) == 324
    assert {point.configure().common.network for point in points[::100]} == {"preact_resnet34"}
    rows = {(point.axes["data"], point.axes["noise"]) for point in points}
    assert rows == {tuple(row.where.values()) for row in paper_table("1").rows}
