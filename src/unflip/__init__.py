"""unflip: find label errors, and train classifiers on noisy labels."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unflip._version import __version__

if TYPE_CHECKING:
    from unflip.api.clean import clean
    from unflip.api.corrupt import corrupt
    from unflip.api.embed import embed
    from unflip.api.predict import predict
    from unflip.api.train import train
    from unflip.estimator import UnflipClassifier, find_label_errors
    from unflip.runs.folder import Run

__all__ = [
    "Run",
    "UnflipClassifier",
    "__version__",
    "clean",
    "corrupt",
    "embed",
    "find_label_errors",
    "predict",
    "train",
]

_HOMES = {"Run": "runs.folder", "UnflipClassifier": "estimator", "find_label_errors": "estimator"}


def __getattr__(name: str) -> Any:
    # `import unflip` stays light: torch is imported when one of these is first used.
    if name not in __all__:
        raise AttributeError(f"module 'unflip' has no attribute '{name}'")
    return getattr(import_module(f"unflip.{_HOMES.get(name, f'api.{name}')}"), name)


def __dir__() -> list[str]:
    return __all__
