"""unflip: find label errors, and train classifiers on noisy labels."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unflip._version import __version__

if TYPE_CHECKING:
    from unflip.api.annotators import annotators
    from unflip.api.apply import apply
    from unflip.api.check import check
    from unflip.api.clean import clean
    from unflip.api.corrupt import corrupt
    from unflip.api.embed import embed
    from unflip.api.predict import predict
    from unflip.api.result import Result, load
    from unflip.api.save import save
    from unflip.api.train import train
    from unflip.estimator import UnflipClassifier, find_label_errors
    from unflip.methods.base import LabelStore
    from unflip.methods.losses import ELRLoss, GCELoss, SLLoss
    from unflip.methods.mddc import DistributionCalibration
    from unflip.methods.plc import LabelCorrection
    from unflip.methods.unflip.controls import KnownWrongControls
    from unflip.stats.robust_mean import agnostic_mean

__all__ = [
    "DistributionCalibration",
    "ELRLoss",
    "GCELoss",
    "KnownWrongControls",
    "LabelCorrection",
    "LabelStore",
    "Result",
    "SLLoss",
    "UnflipClassifier",
    "__version__",
    "agnostic_mean",
    "annotators",
    "apply",
    "check",
    "clean",
    "corrupt",
    "embed",
    "find_label_errors",
    "load",
    "predict",
    "save",
    "train",
]

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


def __getattr__(name: str) -> Any:
    # `import unflip` stays light: torch is imported when one of these is first used.
    if name == "noise":
        return import_module("unflip.noise")
    if name not in __all__:
        raise AttributeError(f"module 'unflip' has no attribute '{name}'")
    return getattr(import_module(f"unflip.{_HOMES.get(name, f'api.{name}')}"), name)


def __dir__() -> list[str]:
    return __all__
