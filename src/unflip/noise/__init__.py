"""Label noise: clean labels in, noisy labels out.

``corrupt_labels`` applies a recipe such as "pmd1:0.35 + sym:0.30" to labels in one line. ``recipe.parse`` reads a
recipe, ``corrupt.corrupt`` applies it and records how; ``pmd`` and ``transition`` hold the mathematics. Parsing a
recipe does not import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unflip.noise.corrupt import corrupt_labels

__all__ = ["corrupt_labels"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'unflip.noise' has no attribute '{name}'")
    from unflip.noise.corrupt import corrupt_labels

    return corrupt_labels
