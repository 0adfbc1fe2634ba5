"""The pages with results show what the result files hold, and nothing else."""

import importlib
import json
from pathlib import Path

import pytest

from unflip.experiments.paper_numbers import paper_table
from unflip.experiments.results_file import read_results
from unflip.experiments.tables import Shown, compare

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


@pytest.mark.parametrize(("page", "tables"), [("features", 7), ("paper-tables", 3), ("unflip", 6)])
def test_every_table_is_what_its_command_prints(page: str, tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    page_tables = importlib.import_module("page_tables")
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    assert len(page_tables.BLOCK.findall(text)) == tables
    assert page_tables.fill(text) == text


def test_every_cell_of_own_data_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    own_data_table = importlib.import_module("own_data_table")
    lines = (RESULTS / "own-data.jsonl").read_text("utf-8").splitlines()
    tables = "\n".join(own_data_table.tables([json.loads(line) for line in lines]))
    page = (ROOT / "docs" / "own-data-results.md").read_text("utf-8")
    assert page.partition("<!-- tables -->\n\n")[2].partition("<!-- end of tables -->")[0] == tables + "\n"


def test_every_cell_of_raw_data_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    page, own = importlib.import_module("raw_data_table"), importlib.import_module("own_data_table")
    lines = [json.loads(line) for line in (RESULTS / "raw-data.jsonl").read_text("utf-8").splitlines()]
    tables = "\n".join(own.tables(lines, page.SETS, page.NOISES, page.WAYS))
    text = (ROOT / "docs" / "raw-data-results.md").read_text("utf-8")
    assert text.partition("<!-- tables -->\n\n")[2].partition("<!-- end of tables -->")[0] == tables + "\n"


def test_every_table_of_the_committee_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    committee_tables = importlib.import_module("committee_tables")
    lines = [json.loads(line) for line in (RESULTS / "committee.jsonl").read_text("utf-8").splitlines()]
    page = (ROOT / "docs" / "unflip.md").read_text("utf-8")
    assert page.count("<!-- committee ") == 3
    assert committee_tables.fill(page, lines) == page


def test_every_table_of_the_review_curve_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    review_curve = importlib.import_module("review_curve")
    lines = [json.loads(line) for line in (RESULTS / "review-curve.jsonl").read_text("utf-8").splitlines()]
    page = (ROOT / "docs" / "review.md").read_text("utf-8")
    assert page.count("<!-- curve ") == 2
    assert review_curve.fill(page, lines) == page


def test_every_table_of_quality_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    quality_table = importlib.import_module("quality_table")
    lines = [json.loads(line) for line in (RESULTS / "quality.jsonl").read_text("utf-8").splitlines()]
    page = (ROOT / "docs" / "audit.md").read_text("utf-8")
    assert page.count("<!-- quality ") == 4
    assert quality_table.fill(page, lines) == page


def test_the_table_of_strangers_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    strangers_table = importlib.import_module("strangers_table")
    lines = [json.loads(line) for line in (RESULTS / "strangers.jsonl").read_text("utf-8").splitlines()]
    page = (ROOT / "docs" / "audit.md").read_text("utf-8")
    assert page.count("<!-- strangers -->") == 1
    assert strangers_table.fill(page, lines) == page


def test_every_table_of_images_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    page = importlib.import_module("images_scratch")
    text = page.PAGE.read_text("utf-8")
    assert text.count("<!-- images ") == 2
    assert page.fill(text, page.read(page.REGIME), page.read(page.SCRATCH)) == text


def test_the_readme_shows_the_means() -> None:
    lines = read_results([RESULTS / "features.jsonl", RESULTS / "cleanlab.jsonl"])
    text = (ROOT / "README.md").read_text("utf-8")
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    methods = next(row[1:] for row in rows if row[0].startswith("means over settings"))
    shown: dict[str, tuple[str, Shown]] = {
        "test accuracy, PMD noise": ("1", "selected"),
        "test accuracy, PMD and class-dependent noise": ("2", "selected"),
        "training labels right, PMD noise": ("1", "labels"),
        "training labels right, PMD and class-dependent noise": ("2", "labels"),
        "area under the ROC curve of label quality, PMD noise": ("1", "quality"),
    }
    for title, (table, show) in shown.items():
        cells = next(row[1:] for row in rows if row[0].startswith(title + " ("))
        means = compare(paper_table(table), lines, show=show, methods=methods).mean().values()
        assert [cell.strip("*") for cell in cells] == [str(number.mean) if number else "" for number in means]


def test_every_table_of_duplicates_comes_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    duplicates_table = importlib.import_module("duplicates_table")
    lines = [json.loads(line) for line in (RESULTS / "duplicates.jsonl").read_text("utf-8").splitlines()]
    page = (ROOT / "docs" / "audit.md").read_text("utf-8")
    assert page.count("<!-- duplicates -->") == 1
    assert duplicates_table.fill(page, lines) == page
