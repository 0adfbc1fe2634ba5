"""How test accuracy depends on one option: means over seeds along a grid axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unflip.errors import ConfigError
from unflip.reproduce.paper_numbers import Number
from unflip.reproduce.results_file import Line, by_seed, find, one_protocol
from unflip.reproduce.tables import summary


@dataclass(frozen=True)
class Influence:
    """The curves of one setting, which is a data set and a noise."""

    setting: str
    curves: Mapping[str, Mapping[float, Number]]
    """Method -> value -> accuracy of the selected epoch, in percent."""
    protocol: Mapping[str, object]


def influence(lines: Sequence[Line], axis: str, fixed: Sequence[str] = ()) -> list[Influence]:
    """Collect the results of grids with ``axis`` and otherwise only data, noise, method, seed and ``fixed`` axes."""
    axes = {"data", "noise", "method", "seed", axis, *fixed}
    settings: dict[str, dict[str, dict[float, list[Line]]]] = {}
    for line in lines:
        if axis in line["axes"] and axes.issuperset(line["axes"]):
            value = line["axes"][axis]
            if not isinstance(value, int | float) or line["test_accuracy"]["selected"] is None:
                continue  # skip `auto`, which is not a number, and untested runs
            setting = " ".join(str(find(line, key)) for key in ("data", "noise") if find(line, key) is not None)
            methods = settings.setdefault(setting, {})
            methods.setdefault(find(line, "method"), {}).setdefault(float(value), []).append(line)
    if not settings:
        raise ConfigError(f"results: none of {len(lines)} has the axis '{axis}' and a test accuracy")
    found = []
    for setting, methods in settings.items():
        own = [line for values in methods.values() for rows in values.values() for line in rows]
        protocol = one_protocol(own, setting) or {}
        curves = {method: _curve(values, f"{setting}, {method}, {axis}") for method, values in methods.items()}
        found.append(Influence(setting, curves, protocol))
    return found


def _curve(values: Mapping[float, Sequence[Line]], what: str) -> dict[float, Number]:
    curve = {}
    for value, lines in sorted(values.items()):
        number = summary([line["test_accuracy"]["selected"] for line in by_seed(lines, f"{what} {value:g}")])
        assert number
        curve[value] = number
    return curve
