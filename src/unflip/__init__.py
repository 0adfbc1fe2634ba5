"""unflip: train classifiers on data whose labels are partly wrong, and get the labels back, corrected."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unflip._version import __version__

if TYPE_CHECKING:
    from unflip.estimator import UnflipClassifier, find_label_errors
    from unflip.report.reported import train
    from unflip.training.folder import Run
    from unflip.training.predict import predict

__all__ = ["Run", "UnflipClassifier", "__version__", "find_label_errors", "predict", "train"]

_HOMES = {
    "Run": "unflip.training.folder",
    "UnflipClassifier": "unflip.estimator",
    "find_label_errors": "unflip.estimator",
    "predict": "unflip.training.predict",
    "train": "unflip.report.reported",
}


def __getattr__(name: str) -> Any:
    # `import unflip` stays light: torch is imported when one of these is first used.
    if name not in _HOMES:
        raise AttributeError(f"module 'unflip' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
