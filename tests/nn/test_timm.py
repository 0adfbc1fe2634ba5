"""timm:NAME: found by name, built without its classifier, and what is said where timm is missing."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from unflip.errors import ConfigError, InputError, MissingExtraError
from unflip.nn import networks
from unflip.nn import timm as module
from unflip.nn.backbone import usual_freeze_epochs
from unflip.nn.base import build_network
from unflip.nn.timm import TimmOptions
from unflip.runs.config import RunConfig

needs_timm = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="the extra `timm` is not installed")


class FakeEncoder(nn.Module):
    """What timm would build."""

    def __init__(self, pretrained: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), float(pretrained)))
        self.pretrained_cfg = {"input_size": (3, 4, 4)}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1)[:, :5] * self.weight


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand in for timm, with one network; return what it was asked to create."""
    created: list[dict[str, Any]] = []

    def create_model(name: str, **options: Any) -> nn.Module:
        created.append({"name": name, **options})
        return FakeEncoder(options["pretrained"])

    fake = ModuleType("timm")
    fake.__dict__.update(create_model=create_model, list_models=lambda: ["tiny"], list_pretrained=lambda: ["tiny.in1k"])
    monkeypatch.setitem(sys.modules, "timm", fake)
    return created


@needs_timm
def test_a_timm_network_keeps_the_contract() -> None:
    kind = networks.load("timm:resnet10t")
    network = build_network("timm:resnet10t", kind.Options(pretrained=False), (3, 32, 32), 4, seed=0).eval()
    inputs = torch.randn(2, 3, 32, 32)
    features = network.encode(inputs)
    assert features.shape == (2, network.head.in_features)
    torch.testing.assert_close(network(inputs), network.head(features))
    assert network.head.out_features == 4


@needs_timm
def test_counting_the_features_changes_neither_weights_nor_statistics_nor_what_is_drawn_next() -> None:
    network = build_network("timm:resnet10t", TimmOptions(pretrained=False), (3, 32, 32), 4, seed=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        encoder = module.import_timm().create_model("resnet10t", num_classes=0)
        head = nn.Linear(encoder.head_hidden_size, 4)
    expected = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    expected |= {f"head.{name}": value for name, value in head.state_dict().items()}
    found = network.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert all(part.training for part in network.modules())


@needs_timm
def test_a_network_of_which_timm_does_not_note_the_number_of_features_is_built() -> None:
    network = build_network("timm:poolformerv2_s12", TimmOptions(pretrained=False), (3, 32, 32), 4, seed=0)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 4)


@needs_timm
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_tiny_patch16_224", r"do not fit \(.*match model \(224\)\.\); try --set data\.image_size=224, or another"),
        ("inception_v4", r"do not fit \(.*[Kk]ernel size.*\); try --set data\.image_size=299, or another network$"),
    ],
)
def test_images_that_a_network_cannot_take_are_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^timm:{name}: images of 32x32 pixels {message}"):
        build_network(f"timm:{name}", TimmOptions(pretrained=False), (3, 32, 32), 4, seed=0)


def test_a_network_that_fails_at_its_own_size_does_not_have_that_size_recommended(
    fake_timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        raise AttributeError("no such part")

    monkeypatch.setattr(FakeEncoder, "forward", broken)
    with pytest.raises(ConfigError, match=r"do not fit \(AttributeError: no such part\); try .*another network$"):
        build_network("timm:tiny", TimmOptions(), (3, 4, 4), 3, seed=0)


def test_a_network_that_makes_no_features_is_one_line(
    fake_timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEncoder, "forward", lambda self, inputs: inputs.new_empty(len(inputs), 0))
    with pytest.raises(ConfigError, match=r"images of 4x4 pixels become \(0,\), not a feature vector; try another"):
        build_network("timm:tiny", TimmOptions(), (3, 4, 4), 3, seed=0)


@pytest.mark.parametrize("fits", [True, False])
def test_operators_are_declared_only_where_torchvision_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    declared: list[str] = []

    def imported(name: str) -> ModuleType:
        if not fits and name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")
        return ModuleType(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.setattr(torch.library, "define", lambda name, _: declared.append(name))
    assert module.import_timm().__name__ == "timm"
    assert declared == ([] if fits else ["torchvision::nms", "torchvision::qnms"])


@needs_timm
def test_a_name_close_to_one_of_timms_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"unknown network 'timm:resnt18', did you mean 'timm:resnet18'\?"):
        networks.load("timm:resnt18")


@pytest.mark.parametrize("name", ["tiny", "tiny.in1k"])
def test_the_family_makes_a_class_for_each_name(fake_timm: list[dict[str, Any]], name: str) -> None:
    kind = networks.load(f"timm:{name}")
    assert kind.Options is TimmOptions
    network = build_network(f"timm:{name}", kind.Options(pretrained=False), (2, 4, 4), 3, seed=0)
    assert network(torch.ones(2, 2, 4, 4)).shape == (2, 3)
    assert fake_timm == [{"name": name, "pretrained": False, "num_classes": 0, "in_chans": 2}]


def test_all_of_timm_shares_one_section(fake_timm: list[dict[str, Any]]) -> None:
    layer = {"network": "timm:tiny.in1k", "data": {"path": "digits"}, "timm": {"pretrained": True}}
    config = RunConfig.resolve([layer], explicit=["timm"])
    freeze_epochs = usual_freeze_epochs(config.common.epochs)
    assert config.network_options == TimmOptions(pretrained=True, freeze_epochs=freeze_epochs)
    rest = {"backbone_lr_scale": 0.1, "freeze_batch_norm": True, "freeze_epochs": freeze_epochs}
    assert config.tree()["timm"] == {"pretrained": True} | rest
    assert RunConfig.resolve([layer | {"network": "mlp"}]).common.network == "mlp"  # a preset may hold it unused


@pytest.mark.parametrize("name", ["tinny", "tiny.in2k", "tiny.in1k.x"])
def test_an_unknown_member_is_refused(fake_timm: list[dict[str, Any]], name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown network 'timm:{name}', did you mean 'timm:tiny"):
        networks.load(f"timm:{name}")


@pytest.mark.parametrize("name", ["", "nosuch"])
def test_nothing_unrelated_is_suggested(fake_timm: list[dict[str, Any]], name: str) -> None:
    message = rf"^unknown network 'timm:{name}', write timm:NAME with a name of timm\.list_models\(\)$"
    with pytest.raises(ConfigError, match=message):
        networks.load(f"timm:{name}")


def test_weights_are_fetched_to_train_and_not_to_load_a_model(fake_timm: list[dict[str, Any]]) -> None:
    networks.load("timm:tiny")
    options = TimmOptions(pretrained=True)
    loaded = build_network("timm:tiny", options, (3, 4, 4), 3, seed=0, fresh=False)
    assert [entry["pretrained"] for entry in fake_timm] == [False]
    trained = build_network("timm:tiny", options, (3, 4, 4), 3, seed=0)
    assert isinstance(loaded.encoder, FakeEncoder)
    assert isinstance(trained.encoder, FakeEncoder)
    assert (loaded.encoder.weight.item(), trained.encoder.weight.item()) == (0.0, 1.0)


def test_weights_out_of_reach_are_one_line(fake_timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, pretrained: bool, **options: Any) -> nn.Module:
        if pretrained:
            raise OSError("no route.\nto anywhere")
        return FakeEncoder(pretrained)

    monkeypatch.setattr(sys.modules["timm"], "create_model", create_model)
    with pytest.raises(InputError, match=r"^no weights for timm:tiny: no route; .*: --from-scratch$"):
        build_network("timm:tiny", TimmOptions(pretrained=True), (3, 4, 4), 3, seed=0)


def test_examples_that_are_no_images_are_refused(fake_timm: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="takes images"):
        build_network("timm:tiny", TimmOptions(), (6,), 3, seed=0)


def test_without_timm_the_install_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"timm is not installed; try: pip install 'unflip\[timm\]'"):
        networks.load("timm:resnet18")


def test_another_error_of_the_import_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise RuntimeError("something else")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="something else"):
        module.import_timm()


def test_a_backbone_whose_weights_cannot_be_fetched_says_how_to_give_them(
    fake_timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_model(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        if pretrained:
            raise OSError("no route")
        return FakeEncoder(pretrained)

    monkeypatch.setattr(sys.modules["timm"], "create_model", create_model)
    with pytest.raises(InputError, match=r"^no weights for timm:tiny: no route; give a file with --weights$"):
        module.backbone("tiny")(None)
