"""Runs that are trained once and copied, since a review writes into them."""

import csv
import importlib.util
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import quick_train
from reviewing import Client, served
from unflip import train

pytest.importorskip("fastapi", reason="fastapi is not installed: pip install 'unflip[review]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'unflip[review]'")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 400 digits, a third of them called wrong."""
    folder = tmp_path_factory.mktemp("trained") / "digits"
    train("digits", folder, limit=400, noise="sym:0.3", method="unflip", epochs=6, device="cpu")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A fresh copy of that run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


MARKUP = "<img src=x onerror=document.title='owned'>"
SUBJECTS = {
    "post": "the parcel 📦 never came and the courier lost our delivery address",
    "bank": "the bank charged my card twice and the transfer fee is wrong",
}


@pytest.fixture(scope="session")
def trained_on_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on texts with other columns beside them, every eleventh called wrong; some are long, 4 is empty."""
    if importlib.util.find_spec("wordllama") is None or importlib.util.find_spec("tokenizers") is None:
        pytest.skip("the extra `text` is not installed")
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    with (folder / "mail.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("body", "day", "number", "note", "label"))
        for i in range(120):
            subject = list(SUBJECTS)[i % 2]
            words = draw.choices(SUBJECTS[subject].split(), k=600 if i % 10 == 0 else 12)
            body = "" if i == 4 else " ".join(words) + (f"\n\n    {MARKUP}" if i % 3 == 0 else "")
            day = "" if i % 5 == 0 else f"2024-01-{i % 28 + 1:02d}"
            out.writerow((body, day, 20240101 + i, ("in", "out")[i % 3 == 0], subject if i % 11 else "post"))
    quick_train(folder / "mail.csv", folder / "run", label_column="label", text_encoder="wordllama", epochs=3)
    return folder / "run"


@pytest.fixture
def texts_run(trained_on_texts: Path, tmp_path: Path) -> Path:
    """A fresh copy of that run."""
    return Path(shutil.copytree(trained_on_texts, tmp_path / "run"))


@pytest.fixture
def client(run: Path) -> Iterator[Client]:
    with served(run) as (address, _):
        yield Client(address)
