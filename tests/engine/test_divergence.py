"""Learning rates that no network survives: one line with place and hint, or a finished run."""

import re
from pathlib import Path

import pytest

from helpers import blobs, quick_train, write_npz
from unflip.errors import DivergedError
from unflip.methods import methods
from unflip.runs.folder import Run

SAMPLED = ("standard", "mddc", "unflip")
METHODS = [*methods.names(), "gce-m", "standard-c"]
WHERE = re.compile(
    r"^[^;]+ (in epoch \d+, batch \d+|at the end of epoch \d+|in the model of epoch \d+|at the end of the run); "
    r"try a smaller learning rate \(--set optimizer\.lr=\.\.\.\)$"
)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = blobs(train=90, test=30)
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in SAMPLED else pytest.mark.soak) for name in METHODS]
)
def test_a_run_ends_or_says_in_one_line_where_it_diverged(
    noisy: Path, tmp_path: Path, method: str, batch_norm: bool
) -> None:
    for power in (1, 3, 6):
        settings = {"optimizer.lr": 10.0**power, "mlp.batch_norm": batch_norm, "mlp.hidden": [8, 8]}
        message = ""
        try:
            quick_train(noisy, tmp_path / str(power), method=method, epochs=3, settings=settings)
        except DivergedError as error:
            message = str(error)
        assert WHERE.match(message) if message else Run(tmp_path / str(power)).is_finished, message


@pytest.mark.parametrize("method", ["standard", "gce"])
def test_a_run_without_anything_to_evaluate_notices_it_too(noisy: Path, tmp_path: Path, method: str) -> None:
    content = {name: value for name, value in blobs(train=90).items() if name.startswith("train")}
    data = write_npz(tmp_path / "data.npz", **content)
    settings = {"optimizer.lr": 1e12, "mlp.batch_norm": False, "mlp.hidden": [8, 8], "data.val_fraction": 0.0}
    with pytest.raises(DivergedError, match="epoch 1"):
        quick_train(data, tmp_path / "run", method=method, epochs=1, select="last", settings=settings)
