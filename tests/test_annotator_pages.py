"""The study of simulated annotators: its pages show what the result files hold, and annotators do what they should."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


@pytest.mark.parametrize(
    ("script", "name", "tables"), [("annotators_table", "annotators", 6), ("unlabeled_table", "unlabeled", 1)]
)
def test_every_table_comes_from_its_file(script: str, name: str, tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    lines = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text("utf-8").splitlines()]
    page = (RESULTS / f"{name}.md").read_text("utf-8")
    assert page.count(f"<!-- {name}") == tables
    assert importlib.import_module(script).fill(page, lines) == page


def test_simulated_annotators_are_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "pages"))
    table = importlib.import_module("annotators_table")
    clean = importlib.import_module("noise_rate_table").load("digits")[1]
    for kind, pool in table.POOLS.items():
        made = table.annotate("digits", kind, 3, 0)
        assert ((made >= 0).sum(1) == 3).all()
        accuracy = table.agreement(made, clean)
        assert made.shape[1] == len(accuracy) == sum(pool.values()) == 30
        good = accuracy[: pool.get("good", 0)]
        assert ((good > 0.45) & (good < 1)).all()
        if kind == "random":
            assert (accuracy[21:] < 0.25).all()
        if kind == "copying":
            both = (made[:, 24] >= 0) & (made[:, 0] >= 0)
            assert both.sum() > 50
            assert (made[both, 24] == made[both, 0]).all()
        if kind == "lazy":
            assert all(np.bincount(column[column >= 0]).max() > 0.7 * (column >= 0).sum() for column in made.T[21:])
