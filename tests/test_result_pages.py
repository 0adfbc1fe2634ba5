"""The pages with results show what the result files hold, and nothing else."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [path for path in (ROOT / "docs").glob("*.md") if "<!-- unflip table" in path.read_text("utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_table_is_what_its_command_prints(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    text = page.read_text("utf-8")
    assert importlib.import_module("page_tables").fill(text) == text
