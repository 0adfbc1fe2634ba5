"""The pages with results show what the result files hold, and nothing else."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unflip.methods import methods
from unflip.reproduce.grid import read_grid
from unflip.reproduce.tables import compare, paper_table, read_results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


@pytest.mark.parametrize(
    ("page", "tables"), [("results/features", 7), ("results/paper-tables", 3), ("results/unflip", 6), ("paper", 1)]
)
def test_every_table_is_what_its_command_prints(page: str, tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    page_tables = importlib.import_module("page_tables")
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    assert text.count("<!-- unflip paper table ") == tables
    assert page_tables.fill(text) == text


def test_every_cell_of_own_data_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    own_data_table = importlib.import_module("own_data_table")
    lines = [json.loads(line) for line in (RESULTS / "own-data.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "own-data.md").read_text("utf-8")
    assert page.count("<!-- tables -->") == 1
    assert own_data_table.fill(page, lines) == page


def test_every_cell_of_raw_data_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    raw_data_table = importlib.import_module("raw_data_table")
    lines = [json.loads(line) for line in (RESULTS / "raw-data.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "raw-data.md").read_text("utf-8")
    assert page.count("<!-- tables -->") == 1
    assert raw_data_table.fill(page, lines) == page


def test_the_tables_of_tuned_logistic_regression_come_from_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    cleanlab_regression = importlib.import_module("cleanlab_regression")
    lines = [json.loads(line) for line in (RESULTS / "cleanlab-regression.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "unflip.md").read_text("utf-8")
    assert page.count("<!-- cleanlab ") == 2
    assert cleanlab_regression.fill(page, lines) == page


def test_every_cell_of_the_noise_rate_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    noise_rate_table = importlib.import_module("noise_rate_table")
    lines = [json.loads(line) for line in (RESULTS / "noise-rate.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "noise-rate.md").read_text("utf-8")
    assert page.count("<!-- noise rate -->") == 1
    assert noise_rate_table.fill(page, lines) == page


def test_every_cell_of_reviewed_samples_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    review_sample = importlib.import_module("review_sample")
    lines = [json.loads(line) for line in (RESULTS / "review-sample.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "noise-rate.md").read_text("utf-8")
    assert page.count("<!-- review sample -->") == 1
    assert review_sample.fill(page, lines) == page


def test_every_table_of_the_ensemble_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    ensemble_tables = importlib.import_module("ensemble_tables")
    lines = [json.loads(line) for line in (RESULTS / "ensemble.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "unflip.md").read_text("utf-8")
    assert page.count("<!-- ensemble ") == 3
    assert ensemble_tables.fill(page, lines) == page


def test_every_table_of_the_review_curve_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    review_curve = importlib.import_module("review_curve")
    lines = [json.loads(line) for line in (RESULTS / "review-curve.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "review.md").read_text("utf-8")
    assert page.count("<!-- curve ") == 2
    assert review_curve.fill(page, lines) == page


def test_every_table_of_quality_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    quality_table = importlib.import_module("quality_table")
    lines = [json.loads(line) for line in (RESULTS / "quality.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "quality.md").read_text("utf-8")
    assert page.count("<!-- quality ") == 4
    assert quality_table.fill(page, lines) == page


def test_the_table_of_outliers_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    outliers_table = importlib.import_module("outliers_table")
    lines = [json.loads(line) for line in (RESULTS / "outliers.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "outliers.md").read_text("utf-8")
    assert page.count("<!-- outliers -->") == 1
    assert outliers_table.fill(page, lines) == page


def test_every_table_of_images_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    results, scratch = importlib.import_module("images_results"), importlib.import_module("images_scratch")
    text = results.PAGE.read_text("utf-8")
    assert text.count("<!-- images ") == 7
    assert scratch.fill(text, results.read(scratch.REGIME), results.read(scratch.SCRATCH)) == text
    fine_tuning = importlib.import_module("images_fine_tuning")
    assert fine_tuning.fill(text, results.read(fine_tuning.RESULTS)) == text
    questions = importlib.import_module("images_questions")
    assert questions.fill(text, results.read(questions.QUESTIONS), results.read(questions.SCRATCH)) == text


def test_the_picture_of_images_shows_the_curves_of_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    results, scratch = importlib.import_module("images_results"), importlib.import_module("images_scratch")
    lines = results.read(scratch.SCRATCH)
    scratch.draw(lines, tmp_path / "drawn.png")
    with Image.open(scratch.PICTURE) as shown, Image.open(tmp_path / "drawn.png") as drawn:
        assert shown.info["Description"] == drawn.info["Description"] == scratch.digest(lines)
        assert shown.size == drawn.size


def test_a_sweep_adds_its_cells_to_those_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    results, grid = importlib.import_module("images_results"), "images/cifar10"
    axes = [dict(point.axes) for point in read_grid(grid)]

    def line(place: int, cell: str, last: float) -> dict[str, Any]:
        figures = {"test_accuracy": {"last": last}, "label_accuracy": {}, "quality_auroc": None, "seconds": 1.0}
        return {"axes": axes[place], "cell": cell} | figures

    known = [line(3, "stays", 0.5) | {"curves": {}}, line(1, "again", 0.5) | {"curves": {}}]
    (tmp_path / "known.jsonl").write_text("".join(json.dumps(one) + "\n" for one in known))
    finished = [line(0, "new", 0.6), line(1, "again", 0.7)]
    others = [line(2, "other", 0.1) | {"grid": "images/questions"}]
    (tmp_path / "results.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in [*others, *(one | {"grid": grid} for one in finished)])
    )
    epoch = {"test_accuracy": 0.61234, "val_accuracy": 0.5, "label_accuracy": 0.7}
    for one in finished:
        (tmp_path / "cells" / one["cell"]).mkdir(parents=True)
        (tmp_path / "cells" / one["cell"] / "metrics.jsonl").write_text(json.dumps(epoch) + "\n")
    results.take_over(tmp_path, grid, tmp_path / "known.jsonl")
    lines = results.read(tmp_path / "known.jsonl")
    assert [(one["cell"], one["test_accuracy"]["last"]) for one in lines] == [
        ("new", 0.6),
        ("again", 0.7),
        ("stays", 0.5),
    ]
    assert lines[0]["curves"] == {"test": [0.6123], "noisy_val": [0.5], "labels": [0.7]}


def test_the_means_are_those_of_the_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    regression = importlib.import_module("cleanlab_regression")
    tuned = [json.loads(line) for line in (RESULTS / "cleanlab-regression.jsonl").read_text("utf-8").splitlines()]
    cleanlab = re.findall(r"\d+\.\d+", list(regression.table(tuned))[-1])[2::3]
    lines = read_results([RESULTS / "features.jsonl", RESULTS / "cleanlab.jsonl"])
    names = [
        name
        for name in [*methods.names(), "elr-m", "elr-c", "cleanlab"]
        if name in {line["axes"]["method"] for line in lines}
    ]

    def features(table: str, show: str) -> dict[str, str]:
        means = dict(compare(paper_table(table), lines, show=show, methods=names).mean())
        return {name: str(number.mean) for name, number in means.items() if number}

    test, labels, quality, hybrid = (
        features(*of) for of in (("1", "selected"), ("1", "labels"), ("1", "quality"), ("2", "selected"))
    )
    small, raw = (_means((RESULTS / f"{name}.md").read_text("utf-8")) for name in ("own-data", "raw-data"))
    shown = _rows((ROOT / "docs" / "results.md").read_text("utf-8"), 4)
    for means, row, tuned_mean in zip((test, labels, quality, hybrid), shown, [*cleanlab, ""], strict=False):
        best = max((name for name in means if name != "unflip"), key=means.__getitem__)
        assert row == [means["unflip"], f"{means[best]} `{best}`", tuned_mean, means["standard"]]
    assert shown[4:] == [[means[0], "", max(means[1:]), ""] for means in (*small[:2], *raw[:2])]
    first, second, *_ = _rows((ROOT / "README.md").read_text("utf-8"), 5)
    assert first == [labels["standard"], labels["unflip"], cleanlab[1], test["unflip"], cleanlab[0]]
    assert second[1:] == [*raw[1], *raw[0]]
    rows = [json.loads(line) for line in (RESULTS / "annotators.jsonl").read_text("utf-8").splitlines()]
    of_settings: dict[tuple[str, ...], list[dict[str, dict[str, float]]]] = {}
    for row in (row for row in rows if row["way"] == "shared"):
        of_settings.setdefault((row["data"], row["kind"], row["labels"]), []).append(row["methods"])
    majority, ours, crowdlab = (
        f"{100 * np.mean([np.mean([seed[name]['accuracy'] for seed in seeds]) for seeds in of_settings.values()]):.1f}"
        for name in ("majority", "fit_annotators", "CROWDLAB")
    )
    cells = f"{len(of_settings)} settings | {majority} (majority) | **{ours}** | {crowdlab} (CROWDLAB) |"
    assert cells in (ROOT / "README.md").read_text("utf-8")


def _rows(page: str, count: int) -> list[list[str]]:
    """Return the last ``count`` cells of all rows of tables in which the first of these is a number."""
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    return [row[-count:] for row in rows if len(row) > count and re.fullmatch(r"[\d.]+", row[-count])]


def _means(page: str) -> list[list[str]]:
    """Return the means of the tables of a page that other tests compare with their files."""
    return [re.findall(r"\d+\.\d+", line) for line in page.splitlines() if line.startswith("| mean |")]


def test_every_table_of_duplicates_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    duplicates_table = importlib.import_module("duplicates_table")
    lines = [json.loads(line) for line in (RESULTS / "duplicates.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / "duplicates.md").read_text("utf-8")
    assert page.count("<!-- duplicates -->") == 1
    assert duplicates_table.fill(page, lines) == page
