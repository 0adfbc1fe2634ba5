"""Recipes: from a method's name to the configuration sections it reads and how it is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unflip.calibration import calibrators
from unflip.errors import ConfigError, unknown
from unflip.methods import methods
from unflip.methods.base import Method, Outline, Setting
from unflip.methods.calibrated import Calibrated, CalibrationOptions
from unflip.nn.base import Network
from unflip.options import Options

SUFFIXES = {"m": "mean", "c": "covariance"}
"""``NAME-m`` and ``NAME-c`` are the method NAME with calibration."""


@dataclass(frozen=True)
class Recipe:
    """How to build a method."""

    sections: Mapping[str, type[Options]]
    """The configuration sections it reads."""
    build: Callable[[Mapping[str, Options], Setting], Method]
    assemble: Callable[[Mapping[str, Options], Setting, Callable[[int], Network]], list[Network]]
    """Returns the networks that learn; see :meth:`unflip.methods.base.Method.assemble`."""
    options_for: Callable[[Outline], dict[str, Any]]
    """Options by section where nobody chose them; see :meth:`unflip.methods.base.Method.options_for`."""
    check: Callable[[Mapping[str, Options], int], None]
    """Refuses options that make no sense in a run of this many epochs."""
    can_be_calibrated: bool = True
    """Whether calibration may go around it."""
    inner: "Recipe | None" = None
    """The uncalibrated recipe of a calibrated one: calibrating again replaces the calibration, it does not nest."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe of the method called ``name``, which may end in -m or -c."""
    inner, _, suffix = name.rpartition("-")
    if name not in methods and suffix in SUFFIXES and inner in methods:
        recipe = find_recipe(inner)
        if not recipe.can_be_calibrated:
            raise ConfigError(f"method '{name}': calibration trains the head of one network, and {inner} has many")
        return calibrated(recipe, SUFFIXES[suffix])
    if name not in methods:
        choices = [*methods.names(), *(f"{inner}-{suffix}" for suffix in SUFFIXES if inner in methods)]
        raise ConfigError(f"{unknown('method', name, choices)} (NAME-m and NAME-c add calibration)")
    part: Recipe | type[Method] = methods.load(name)
    return part if isinstance(part, Recipe) else _plain(name, part)


def calibrated(method: Recipe, calibrator: str) -> Recipe:
    """Wrap a recipe in calibration."""
    part, inner = calibrators.load(calibrator), method.inner or method

    def build(options: Mapping[str, Options], setting: Setting) -> Method:
        calibration = options["calibration"]
        assert isinstance(calibration, CalibrationOptions)
        return Calibrated(inner.build(options, setting), part(options[calibrator]), calibration, setting)

    def options_for(outline: Outline) -> dict[str, Any]:
        """The head learns as fast as the rest of the network."""
        return inner.options_for(outline) | {"calibration": {"head_lr": outline.lr}}

    def check(options: Mapping[str, Options], epochs: int) -> None:
        inner.check(options, epochs)
        start = getattr(options["calibration"], "start", None)
        if start is not None and start > epochs:
            raise ConfigError(
                f"calibration.start = {start}: must be at most epochs = {epochs}, or nothing is ever calibrated; leave "
                "it out to start after the warm-up"
            )

    sections = {**inner.sections, "calibration": CalibrationOptions, calibrator: part.Options}
    return Recipe(sections, build, inner.assemble, options_for, check, inner=inner)


def _plain(name: str, method: type[Method]) -> Recipe:
    return Recipe(
        sections={name: method.Options},
        build=lambda options, setting: method(options[name], setting),
        assemble=lambda options, setting, build: method.assemble(options[name], setting, build),
        options_for=lambda outline: method.options_for(name, outline),
        check=lambda options, epochs: method.check_options(name, options[name], epochs),
        can_be_calibrated=method.can_be_calibrated,
    )


mddc = calibrated(_plain("plc", methods.load("plc")), "mean")
cddc = calibrated(_plain("plc", methods.load("plc")), "covariance")
dividemix_m = calibrated(_plain("dividemix", methods.load("dividemix")), "mean")
dividemix_c = calibrated(_plain("dividemix", methods.load("dividemix")), "covariance")
