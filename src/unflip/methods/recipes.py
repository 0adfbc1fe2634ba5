"""From a method's name to its parts: which sections of the configuration it reads, and how it is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unflip.methods import methods
from unflip.methods.base import Method, Setting
from unflip.options import Options


@dataclass(frozen=True)
class Recipe:
    """How to make a method."""

    sections: Mapping[str, type[Options]]
    """The sections of the configuration that it reads."""
    num_networks: int
    build: Callable[[Mapping[str, Options], Setting], Method]


def find_recipe(name: str) -> Recipe:
    """Return how to make the method called ``name``."""
    method: type[Method] = methods.load(name)
    return Recipe({name: method.Options}, method.num_networks, lambda options, setting: method(options[name], setting))
