"""Errors that a user can cause. Each message is one line: the problem, what is allowed and what to try."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_BREAKS = re.compile(r"\s*[\r\n]+\s*")
_LISTED = 20  # a longer list of choices would not fit on a readable line


class UnflipError(Exception):
    """Base class of errors that a user can cause or fix. Commands print the message in one line and exit with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))  # parts of it may come from libraries or files


class InputError(UnflipError):
    """Invalid data: a file, an array or a label."""


class ConfigError(UnflipError):
    """An invalid option, or combination of options."""


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
    """A warning for the user. The command line prints it as one line."""


class MissingExtraError(UnflipError):
    """An optional dependency is not installed."""

    def __init__(self, needed: str, extra: str) -> None:
        super().__init__(f"{needed} is not installed; try: pip install 'unflip[{extra}]'")


def count_of(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless it is one.

    >>> count_of(1, "outlier"), count_of(2000, "low-quality class")
    ('1 outlier', '2,000 low-quality classes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def one_line(text: str) -> str:
    """Make any text safe to print on one line: no line breaks, no control characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in _BREAKS.sub(" ", text.strip()))


def shorten(text: str, max_chars: int = 20) -> str:
    """Return text from data on one line of at most ``max_chars`` characters."""
    text = one_line(text)
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."


def check_text(name: str, what: str) -> None:
    """Raise InputError if a file name is not valid UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} {name}: a name that is not UTF-8; rename it") from error


def described(error: BaseException) -> str:
    """Return the type and message of another library's error."""
    return one_line(f"{type(error).__name__}: {error}")


def unknown(kind: str, name: str, choices: Iterable[str]) -> str:
    """Return a message that ``name`` is not a known ``kind``, with the closest match and the choices."""
    choices = sorted(choices)
    # Also compare without the section: `lr` is close to `optimizer.lr`.
    leaves = {choice.rsplit(".", 1)[-1]: choice for choice in reversed(choices)}
    close = get_close_matches(name, choices, 1, 0.5) or [
        leaves[leaf] for leaf in get_close_matches(name.rsplit(".", 1)[-1], leaves, 1, 0.6)
    ]
    if not close:
        return f"unknown {kind} '{name}'; choose from: {', '.join(choices)}"
    rest = f"; choose from: {', '.join(choices)}" if len(choices) <= _LISTED else ""
    return f"unknown {kind} '{name}', did you mean '{close[0]}'?{rest}"
