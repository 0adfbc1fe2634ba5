"""Data that is no longer where a run found it."""

from collections.abc import Iterator
from contextlib import contextmanager

from unflip.errors import InputError


@contextmanager
def ask_where() -> Iterator[None]:
    """Add to an error of opening a run's data that ``--data`` says where it is now."""
    try:
        yield
    except InputError as error:
        name = " Name" if str(error).endswith("?") else "; name"
        raise InputError(f"{error}{name} its location with --data") from error
