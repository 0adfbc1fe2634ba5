"""unflip: find label errors, and train classifiers on noisy labels."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unflip._version import __version__ as __version__

if TYPE_CHECKING:
    from unflip.api.annotators import annotators as annotators
    from unflip.api.apply import apply as apply
    from unflip.api.check import check as check
    from unflip.api.clean import clean as clean
    from unflip.api.corrupt import corrupt as corrupt
    from unflip.api.embed import embed as embed
    from unflip.api.predict import predict as predict
    from unflip.api.result import Result as Result
    from unflip.api.result import load as load
    from unflip.api.save import save as save
    from unflip.api.train import train as train
    from unflip.estimator import UnflipClassifier as UnflipClassifier
    from unflip.estimator import find_label_errors as find_label_errors
    from unflip.methods.base import LabelStore as LabelStore
    from unflip.methods.losses import ELRLoss as ELRLoss
    from unflip.methods.losses import GCELoss as GCELoss
    from unflip.methods.losses import SLLoss as SLLoss
    from unflip.methods.mddc import DistributionCalibration as DistributionCalibration
    from unflip.methods.plc import LabelCorrection as LabelCorrection
    from unflip.methods.unflip.controls import KnownWrongControls as KnownWrongControls
    from unflip.stats.robust_mean import agnostic_mean as agnostic_mean

_TASKS = ("annotators", "apply", "check", "clean", "corrupt", "embed", "predict", "save", "train")  # in api.NAME
_HOMES = {
    "DistributionCalibration": "methods.mddc",
    "ELRLoss": "methods.losses",
    "GCELoss": "methods.losses",
    "KnownWrongControls": "methods.unflip.controls",
    "LabelCorrection": "methods.plc",
    "LabelStore": "methods.base",
    "Result": "api.result",
    "SLLoss": "methods.losses",
    "UnflipClassifier": "estimator",
    "agnostic_mean": "stats.robust_mean",
    "find_label_errors": "estimator",
    "load": "api.result",
}
__all__ = sorted(["__version__", *_HOMES, *_TASKS])


def __getattr__(name: str) -> Any:
    # `import unflip` stays light: torch is imported when one of these is first used.
    if name == "noise":
        return import_module("unflip.noise")
    if name not in __all__:
        raise AttributeError(f"module 'unflip' has no attribute '{name}'")
    return getattr(import_module(f"unflip.{_HOMES.get(name, f'api.{name}')}"), name)


def __dir__() -> list[str]:
    return __all__
