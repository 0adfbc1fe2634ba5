"""What can go wrong for a user; each is one line that says what came, what is allowed and what to try."""

from collections.abc import Iterable
from difflib import get_close_matches

_LISTED = 20  # choices that still make a readable line


class UnflipError(Exception):
    """Base of all errors a user can cause or mend. The command line prints it as one line and exits with 2."""


class InputError(UnflipError):
    """A file, an array or a label is not what it must be."""


class ConfigError(UnflipError):
    """An option or a combination of options is not allowed."""


class RunFolderError(UnflipError):
    """A run folder is in the way, incomplete or does not fit the command."""


class DivergedError(UnflipError):
    """Training produced NaN or infinity."""


class Stopped(BaseException):
    """A signal ended a run, which was saved first; no error, so that nothing takes it for one."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class UnflipWarning(UserWarning):
    """What a user should know although things go on. The command line prints it as one line."""


class MissingExtraError(UnflipError):
    """An optional dependency is not installed."""

    def __init__(self, needed: str, extra: str) -> None:
        super().__init__(f"{needed} is not installed; try: pip install 'unflip[{extra}]'")


def one_line(text: str) -> str:
    """Make text that may come from data fit for a line of a terminal: no line break, no control character."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in " ".join(text.split()))


def unknown(kind: str, name: str, choices: Iterable[str]) -> str:
    """Say that ``name`` is no known ``kind``, which is the closest and what there is."""
    choices = sorted(choices)
    # Compared without the section, since people forget it: `lr` is close to `optimizer.lr`.
    leaves = {choice.rsplit(".", 1)[-1]: choice for choice in reversed(choices)}
    close = get_close_matches(name, choices, 1, 0.5) or [
        leaves[leaf] for leaf in get_close_matches(name.rsplit(".", 1)[-1], leaves, 1, 0.6)
    ]
    if not close:
        return f"unknown {kind} '{name}'; choose from: {', '.join(choices)}"
    rest = f"; choose from: {', '.join(choices)}" if len(choices) <= _LISTED else ""
    return f"unknown {kind} '{name}', did you mean '{close[0]}'?{rest}"
