"""Posteriors: out-of-fold and calibrated, or as the released generator made them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import Outcome, blobs, write_npz
from unflip.data.options import CROSS_FIT, IN_SAMPLE
from unflip.data.sources import ArraySource
from unflip.engine.distributed import Distributed
from unflip.engine.posterior import PosteriorFit, temperature
from unflip.nn.mlp import MLPOptions
from unflip.progress import Reporter
from unflip.runs.options import OptimizerOptions


@given(st.integers(0, 100), st.floats(-1.0, 1.0))
def test_the_temperature_beats_a_fine_grid(seed: int, scale: float) -> None:
    random = torch.Generator().manual_seed(seed)
    true = 2 * torch.randn(300, 4, generator=random, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(1), 1, generator=random)[:, 0]
    logits = true * 10**scale

    def cost(divisor: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / divisor, labels))

    best = min(cost(10 ** (i / 50)) for i in range(-100, 101))
    assert cost(temperature(logits, labels)) <= best + 1e-9


def test_the_temperature_undoes_a_scale() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, 3, generator=random, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
    assert temperature(7 * logits, labels) == pytest.approx(7 * temperature(logits, labels), rel=1e-4)


@pytest.fixture(scope="module")
def fit() -> PosteriorFit:
    optimizer = OptimizerOptions(batch_size=16, lr=0.05)
    return PosteriorFit(0, Distributed("cpu"), Reporter(), MLPOptions(hidden=(16,)), optimizer, epochs=5)


def _overlapping() -> tuple[ArraySource, torch.Tensor]:
    content = blobs(train=300)
    noise = np.random.default_rng(3).normal(scale=3.0, size=content["train"].shape).astype(np.float32)
    return ArraySource(content["train"] + noise), torch.from_numpy(content["train_labels"])


@pytest.mark.parametrize("kind", [CROSS_FIT, IN_SAMPLE])
def test_rows_are_probabilities_that_mostly_name_the_label(fit: PosteriorFit, kind: str) -> None:
    source, labels = _overlapping()
    posterior = fit(source, labels, 3, kind)
    assert posterior.shape == (300, 3)
    torch.testing.assert_close(posterior.sum(1), torch.ones(300))
    assert (posterior.argmax(1) == labels).float().mean() > 0.7
    assert torch.equal(posterior, fit(source, labels, 3, kind))


def test_cross_fitting_does_not_let_a_label_vouch_for_itself(fit: PosteriorFit) -> None:
    """A wrong label moves an in-sample posterior towards itself, an out-of-fold one not."""
    content = blobs(train=120)
    source, labels = ArraySource(content["train"]), torch.from_numpy(content["train_labels"])
    wrong = labels.clone()
    wrong[:6] = (wrong[:6] + 1) % 3
    out_of_fold = fit(source, wrong, 3, CROSS_FIT)
    assert (out_of_fold[:6].argmax(1) == labels[:6]).all()


@pytest.mark.parametrize(
    "flags",
    [
        ["--set", "optimizer.lr=0.3", "--set", "optimizer.batch_size=16"],
        ["--set", "mlp.hidden=[8]", "--epochs", "2"],
        ["--method", "standard", "--set", "precision=bfloat16"],
    ],
)
def test_train_makes_the_noise_that_corrupt_makes_whatever_the_run(
    cli: Callable[..., Outcome], tmp_path: Path, flags: list[str]
) -> None:
    content = blobs(train=200)
    content["train"] += np.random.default_rng(3).normal(scale=3.0, size=content["train"].shape).astype(np.float32)
    data = write_npz(tmp_path / "data.npz", **content)
    both = ["--data", data, "--noise", "pmd1:0.35", "--seed", "5", "--device", "cpu", "--quiet"]
    assert cli("corrupt", *both, "--out", tmp_path / "labels.npy").code == 0
    done = cli("train", *both, "--out", tmp_path / "run", "--epochs", "1", *flags)
    assert done.code == 0, done.err
    given = pyarrow.parquet.read_table(tmp_path / "run" / "labels.parquet")["given_label"].to_numpy()
    np.testing.assert_array_equal(given, np.load(tmp_path / "labels.npy"))
