"""Parse noise recipes such as ``pmd1:0.35 + sym:0.30`` into steps, which `corrupt.py` applies."""

import re
from dataclasses import dataclass

from unflip.errors import ConfigError, one_line, unknown

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

_ROMAN = re.compile(r"\bpmd\s*:\s*(i{1,3})\s*:")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?")


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
    """Parse a recipe: steps ``name:level`` joined by ``+``; ``pmd1:0.35`` can be written ``pmd:I:0.35``.

    A PMD step must be the first, since it draws every label from the posterior, whatever the label was.

    >>> str(parse("pmd1:0.35+sym:0.30"))
    'pmd1:0.35 + sym:0.3'
    """
    parts = _ROMAN.sub(lambda found: f"pmd{len(found[1])}:", text.lower()).split("+")
    try:
        return Recipe(tuple(_parse_step(part.strip(), is_first=not place) for place, part in enumerate(parts)))
    except ValueError as error:
        raise ConfigError(f"noise recipe {text!r}: {error}") from error


def _parse_step(text: str, *, is_first: bool) -> Step:
    name, colon, level = (part.strip() for part in text.partition(":"))
    if not name:
        raise ValueError(f"expected a step such as sym:0.3, found {repr(text) if text else 'nothing'}")
    if name not in STEPS:
        raise ValueError(unknown("step", one_line(name), STEPS))
    if name.startswith("pmd") and not is_first:
        raise ValueError(f"{name} redraws every label, so it must be the first step")
    if name == "matrix":
        if colon:
            raise ValueError("the step 'matrix' takes no level; its matrix defines it")
        return Step(name, None)
    if not _NUMBER.fullmatch(level):
        raise ValueError(f"expected {name} with a level between 0 and 1, as in {name}:0.3, found {text!r}")
    if not 0 < float(level) < 1:
        hint = f"; levels are fractions, try {name}:{float(level) / 100:g}" if 1 < float(level) < 100 else ""
        raise ValueError(f"level {level} is outside (0, 1){hint}")
    return Step(name, float(level))
