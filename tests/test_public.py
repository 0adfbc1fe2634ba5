"""The public names: exactly these, and light to import."""

import pkgutil

import pytest

import unflip
from helpers import spawn_python


def test_the_public_names_are_these() -> None:
    tasks = ["annotators", "apply", "check", "clean", "corrupt", "embed", "find_label_errors", "load", "predict"]
    tasks += ["save", "train"]
    losses = ["ELRLoss", "GCELoss", "SLLoss"]
    parts = ["DistributionCalibration", "KnownWrongControls", "LabelCorrection", "LabelStore", *losses]
    others = ["Result", "UnflipClassifier", "__version__", "agnostic_mean"]
    assert sorted(unflip.__all__) == sorted([*others, *parts, *tasks])
    assert dir(unflip) == sorted(unflip.__all__)


def test_no_public_name_is_a_module_too() -> None:
    assert {*unflip.__all__}.isdisjoint(module.name for module in pkgutil.iter_modules(unflip.__path__))


@pytest.mark.parametrize("name", unflip.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(unflip, name)
    assert isinstance(value, str) or value.__doc__


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'unflip' has no attribute 'trian'"):
        unflip.trian  # noqa: B018


def test_noise_needs_no_import_of_its_own() -> None:
    assert spawn_python("-c", "import unflip; print(unflip.noise.corrupt_labels.__name__)").out == "corrupt_labels\n"


def test_importing_unflip_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, unflip; sys.exit(str({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    assert spawn_python("-c", code).err.strip() == "set()"
