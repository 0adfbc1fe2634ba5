"""The page that compares with cleanlab shows what its result file holds, and nothing else."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_every_cell_comes_from_the_result_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    own_data_table = importlib.import_module("own_data_table")
    lines = (ROOT / "docs" / "results" / "own-data.jsonl").read_text("utf-8").splitlines()
    tables = "\n".join(own_data_table.tables([json.loads(line) for line in lines]))
    page = (ROOT / "docs" / "own-data-results.md").read_text("utf-8")
    assert page.partition("<!-- tables -->\n\n")[2].partition("<!-- end of tables -->")[0] == tables + "\n"
