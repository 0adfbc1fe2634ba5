"""Errors that a user can cause; each message is one line: what came, what is allowed and what to try."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_BREAKS = re.compile(r"\s*[\r\n]+\s*")
_LISTED = 20  # a longer list of choices would not fit on a readable line


class UnflipError(Exception):
    """Base class of errors that a user can cause or fix. The command line prints it as one line and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))  # whatever a library or a file contributes to it


class InputError(UnflipError):
    """A file, an array or a label is not what it must be."""


class ConfigError(UnflipError):
    """An option or a combination of options is not allowed."""


class RunFolderError(UnflipError):
    """A run folder already exists, is incomplete or does not fit the command."""


class DivergedError(UnflipError):
    """Training produced NaN or infinity.

    Args:
        what: what is not finite, such as "the loss became nan".
        where: the epoch and, if known, the batch.
    """

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}; try a smaller learning rate (--set optimizer.lr=...)")


class Stopped(BaseException):
    """A signal stopped a run after it was saved; not an Exception, so that no error handler catches it."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class UnflipWarning(UserWarning):
    """Something a user should know, although work continues. The command line prints it as one line."""


class MissingExtraError(UnflipError):
    """An optional dependency is not installed."""

    def __init__(self, needed: str, extra: str) -> None:
        super().__init__(f"{needed} is not installed; try: pip install 'unflip[{extra}]'")


def one_line(text: str) -> str:
    """Make text that may come from data safe to print on one line: no line breaks, no control characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in _BREAKS.sub(" ", text.strip()))


def check_text(name: str, what: str) -> None:
    """Refuse a name of a file that is not text, since no list could hold it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} {name}: a name that is not UTF-8; rename it") from error


def described(error: BaseException) -> str:
    """Return what somebody else's error says, after its type."""
    return one_line(f"{type(error).__name__}: {error}")


def unknown(kind: str, name: str, choices: Iterable[str]) -> str:
    """Return a message that ``name`` is not a known ``kind``, with the closest match and the choices."""
    choices = sorted(choices)
    # Also compared without the section, which people forget: `lr` is close to `optimizer.lr`.
    leaves = {choice.rsplit(".", 1)[-1]: choice for choice in reversed(choices)}
    close = get_close_matches(name, choices, 1, 0.5) or [
        leaves[leaf] for leaf in get_close_matches(name.rsplit(".", 1)[-1], leaves, 1, 0.6)
    ]
    if not close:
        return f"unknown {kind} '{name}'; choose from: {', '.join(choices)}"
    rest = f"; choose from: {', '.join(choices)}" if len(choices) <= _LISTED else ""
    return f"unknown {kind} '{name}', did you mean '{close[0]}'?{rest}"
