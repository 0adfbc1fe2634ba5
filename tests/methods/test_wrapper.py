"""A wrapper passes on every hook of the contract that it does not define itself."""

import inspect

import pytest
import torch

from unflip.methods.base import Method, Outline, Setting
from unflip.methods.calibrated import Calibrated
from unflip.methods.recipes import find_recipe
from unflip.methods.wrapper import Wrapper
from unflip.options import Options

SETTING = Setting(
    num_classes=2,
    train=torch.arange(4),
    epochs=3,
    seed=0,
    batch_size=2,
    lr_factor=lambda epoch: 1.0,
    device=torch.device("cpu"),
)
SHORT = Outline(epochs=12, lr=0.3, of_rows=True)
HOOKS = [name for name in vars(Method) if not name.startswith("_")]


class Inner(Method):
    """Answers every hook with the hook's name."""


for _name in HOOKS:
    setattr(Inner, _name, _name)


class Plain(Wrapper):
    """Defines nothing."""


@pytest.mark.parametrize("hook", HOOKS)
def test_a_wrapper_that_defines_nothing_is_the_inner_method(hook: str) -> None:
    assert getattr(Plain(Inner(Options(), SETTING), Options(), SETTING), hook) == hook


def test_a_hook_that_is_added_to_the_contract_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "later", lambda self: "default", raising=False)

    class New(Wrapper):
        """Made once the contract has one more hook."""

    class Answering(Method):
        """Answers it."""

        def later(self) -> str:
            """Answer."""
            return "mine"

    wrapped = New(Answering(Options(), SETTING), Options(), SETTING)
    assert wrapped.later() == "mine"  # type: ignore[attr-defined]


def test_what_a_wrapper_defines_is_its_own() -> None:
    class Longer(Wrapper):
        @property
        def warmup(self) -> int:
            return 1 + self.inner.warmup

    class Seven(Method):
        @property
        def warmup(self) -> int:
            return 7

    assert Longer(Seven(Options(), SETTING), Options(), SETTING).warmup == 8


def test_calibration_defines_only_what_it_does_otherwise() -> None:
    own = {name for name in vars(Calibrated) if name in HOOKS and inspect.isfunction(vars(Calibrated)[name])}
    assert own == {"end_epoch", "stage", "gaussians", "state_dict", "load_state_dict"}


@pytest.mark.parametrize(("method", "expected"), [("plc", 4), ("mddc", 4), ("lrt-c", 4), ("dividemix", 4)])
def test_options_for_short_runs_go_through_calibration(method: str, expected: int) -> None:
    section = {"mddc": "plc", "lrt-c": "lrt"}.get(method, method)
    assert find_recipe(method).options_for(SHORT)[section] == {"warmup": expected}


def test_long_runs_have_the_published_warm_up() -> None:
    assert find_recipe("lrt").options_for(SHORT._replace(epochs=180)) == {"lrt": {"warmup": 30}}


def test_methods_without_a_warm_up_ask_for_none() -> None:
    assert find_recipe("gce").options_for(SHORT) == {}
    assert find_recipe("gce-m").options_for(SHORT) == {"calibration": {"head_lr": 0.3}}


def test_the_views_of_a_row_differ_and_those_of_an_image_need_no_jitter() -> None:
    assert find_recipe("dividemix-c").options_for(SHORT)["data"] == {"jitter": 0.1}
    assert "data" not in find_recipe("dividemix-c").options_for(SHORT._replace(of_rows=False))
