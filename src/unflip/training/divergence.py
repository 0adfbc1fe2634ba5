"""Divergence: whatever fails because numbers are no longer finite is one error, which says where."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unflip.errors import DivergedError
from unflip.stats.members import NotFiniteError

_HINT = "try a smaller learning rate (--set optimizer.lr=...), or --on-nan restore"


def diverged(what: str, where: str) -> DivergedError:
    """Return the error that training has diverged: what became of it, and where."""
    return DivergedError(f"{what} {where}; {_HINT}")


@contextmanager
def finite(where: str) -> Iterator[None]:
    """Turn numerical failures, such as a matrix that cannot be factored, into :class:`unflip.errors.DivergedError`."""
    try:
        yield
    except NotFiniteError as error:
        raise diverged(str(error), where) from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise diverged("a covariance could not be factored", where) from error
