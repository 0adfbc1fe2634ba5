"""unflip: train classifiers on data whose labels are partly wrong, and get the labels back, corrected."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unflip._version import __version__

if TYPE_CHECKING:
    from unflip.estimator import UnflipClassifier, find_label_errors
    from unflip.runs.folder import Run
    from unflip.tasks.clean import clean
    from unflip.tasks.corrupt import corrupt
    from unflip.tasks.embed import embed
    from unflip.tasks.predict import predict
    from unflip.tasks.train import train

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

_HOMES = {
    "Run": "unflip.runs.folder",
    "UnflipClassifier": "unflip.estimator",
    "clean": "unflip.tasks.clean",
    "corrupt": "unflip.tasks.corrupt",
    "embed": "unflip.tasks.embed",
    "find_label_errors": "unflip.estimator",
    "predict": "unflip.tasks.predict",
    "train": "unflip.tasks.train",
}


def __getattr__(name: str) -> Any:
    # `import unflip` stays light: torch is imported when one of these is first used.
    if name not in _HOMES:
        raise AttributeError(f"module 'unflip' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
