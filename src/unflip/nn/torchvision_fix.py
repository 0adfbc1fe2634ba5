"""Makes a torchvision that was built for another torch importable: its compiled operators are declared, not defined.

The torchvision on PyPI is built for CUDA. With a CPU-only torch its library does not load, and the import fails with
"operator torchvision::nms does not exist". Nothing here computes boxes, so declarations are enough.
"""

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # a declaration lives as long as its library


def declare_operators() -> None:
    """Declare the operators that torchvision needs while it is imported."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + _SIGNATURE)
    _kept.append(library)
