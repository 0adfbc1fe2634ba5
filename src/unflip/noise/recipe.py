"""Parse noise recipes such as ``pmd1:0.35 + sym:0.30`` into steps, which `corrupt.py` applies."""

import re
from dataclasses import dataclass

from unflip.errors import ConfigError, unknown

STEPS: dict[str, str] = {
    "pmd1": "PMD type I: labels become one of the two most probable classes under the posterior",
    "pmd2": "PMD type II",
    "pmd3": "PMD type III",
    "sym": "any other class, all equally likely",
    "asym": "the class in the data's class map; without a map, as asym-pairs",
    "asym-pairs": "two random classes of every superclass are swapped",
    "asym-cycle": "every class becomes the next in its superclass",
    "pair": "every class becomes the next",
    "matrix": "a transition matrix of your own; takes no level",
}
"""What each step of a recipe does, in one line."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_LEVEL = re.compile(r"[^\s+]+")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """One kind of noise and how much of it.

    Attributes:
        name: one of :data:`STEPS`.
        level: a fraction in (0, 1); None for ``matrix``, whose matrix defines it.
    """

    name: str
    level: float | None

    @property
    def pmd_kind(self) -> int | None:
        """1, 2 or 3 for PMD noise, else None."""
        return int(self.name[3:]) if self.name.startswith("pmd") else None

    def __str__(self) -> str:
        return self.name if self.level is None else f"{self.name}:{self.level!r}"


@dataclass(frozen=True)
class Recipe:
    """A sequence of steps, each applied to the labels of the previous one; see :func:`parse`."""

    steps: tuple[Step, ...]

    @property
    def needs_posterior(self) -> bool:
        """Whether there is a PMD step."""
        return any(step.pmd_kind is not None for step in self.steps)

    def __str__(self) -> str:
        return " + ".join(map(str, self.steps))


def parse(text: str) -> Recipe:
    """Parse a recipe: steps ``name:level`` joined by ``+``; errors give the position, counted from 1.

    A PMD step must be the first, since it draws every label from the posterior, whatever the label was.

    >>> str(parse("pmd1:0.35+sym:0.30"))
    'pmd1:0.35 + sym:0.3'
    """
    steps: list[Step] = []
    position = 0
    while True:
        step, position = _parse_step(text, _skip_space(text, position), is_first=not steps)
        steps.append(step)
        position = _skip_space(text, position)
        if position == len(text):
            return Recipe(tuple(steps))
        if text[position] != "+":
            raise _error(text, position, f"expected '+' and another step, or the end, found {text[position]!r}")
        position += 1


def _parse_step(text: str, start: int, *, is_first: bool) -> tuple[Step, int]:
    """Read one step that begins at ``start``; return it and where it ends."""
    match = _NAME.match(text, start)
    if match is None:
        raise _error(text, start, f"expected a step such as sym:0.3, found {_found(text, start)}")
    name = match[0].lower()
    if name not in STEPS:
        raise _error(text, start, unknown("step", match[0], STEPS))
    if name.startswith("pmd") and not is_first:
        raise _error(text, start, f"{name} redraws every label, so it must be the first step")

    colon = _skip_space(text, match.end())
    has_level = text[colon : colon + 1] == ":"
    if name == "matrix":
        if has_level:
            raise _error(text, colon, "the step 'matrix' takes no level; its matrix defines it")
        return Step(name, None), match.end()
    if not has_level:
        raise _error(text, colon, f"expected ':' and a level, as in {name}:0.3, found {_found(text, colon)}")
    return _parse_level(text, _skip_space(text, colon + 1), name)


def _parse_level(text: str, start: int, name: str) -> tuple[Step, int]:
    match = _LEVEL.match(text, start)
    if match is None or not _NUMBER.fullmatch(match[0]):
        found = repr(match[0]) if match else _found(text, start)
        raise _error(text, start, f"expected a level between 0 and 1, as in {name}:0.3, found {found}")
    level = float(match[0])
    if not 0 < level < 1:
        hint = f"; levels are fractions, try {name}:{level / 100:g}" if 1 < level < 100 else ""
        raise _error(text, start, f"level {match[0]} is outside (0, 1){hint}")
    return Step(name, level), match.end()


def _skip_space(text: str, start: int) -> int:
    return len(text) - len(text[start:].lstrip())


def _found(text: str, position: int) -> str:
    return repr(text[position]) if position < len(text) else "the end"


def _error(text: str, position: int, problem: str) -> ConfigError:
    return ConfigError(f"noise recipe {text!r}, character {position + 1}: {problem}")
