"""The same run twice, with two threads and as many examples as threads share: bit for bit the same."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import assert_same_run, blobs, quick_train, write_npz


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", ["mddc", pytest.param("dividemix-c", marks=pytest.mark.soak)])
def test_two_runs_with_two_threads_are_the_same(method: str, tmp_path: Path) -> None:
    """Where several changes of a label, or several members of a class, meet in one place, the order must not matter."""
    content = blobs(train=45_000, test=100)
    random = np.random.default_rng(0)
    content["train"] += random.normal(scale=3.0, size=content["train"].shape).astype(np.float32)
    wrong = random.random(45_000) < 0.4
    content["train_labels"][wrong] = random.integers(0, 3, wrong.sum())
    data = write_npz(tmp_path / "data.npz", **content)
    settings = {"optimizer.batch_size": 4096, "plc.rounds": 2, "plc.warmup": 1} if method == "mddc" else {
        "optimizer.batch_size": 4096, "dividemix.warmup": 1,
    }  # fmt: skip
    first, second = (
        quick_train(data, tmp_path / name, method=method, epochs=3, settings=settings, threads=2)
        for name in ("first", "second")
    )
    assert sum(line["changed"] for line in first.metrics[1:]) > 1000
    assert_same_run(first, second)
