"""Runs that are killed at random moments, again and again, end as if nothing had happened."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import QUICK, assert_same_run, blobs, spawn_python, write_npz
from unflip.methods import methods
from unflip.runs.folder import Run

SETTINGS: dict[str, dict[str, Any]] = {
    "unflip": {"unflip.warmup": 2, "unflip.steps": 60},
    "plc": {"plc.warmup": 2, "plc.rounds": 3},
    "mddc": {"plc.warmup": 2},
    "cddc": {"plc.warmup": 2, "covariance.disturbance": "auto"},
    "gce": {"gce.truncation": 0.2, "gce.prune_from": 2, "gce.prune_every": 1},
    "lrt": {"lrt.warmup": 3, "lrt.retro_lead": 1},
    "coteaching+": {"coteaching+.warmup": 2, "coteaching+.ramp_epochs": 3},
    "dividemix": {"dividemix.warmup": 2, "dividemix.lambda_u": 5.0, "data.jitter": 0.1},
    "dividemix-m": {"dividemix.warmup": 2},
    "dividemix-c": {"dividemix.warmup": 2},
}
"""Options with which a method reaches each of its stages within five epochs."""
SAMPLE = ["unflip"]
METHODS = [*methods.names(), "gce-m", "standard-c"]


def survive(tmp_path: Path, names: list[str], kills: int) -> dict[str, list[str]]:
    """Kill a run of each method, compare it with the undisturbed one, and return where the kills came."""
    content = blobs(train=200)
    content["train_labels"][::6] = (content["train_labels"][::6] + 1) % 3
    data = write_npz(tmp_path / "noisy.npz", **content)
    jobs = [
        {"name": name, "method": name, "settings": QUICK | {"mlp.dropout": 0.1} | SETTINGS.get(name, {})}
        for name in names
    ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).parents[1] / "support" / "killed.py"
    done = spawn_python(script, data, tmp_path / "jobs.json", tmp_path / "out", kills, timeout=3000)
    assert done.code == 0, done.err
    for name in names:
        undisturbed, killed = (Run(tmp_path / "out" / name / which) for which in ("undisturbed", "killed"))
        assert_same_run(undisturbed, killed)
        for file in ("features.npy", "transition.npy"):
            if (undisturbed.folder / file).exists():
                np.testing.assert_array_equal(np.load(undisturbed.folder / file), np.load(killed.folder / file))
        left = [path for path in killed.folder.rglob(".*") if path.name != ".unflip-lock"]
        assert left == []  # nothing half written
    kills_of: dict[str, list[str]] = json.loads((tmp_path / "out" / "kills.json").read_text())
    return kills_of


def test_killed_runs_end_like_undisturbed_ones(tmp_path: Path) -> None:
    kills = survive(tmp_path, SAMPLE, kills=2)
    assert [len(places) for places in kills.values()] == [2]


@pytest.mark.soak
def test_killed_runs_of_all_methods_end_like_undisturbed_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = survive(tmp_path, METHODS, kills=int(os.environ.get("UNFLIP_KILLS", "12")))
    places = [place for method in kills.values() for place in method]
    kinds = {
        "before the first checkpoint": sum(place.startswith("before") for place in places),
        "within an epoch": sum("phase" in place for place in places),
        "after an epoch's end": sum(place.startswith("epoch") and "phase" not in place for place in places),
        "while writing the result": sum(place.startswith("writing") for place in places),
    }
    with capsys.disabled():
        print(f"\n{len(places)} kills over {len(kills)} methods survived: {kinds}")  # noqa: T201
    assert kinds["within an epoch"] > 0
