"""Runs that are trained once and copied, since a review writes into them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reviewing import Client, served
from unflip import train

pytest.importorskip("fastapi", reason="fastapi is not installed: pip install 'unflip[review]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'unflip[review]'")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 400 digits, a third of them called wrong."""
    folder = tmp_path_factory.mktemp("trained") / "digits"
    train("digits", folder, take=400, noise="sym:0.3", method="unflip", epochs=6, device="cpu")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A fresh copy of that run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def client(run: Path) -> Iterator[Client]:
    with served(run) as (address, _):
        yield Client(address)
