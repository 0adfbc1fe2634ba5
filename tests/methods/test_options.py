"""Every option of every method matters: another value changes the weights, the labels or the metrics of a tiny run."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import QUICK, blobs, without_times, write_npz
from unflip.api.options import TRAIN, option_tree
from unflip.api.train import layers_of
from unflip.engine.distributed import Distributed
from unflip.engine.run import make_trainer, prepare_data
from unflip.methods import calibrators, find_method, methods
from unflip.options import Options
from unflip.progress import Reporter

Outcome = tuple[str, str, str]

BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "unflip": ("unflip", {"members": 3, "warmup": 1, "steps": 12}),
    "gce": ("gce", {"truncation": 0.4, "prune_from": 2, "prune_every": 2}),
    "sl": ("sl", {}),
    "coteaching+": ("coteaching+", {"warmup": 1, "ramp_epochs": 3}),
    "lrt": ("lrt", {"warmup": 2, "retro_lead": 1, "window": 3}),
    "plc": ("plc", {"warmup": 2, "stall": 1.0}),
    "elr": ("elr", {}),
    "elr+": ("elr+", {}),
    "ssr": ("ssr", {"relabel_threshold": 0.6, "neighbors": 5}),
    "dividemix": ("dividemix", {"warmup": 2, "lambda_u": 20.0, "rampup": 2}),
    "calibration": ("standard-c", {"sample_fraction": 1.0, "head_lr": 0.5}),
    "mean": ("standard-m", {}),
    "covariance": ("standard-c", {}),
}
"""The method whose run shows the effect of a section, and options of the section with which each of them matters."""
OTHERS: dict[str, dict[str, Any]] = {
    "unflip": {
        "members": 2, "warmup": 3, "steps": 25, "mixup": 0.0, "ema_decay": 0.5, "gaussians": False,
        "window": 1, "prior": "empirical", "noise_rate": 0.3, "soft_targets": False,
    },
    "gce": {"q": 0.2, "truncation": 0.1, "prune_from": 3, "prune_every": 1},
    "sl": {"alpha": 1.0, "beta": 0.2, "log_zero": -9.0},
    "coteaching+": {"warmup": 3, "forget_rate": 0.5, "ramp_epochs": 1},
    "lrt": {
        "warmup": 3, "delta": 4.0, "delta_step": 1.0, "window": 1, "retro_lead": 0, "retro_weight": 0.1,
        "retro_refresh": 1,
    },
    "plc": {
        "rule": "margin", "threshold": 0.8, "step": 0.3, "limit": 0.35, "stall": 0.0, "window": 1, "warmup": 3,
        "rounds": 3,
    },
    "dividemix": {
        "warmup": 1, "lambda_u": 0.0, "rampup": 1, "alpha": 0.5, "temperature": 1.0, "p_threshold": 0.9, "window": 2,
        "asymmetric": True, "prior_weight": 0.0,
    },
    "elr": {"strength": 1.0, "memory": 0.2},
    "elr+": {"strength": 1.0, "memory": 0.2, "mixup": 0.0, "ema_decay": 0.1, "rampup": 3.0},
    "ssr": {"relabel_threshold": 0.4, "select_threshold": 0.3, "neighbors": 2, "mixup": 0.0, "warmup": 2},
    "calibration": {"sample_fraction": 0.3, "head_lr": 0.1, "head_momentum": 0.0, "start": 3, "every": 2},
    "mean": {"damping": 0.1, "covariance": "isotropic", "normalize": "count", "complement": "plain", "n_components": 2},
    "covariance": {"disturbance": 3.0},
}  # fmt: skip
"""Another value of each option."""
NO_EFFECT = {"rows": {("unflip", "window")}, "images": {("unflip", "gaussians")}}
"""Options that are said to have no effect on feature vectors or on images."""


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes that overlap, a fifth of the labels wrong, class sizes that differ."""
    content, random = blobs(train=72, test=6), np.random.default_rng(0)
    content["train"] += random.normal(size=(72, 6)).astype(np.float32) * 3
    content["train_labels"][::5] = (content["train_labels"][::5] + 1) % 3
    content["train_labels"][1:30:4] = 0
    return write_npz(tmp_path_factory.mktemp("noisy") / "noisy.npz", **content)


@pytest.fixture(scope="module")
def images(noisy: Path) -> Path:
    """The same as images of one pixel."""
    content = {name: value[..., None, None] if value.ndim == 2 else value for name, value in np.load(noisy).items()}
    return write_npz(noisy.with_name("images.npz"), **content)


def train_with(data: Path, section: str, **options: Any) -> Outcome:
    """Train four epochs; return weights, labels and metrics as text, in full precision."""
    method, base = BASES[section]
    settings = {f"{section}.{name}": value for name, value in (base | options).items()}
    tree = option_tree(
        TRAIN, {"settings": QUICK | settings, "method": method, "network": "mlp", "epochs": 4, "select": "last"}
    )
    tree.pop("execution", None)
    config, processes = layers_of(data, tree, None).resolve(), Distributed("cpu", "float32", 1)
    dataset = prepare_data(config, processes, config.load_data())
    trainer = make_trainer(config, dataset, processes, Reporter())
    metrics = without_times(list(trainer.fit()))
    weights = {name: value.tolist() for name, value in trainer.method.model().state_dict().items()}
    return repr(weights), repr(trainer.labels.current.tolist()), repr(metrics)


plain = cache(train_with)
CASES = [("rows", section, option) for section in OTHERS for option in OTHERS[section]]
CASES += [("images", "unflip", option) for option in OTHERS["unflip"]]  # another class: see methods/unflip/pixels.py


@pytest.mark.parametrize(("kind", "section", "option"), CASES)
def test_another_value_changes_something(kind: str, section: str, option: str, noisy: Path, images: Path) -> None:
    data = noisy if kind == "rows" else images
    changed = train_with(data, section, **{option: OTHERS[section][option]}) != plain(data, section)
    assert changed == ((section, option) not in NO_EFFECT[kind])


def test_the_same_value_changes_nothing(noisy: Path) -> None:
    assert train_with(noisy, "plc") == plain(noisy, "plc")


def test_every_option_of_every_method_is_tried() -> None:
    sections: dict[str, type[Options]] = {}
    for name in [*methods.names(), *(f"standard-{kind[0]}" for kind in calibrators)]:
        sections |= find_method(name).sections
    fields = {section: set(options.model_fields) for section, options in sections.items() if options.model_fields}
    for section in fields | OTHERS:
        hint = f"section '{section}': add its method to BASES, and another value of each of its options to OTHERS"
        assert section in BASES, hint
        assert set(OTHERS.get(section, {})) == fields.get(section, set()), hint
