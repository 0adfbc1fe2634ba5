"""Methods for training with noisy labels, one file each, and their registry; `find_method` returns one by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unflip.errors import ConfigError, unknown
from unflip.registry import Entry, Registry

if TYPE_CHECKING:  # torch takes seconds to import, and names are needed without it
    from unflip.methods.base import Method, RunShape, TrainContext
    from unflip.options import Options

_IN = "unflip.methods"
methods = Registry(
    "method",
    [
        Entry("unflip", "cross-fitted ensemble that scores and corrects labels", f"{_IN}.unflip.pixels:unflip"),
        Entry("standard", "cross-entropy on the given labels", f"{_IN}.base:Standard"),
        Entry("gce", "generalized cross-entropy, a noise-robust loss", f"{_IN}.gce:GCE"),
        Entry("sl", "symmetric cross-entropy: cross-entropy plus its reverse", f"{_IN}.sl:SL"),
        Entry("coteaching+", "two networks select examples for each other", f"{_IN}.coteaching:Coteaching"),
        Entry("lrt", "label correction by likelihood ratio (AdaCorr)", f"{_IN}.lrt:LRT"),
        Entry("plc", "progressive label correction", f"{_IN}.plc:PLC"),
        Entry("mddc", "plc with mean-based calibration of the class Gaussians", f"{_IN}.mddc:mddc"),
        Entry("cddc", "plc with covariance-based calibration of the class Gaussians", f"{_IN}.mddc:cddc"),
        Entry("elr", "cross-entropy with a penalty that keeps early predictions", f"{_IN}.elr:ELR"),
        Entry("elr+", "elr with two networks, averaged weights and mixup", f"{_IN}.elr:ELRPlus"),
        Entry("ssr", "relabels confident examples, trains where neighbors agree", f"{_IN}.ssr:SSR"),
        Entry("dividemix", "two networks split the data to train semi-supervised", f"{_IN}.dividemix:DivideMix"),
        Entry("dividemix-m", "dividemix with mean-based calibration", f"{_IN}.dividemix:dividemix_m"),
        Entry("dividemix-c", "dividemix with covariance-based calibration", f"{_IN}.dividemix:dividemix_c"),
    ],
)
SUFFIXES = {"m": "mean", "c": "covariance"}
"""NAME-m and NAME-c are the method NAME with calibration."""
calibrators = tuple(SUFFIXES.values())
"""Kinds of calibration; each has a section of options."""


@dataclass(frozen=True)
class MethodSpec:
    """A method by name; see :func:`find_method`."""

    name: str  # also the name of its configuration section
    method: "type[Method]"

    @property
    def sections(self) -> "dict[str, type[Options]]":
        """The configuration sections of the method."""
        return {self.name: self.method.Options}

    def build(self, options: "Mapping[str, Options]", context: "TrainContext") -> "Method":
        """Build the method, with options by section."""
        return self.method(options[self.name], context)

    def options_for(self, shape: "RunShape") -> dict[str, Any]:
        """Return defaults that suit a run; see ``Method.options_for``."""
        return self.method.options_for(self.name, shape)

    def check(self, options: "Mapping[str, Options]", epochs: int) -> None:
        """Raise ConfigError if options do not fit the number of epochs."""
        self.method.check_options(self.name, options[self.name], epochs)


def find_method(name: str) -> MethodSpec:
    """Return the specification of a method by name; NAME-m and NAME-c add calibration to any method."""
    if name in methods:
        part: MethodSpec | type = methods.load(name)
        return part if isinstance(part, MethodSpec) else MethodSpec(name, part)
    inner, _, suffix = name.rpartition("-")
    if suffix in SUFFIXES and inner in methods:
        from unflip.methods.mddc import calibrated

        spec = find_method(inner)
        return calibrated(spec.name, spec.method, SUFFIXES[suffix])
    choices = [*methods.names(), *(f"{inner}-{suffix}" for suffix in SUFFIXES if inner in methods)]
    raise ConfigError(f"{unknown('method', name, choices)} (NAME-m and NAME-c add calibration)")
