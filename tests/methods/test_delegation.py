"""Calibration passes on every hook of the contract that it does not define itself; options go through it."""

import inspect

import pytest
import torch

from unflip.methods import find_method
from unflip.methods.base import Method, RunShape, TrainContext
from unflip.methods.mddc import Calibrated, CalibrationOptions, MeanCalibrator, MeanOptions
from unflip.methods.plc import PLC, CorrectionOptions
from unflip.options import Options

CONTEXT = TrainContext(
    num_classes=2,
    train=torch.arange(4),
    epochs=3,
    seed=0,
    batch_size=2,
    lr_factor=lambda epoch: 1.0,
    device=torch.device("cpu"),
)
SHORT = RunShape(epochs=12, lr=0.3, of_rows=True)
HOOKS = [name for name in vars(Method) if not name.startswith("_")]


OWN = {"set_networks", "end_epoch", "gaussians", "state_dict", "load_state_dict"}


class Inner(Method):
    """Answers every hook that is passed on with the hook's name and arguments."""


PASSED_ON = [name for name in HOOKS if callable(vars(Method)[name]) and name not in OWN | {"Options"}]
for _name in PASSED_ON:
    setattr(Inner, _name, lambda self, *arguments, name=_name: (name, *arguments))


@pytest.mark.parametrize("hook", PASSED_ON)
def test_calibration_passes_every_other_hook_on_to_the_inner_method(hook: str) -> None:
    method = Calibrated(Inner(Options(), CONTEXT), MeanCalibrator(MeanOptions()), CalibrationOptions(), CONTEXT)
    assert hook in vars(Calibrated)
    arguments = range(len(inspect.signature(getattr(Method, hook)).parameters) - 1)
    if hook not in ("before_step", "after_step"):  # they return nothing
        assert getattr(method, hook)(*arguments) == (hook, *arguments)


def test_steps_reach_the_inner_method() -> None:
    class Counting(Method):
        steps = 0

        def before_step(self) -> None:
            self.steps += 1

        def after_step(self) -> None:
            self.steps += 10

    inner = Counting(Options(), CONTEXT)
    method = Calibrated(inner, MeanCalibrator(MeanOptions()), CalibrationOptions(), CONTEXT)
    method.before_step()
    method.after_step()
    assert inner.steps == 11


def test_what_a_method_is_reaches_the_trainer() -> None:
    method = Calibrated(
        PLC(CorrectionOptions(warmup=7), CONTEXT), MeanCalibrator(MeanOptions()), CalibrationOptions(), CONTEXT
    )
    assert method.warmup == 7
    assert method.records_probs


@pytest.mark.parametrize(("method", "expected"), [("plc", 4), ("mddc", 4), ("lrt-c", 4), ("dividemix", 4)])
def test_options_for_short_runs_go_through_calibration(method: str, expected: int) -> None:
    section = {"mddc": "plc", "lrt-c": "lrt"}.get(method, method)
    assert find_method(method).options_for(SHORT)[section] == {"warmup": expected}


def test_long_runs_have_the_published_warm_up() -> None:
    assert find_method("lrt").options_for(SHORT._replace(epochs=180)) == {"lrt": {"warmup": 30}}


def test_methods_without_a_warm_up_ask_for_none() -> None:
    assert find_method("gce").options_for(SHORT) == {}
    assert find_method("gce-m").options_for(SHORT) == {"calibration": {"head_lr": 0.3}}


def test_the_views_of_a_row_differ_and_those_of_an_image_need_no_jitter() -> None:
    assert find_method("dividemix-c").options_for(SHORT)["data"] == {"jitter": 0.1}
    assert "data" not in find_method("dividemix-c").options_for(SHORT._replace(of_rows=False))


TABLES = {
    "standard": 1, "sl": 1, "unflip": 3, "elr": 3, "elr+": 3, "gce": 4, "coteaching+": 4, "lrt": 4, "plc": 4, "ssr": 4,
    "mddc": 4, "cddc": 4, "dividemix": 8, "dividemix-m": 8, "dividemix-c": 8, "sl-m": 1, "gce-c": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_calibration_needs_no_more_tables_of_probabilities_than_its_inner_method(name: str) -> None:
    """By these numbers an error tells in advance that a run would not fit in memory."""
    assert find_method(name).method.tables == TABLES[name]
