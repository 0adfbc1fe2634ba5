"""Kept: in which precision large tables are held until they are needed."""

import torch

HALF_ABOVE = 2**26
"""Values beyond which a table is held in half precision: 256 MB in single precision."""
HALF_MOST = 65504.0
"""The largest number that half precision can hold."""


def kind_for(values: int) -> torch.dtype:
    """Return the type of a table of so many values; whoever computes with rows of it makes them float32 first."""
    return torch.float16 if values > HALF_ABOVE else torch.float32
