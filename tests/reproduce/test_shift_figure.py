"""The shift of class Gaussians: means, planes and outlines against the slow way."""

from pathlib import Path

import numpy as np
import pytest

from helpers import quick_train
from shift_figure import measure_shift
from unflip.errors import RunFolderError
from unflip.runs.folder import Run


def noisy(features: Path, out: Path) -> Run:
    settings = {"plc.warmup": 2, "calibration.head_lr": 0.01}
    return quick_train(features, out, method="mddc", noise="sym:0.3", epochs=6, select="last", settings=settings)


@pytest.fixture(scope="module")
def run(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return noisy(features, tmp_path_factory.mktemp("runs") / "mddc")


def test_the_shift_starts_at_the_means_of_the_given_labels(run: Run) -> None:
    """The slow way: all features, both sets of labels, the plane from the distances between projected means."""
    found = measure_shift(run)
    assert [panel.title for panel in found.panels] == ["given labels", "current labels", "current labels, calibrated"]
    assert found.classes == (0, 1, 2)
    table = run.labels()
    train = table["split"].to_numpy() == "train"
    kept, gaussians = run.hidden_features, run.gaussians
    assert kept is not None
    assert gaussians is not None
    features = kept[train].astype(np.float64)
    truth = {"given_label": found.panels[0], "current_label": found.panels[1]}
    # Means are enough to find the plane again: a linear map from features to the picture.
    means = {name: np.stack([features[table[name].to_numpy()[train] == c].mean(0) for c in range(3)]) for name in truth}
    sources = np.concatenate([*means.values(), gaussians.means.double().numpy()])
    targets = np.concatenate([panel.means for panel in found.panels])
    plane, *_ = np.linalg.lstsq(sources, targets, rcond=None)
    np.testing.assert_allclose(sources @ plane, targets, rtol=1e-3, atol=1e-3)
    for name, panel in truth.items():
        labels = table[name].to_numpy()[train]
        for c in range(3):
            assert len(panel.points[c]) == min(150, (labels == c).sum())
            np.testing.assert_allclose(panel.outlines[c][:-1].mean(0), panel.means[c], atol=1e-4)


def test_the_outline_of_plain_classes_is_two_deviations_wide(run: Run) -> None:
    panel = measure_shift(run).panels[0]
    points, outline = panel.points[1], panel.outlines[1]
    covariance = np.cov(points.T, bias=True)
    inverse = np.linalg.inv(covariance)
    distance = np.einsum("ni,ij,nj->n", outline - panel.means[1], inverse, outline - panel.means[1])
    np.testing.assert_allclose(distance, 4.0, rtol=1e-2)


def test_features_of_two_runs_are_not_mixed(features: Path, tmp_path: Path) -> None:
    run = noisy(features, tmp_path / "run")
    np.save(run.folder / "features.npy", np.zeros((7, 4), np.float16))
    with pytest.raises(RunFolderError, match="7 features for 150 labels"):
        measure_shift(run)


def test_many_rows_are_thinned(run: Run) -> None:
    whole, thinned = measure_shift(run), measure_shift(run, max_rows=60)
    assert sum(map(len, thinned.panels[0].points)) < sum(map(len, whole.panels[0].points))
    assert thinned.classes == whole.classes
