"""The presets: each serves every method, and holds what the paper and the methods' authors state."""

from importlib import resources
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from unflip.methods import find_method, methods
from unflip.methods.base import TrainContext
from unflip.nn.base import build_network
from unflip.presets import preset_names, preset_text
from unflip.runs.config import RunConfig, read_preset

PLAIN = [name for name in methods.names() if not name.endswith(("-m", "-c"))]
CALIBRATED = [f"{name}-{end}" for name in PLAIN if find_method(name).method.can_be_calibrated for end in "mc"]
METHODS = list(dict.fromkeys([*methods.names(), *CALIBRATED]))  # some have an entry of their own
SGD = {"optimizer.momentum": 0.9}
CIFAR = SGD | {
    "network": "preact_resnet34",
    "select": "noisy-val",
    "data.val_fraction": 0.1,
    "data.augment": True,
    "optimizer.batch_size": 128,
    "optimizer.lr": 0.01,
    "optimizer.milestones": [40, 80],
    "optimizer.gamma": 0.5,
    "calibration.head_lr": 1e-4,
    "calibration.head_momentum": 0.9,
    "covariance.disturbance": "auto",  # section 3.3
}
REAL = SGD | {"optimizer.weight_decay": 1e-3, "optimizer.batch_size": 32, "optimizer.gamma": 0.1}
PLC = {"plc.threshold": 0.3, "plc.step": 0.1, "plc.limit": 0.9, "plc.stall": 0.001, "plc.window": 5, "plc.warmup": 8}
DIVIDEMIX = {"dividemix.temperature": 0.5, "dividemix.p_threshold": 0.5}
REAL_DIVIDEMIX = DIVIDEMIX | {"dividemix.alpha": 0.5, "dividemix.lambda_u": 0.0, "dividemix.warmup": 1}
STATED: list[tuple[str, str, dict[str, Any]]] = [
    ("cifar10", "the paper, section 4.2", CIFAR | {"epochs": 100}),
    ("cifar100", "the paper, section 4.2", CIFAR | {"epochs": 180}),
    (
        "webvision-mini",
        "the paper, section 4.3",
        REAL
        | {"network": "timm:inception_resnet_v2", "epochs": 100, "optimizer.lr": 0.01, "optimizer.milestones": [50]},
    ),
    (
        "clothing1m",
        "the paper, section 4.3",
        REAL
        | {"network": "timm:resnet50.tv_in1k", "timm.pretrained": True, "epochs": 20}
        | {"optimizer.lr": 0.001, "optimizer.milestones": [5]},
    ),
    *((name, "PLC's code", PLC | {"optimizer.nesterov": True, "optimizer.weight_decay": 5e-4})
      for name in ("cifar10", "cifar100", "cifar10-plc", "cifar100-plc")),
    *((name, "PLC's code", {"plc.threshold": 0.7, "plc.warmup": 1}) for name in ("clothing1m", "clothing1m-plc")),
    (
        "clothing1m-plc",
        "PLC's code",
        {"epochs": 15, "optimizer.milestones": [6, 11], "optimizer.gamma": 0.5, "data.per_class": 18976},
    ),
    *((f"cifar{n}-plc", "PLC's code", {"epochs": 180, "select": "clean-val"}) for n in (10, 100)),
    ("cifar10", "SL's paper", {"sl.alpha": 0.1, "sl.beta": 1.0, "sl.log_zero": -4.0}),
    ("cifar100", "SL's paper", {"sl.alpha": 6.0, "sl.beta": 0.1, "sl.log_zero": -4.0}),
    ("webvision-mini", "SL's paper", {"sl.alpha": 10.0, "sl.beta": 1.0}),
    ("cifar10", "Co-teaching+'s code", {"coteaching+.warmup": 20, "coteaching+.ramp_epochs": 10}),
    ("cifar100", "Co-teaching+'s code", {"coteaching+.warmup": 5, "coteaching+.ramp_epochs": 10}),
    *((name, "LRT's code", {"lrt.warmup": 30, "lrt.delta": 1.2, "lrt.delta_step": 0.02, "lrt.window": 10})
      for name in ("cifar10", "cifar100")),
    *((name, "GCE's paper", {"gce.q": 0.7}) for name in ("cifar10", "cifar100", "webvision-mini", "clothing1m")),
    ("cifar10", "GCE's paper", {"gce.prune_from": 40, "gce.prune_every": 10}),
    ("cifar100", "GCE's paper", {"gce.prune_from": 80, "gce.prune_every": 10}),
    *(
        (f"cifar{n}-dividemix", "DivideMix's paper", SGD | DIVIDEMIX | {
            "network": "preact_resnet18", "epochs": 300, "optimizer.batch_size": 64, "optimizer.lr": 0.02,
            "optimizer.milestones": [150], "optimizer.gamma": 0.1, "optimizer.weight_decay": 5e-4,
            "dividemix.alpha": 4.0, "dividemix.rampup": 16, "dividemix.warmup": warmup, "dividemix.lambda_u": weight,
        })
        for n, warmup, weight in ((10, 10, 0.0), (100, 30, 25.0))
    ),
    (
        "webvision-mini-dividemix",
        "DivideMix's code",
        REAL_DIVIDEMIX
        | {"network": "timm:inception_resnet_v2", "timm.pretrained": False, "epochs": 100, "optimizer.lr": 0.01}
        | {"optimizer.weight_decay": 5e-4, "optimizer.milestones": [50], "data.image_size": 299},
    ),
    (
        "clothing1m-dividemix",
        "DivideMix's code",
        REAL_DIVIDEMIX
        | {"network": "timm:resnet50.tv_in1k", "timm.pretrained": True, "epochs": 80, "optimizer.lr": 0.002}
        | {"optimizer.weight_decay": 1e-3, "optimizer.milestones": [40], "data.image_size": 224},
    ),
]  # fmt: skip


def resolve(preset: str, method: str | None = None) -> RunConfig:
    if read_preset(preset).get("network", "").startswith("timm:") and find_spec("timm") is None:
        pytest.skip("timm is not installed")
    return RunConfig.resolve([read_preset(preset), {"data": {"path": "x"}}, {"method": method} if method else {}])


def value(config: RunConfig, key: str) -> Any:
    tree: Any = config.tree()
    for part in key.split("."):
        tree = tree[part]
    return tree


@pytest.mark.parametrize(("preset", "source", "stated"), STATED, ids=[f"{row[0]}, {row[1]}" for row in STATED])
def test_what_the_sources_state_is_in_the_preset(preset: str, source: str, stated: dict[str, Any]) -> None:
    method = {"plc": "plc", "sl": "sl", "coteaching+": "coteaching+", "lrt": "lrt", "gce": "gce"}
    method |= {"dividemix": "dividemix", "calibration": "cddc", "covariance": "cddc"}
    for key, expected in stated.items():
        config = resolve(preset, method.get(key.partition(".")[0]))
        assert value(config, key) == expected, f"{key}, by {source}"


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_serves_every_method(preset: str) -> None:
    for method in METHODS:
        config = resolve(preset, method)
        setting = TrainContext(
            num_classes=5,
            train=torch.arange(20),
            epochs=config.common.epochs,
            seed=0,
            batch_size=config.common.optimizer.batch_size,
            lr_factor=lambda progress: 1.0,
            device=torch.device("cpu"),
        )
        config.check()
        built = find_method(method).build(config.parts, setting)
        assert built.warmup < config.common.epochs, f"{method} would never leave its warm-up"


@pytest.mark.parametrize("preset", preset_names())
def test_its_network_can_be_built(preset: str) -> None:
    config = resolve(preset)
    size = config.common.data.image_size or 32
    network = build_network(
        config.common.network, config.network_options, (3, size, size), 5, seed=0, fresh=False
    )  # not fresh: no weights are fetched
    assert network.head.out_features == 5


@pytest.mark.parametrize("preset", preset_names())
def test_a_file_holds_no_section_that_nobody_reads(preset: str) -> None:
    """A section of another method is let pass, so its keys are checked here, with a method that reads it."""
    for section in read_preset(preset):
        if section in PLAIN:
            resolve(preset, section)
    resolve(preset, "mddc"), resolve(preset, "cddc")


def test_features_train_the_default_method_for_fewer_epochs() -> None:
    assert resolve("features", "plc").common.epochs == 15
    assert resolve("features").common.epochs == resolve("features", "unflip").common.epochs == 10


@pytest.mark.parametrize("preset", preset_names())
def test_it_begins_with_its_line(preset: str) -> None:
    first = preset_text(preset).splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20


def test_second_presets_name_the_method_that_they_are_of() -> None:
    for name in preset_names():
        _, _, method = name.rpartition("-")
        if method in PLAIN:
            assert read_preset(name)["method"] == method


def test_every_file_of_the_folder_is_a_preset_or_the_module() -> None:
    names = {file.name for file in resources.files("unflip.presets").iterdir() if file.is_file()}
    assert names == {"__init__.py", *(f"{name}.toml" for name in preset_names())}
