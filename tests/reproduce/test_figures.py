"""Every figure is drawn from what is there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import influence_figure
from curves_figure import draw_curves
from demo_figure import draw_demo
from helpers import quick_train, result_line, write_results
from pmd_figure import draw_pmd
from shift_figure import draw_shift, ellipse
from unflip import corrupt
from unflip.errors import ConfigError, RunFolderError
from unflip.runs.folder import Run
from unflip.stats.gaussians import ClassGaussians

HEADS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
ALPHA = "covariance.disturbance"


@pytest.fixture(scope="module")
def runs(features: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    options: dict[str, Any] = {"epochs": 3, "noise": "sym:0.3", "select": "last", "settings": {"plc.warmup": 1}}
    made = {method: quick_train(features, folder / method, method=method, **options) for method in ("mddc", "cddc")}
    return made | {"gce": quick_train(features, folder / "gce", method="gce", epochs=3)}


def alpha_lines(**more: Any) -> list[dict[str, Any]]:
    setting = {"noise": "I 35%", "method": "cddc"}
    return [
        result_line({"data": data, **setting, ALPHA: alpha, "seed": seed}, 0.5 + alpha + seed / 100, **more)
        for data in ("CIFAR-10", "CIFAR-100")
        for alpha in (0.2, 0.1)
        for seed in (0, 1, 2)
    ]


def is_picture(path: Path) -> None:
    assert path.read_bytes().startswith(HEADS[path.suffix])
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(("name", "axis"), [("alpha", ALPHA), ("lambda", "calibration.sample_fraction")])
def test_the_influence_of_an_option(tmp_path: Path, name: str, axis: str) -> None:
    lines = alpha_lines()
    for line in lines:
        line["axes"][axis] = line["axes"].pop(ALPHA)
    influence_figure.main(name, str(write_results(tmp_path / "r.jsonl", lines)), str(tmp_path / "a.png"))
    is_picture(tmp_path / "a.png")


def test_influence_is_the_mean_over_seeds_in_order_of_the_value() -> None:
    auto = result_line({"data": "CIFAR-10", "noise": "I 35%", "method": "cddc", ALPHA: "auto", "seed": 0}, 0.9)
    other = result_line({"data": "CIFAR-10", "noise": "I 35%", "method": "cddc", "seed": 0}, 0.9)
    first, second = influence_figure.influence([*alpha_lines(), auto, other], ALPHA)
    assert (first.setting, second.setting) == ("CIFAR-10 I 35%", "CIFAR-100 I 35%")
    curve = first.curves["cddc"]
    assert [(value, str(n.mean), str(n.deviation), n.seeds) for value, n in curve.items()] == [
        (0.1, "61.00", "1.00", 3),
        (0.2, "71.00", "1.00", 3),
    ]


def test_what_was_not_tested_has_no_curve() -> None:
    line = result_line({"data": "CIFAR-10", "noise": "I 35%", "method": "cddc", ALPHA: 0.3, "seed": 0}, None)
    assert list(influence_figure.influence([*alpha_lines(), line], ALPHA)[0].curves["cddc"]) == [0.1, 0.2]
    with pytest.raises(ConfigError, match="none of 1 has the axis"):
        influence_figure.influence([line], ALPHA)


def test_mixed_protocols_have_no_common_curve() -> None:
    with pytest.raises(ConfigError, match="CIFAR-10 I 35% mixes epochs 15"):
        influence_figure.influence([*alpha_lines(), *alpha_lines(epochs=30)[:1]], ALPHA)


def test_learning_curves(tmp_path: Path, runs: dict[str, Run]) -> None:
    draw_curves(tmp_path / "c.svg", [*runs.values()])
    is_picture(tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    for label in ("test accuracy (%)", "correct training labels (%)", *runs):
        assert f"<!-- {label} -->" in text  # matplotlib names the text that it draws as outlines


def test_the_demo(tmp_path: Path) -> None:
    labels = tmp_path / "labels.npy"
    corrupt("digits", "sym:0.3", labels, device="cpu")
    run = quick_train("digits", tmp_path / "gce", method="gce", epochs=2, labels=labels)
    draw_demo(tmp_path / "demo.png", {"gce": run})
    is_picture(tmp_path / "demo.png")


@pytest.mark.parametrize("method", ["mddc", "cddc"])
def test_the_mean_shift(tmp_path: Path, runs: dict[str, Run], method: str) -> None:
    draw_shift(tmp_path / "s.png", runs[method])
    is_picture(tmp_path / "s.png")


def test_the_pmd_curve(tmp_path: Path) -> None:
    draw_pmd(tmp_path / "pmd.svg")
    is_picture(tmp_path / "pmd.svg")


def test_an_ellipse_is_two_deviations_of_the_projected_gaussian() -> None:
    """Of draws in a plane, 1 - exp(-2) lie within two deviations."""
    random = torch.Generator().manual_seed(0)
    factor = torch.randn(5, 4, generator=random)
    plane = torch.randn(4, 2, generator=random)
    one = torch.ones(1)
    gaussians = ClassGaussians(torch.ones(1, 4), one.bool(), [factor], 0.3 * one, disturbance=0.7)
    drawn = (gaussians.sample(40_000, random)[0] @ plane).numpy()
    outline = ellipse(gaussians, 0, plane)
    center = (torch.ones(4) @ plane).numpy()
    np.testing.assert_allclose(outline[:-1].mean(0), center, atol=1e-5)
    inverse = np.linalg.inv(np.cov((outline[:-1] - center).T, bias=True) * 2)  # 1 on the outline
    distance = np.einsum("ni,ij,nj->n", drawn - center, inverse, drawn - center)
    assert (distance < 1).mean() == pytest.approx(1 - np.exp(-2), abs=0.01)


def test_a_run_without_gaussians_cannot_show_a_shift(tmp_path: Path, runs: dict[str, Run]) -> None:
    with pytest.raises(RunFolderError, match=r"gaussians\.safetensors is missing"):
        draw_shift(tmp_path / "s.png", runs["gce"])
    assert not (tmp_path / "s.png").exists()
