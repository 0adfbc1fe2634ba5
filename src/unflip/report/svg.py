"""Charts as inline SVG. Colours come from the page's style sheet, so they follow light mode, dark mode and print."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isclose, log10

import numpy as np
from markupsafe import Markup

from unflip.data.arrays import Array
from unflip.report.shift import Panel, Shift

COLOURS = 8  # number of colours in the style sheet, the classes c0 to c7
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_WIDTH, _HEIGHT = 360.0, 210.0  # narrow, so that text stays readable on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 42.0, 8.0, 10.0, 32.0
_HEAT = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # fractions above which a cell gets the next darker shade


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    place: int
    """Sets the colour and, once the colours are used up, the dash pattern."""
    mark: float | None = None
    """The x value at which it has a dot."""

    @property
    def colour(self) -> str:
        """Its class in the style sheet."""
        return f"c{self.place % COLOURS}"

    @property
    def dashes(self) -> str:
        """The dash pattern in SVG syntax."""
        return _DASHES[self.place // COLOURS % len(_DASHES)]


@dataclass(frozen=True)
class _Axes:
    """Maps values to positions in the chart."""

    x: tuple[float, float]
    y: tuple[float, float]

    def left(self, x: float) -> str:
        low, high = self.x
        return _number(_LEFT + (x - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT))

    def top(self, y: float) -> str:
        low, high = self.y
        return _number(_HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM))


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    chosen: int | None = None,
    percent: bool = False,
    zero: bool = False,
    bars: bool = False,
) -> Markup:
    """Draw lines by epoch.

    Args:
        lines: what to draw; epochs without a value are skipped.
        label: text alternative for people who cannot see the chart.
        chosen: an epoch to mark with a vertical line.
        percent: whether values are fractions, to be written as percentages.
        zero: whether the vertical axis starts at 0.
        bars: whether to draw bars from 0 instead of lines.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    low, high = (0.0 if zero or bars else min(ys)), max(ys)
    if percent:  # span at least ten percentage points, so that small changes look small
        middle, least = (low + high) / 2, 0.05
        low, high = max(0.0, min(low, middle - least)), min(1.0, max(high, middle + least))
    marks = ticks(low, high if high > low else low + 1)
    half = 0.5 if bars or min(xs) == max(xs) else 0.0
    axes = _Axes((min(xs) - half, max(xs) + half), (min(low, marks[0]), max(high, marks[-1])))
    content = [_frame(axes, marks, _percent if percent else _plain, ticks(min(xs), max(xs), whole=True))]
    if chosen is not None:
        content.append(
            Markup('<line class="chosen" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
                axes.left(chosen), _number(_TOP), _number(_HEIGHT - _BOTTOM)
            )
        )
    content += [_bars(axes, line) if bars else _line(axes, line) for line in lines]
    return _svg(_WIDTH, _HEIGHT, label, content)


def swatch(line: Line) -> Markup:
    """Draw a line's entry in a legend."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 22 8" aria-hidden="true">'
        '<path class="line {}" stroke-dasharray="{}" d="M1 4H21"/></svg>'
    ).format(line.colour, line.dashes)


def bar(share: float, colour: str) -> Markup:
    """Draw a fraction as a bar, for a table cell."""
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="10"/><rect class="{} fill" width="{}" height="10"/></svg>'
    ).format(colour, _number(100 * min(1.0, max(0.0, share))))


def heat(share: float) -> int:
    """Return the shade of a cell: 0 for none, then 1 to 6."""
    return sum(share > bound for bound in _HEAT)


def heat_map(shares: Array, *, label: str) -> Markup:
    """Draw a large matrix without its diagonal: one shade per cell, class numbers along the sides."""
    count = len(shares)
    size, side = 320.0, 320.0 / count
    levels = np.searchsorted(np.array(_HEAT), shares, side="left")
    np.fill_diagonal(levels, 0)
    content = [Markup('<rect class="field" x="{0}" y="{1}" width="{2}" height="{2}"/>').format(_LEFT, _TOP, size)]
    content.append(
        Markup('<path class="diagonal" d="M{} {}l{} {}"/>').format(_LEFT, _TOP, _number(size), _number(size))
    )
    for level in range(1, len(_HEAT) + 1):
        cells = [
            f"M{_number(_LEFT + column * side)} {_number(_TOP + row * side)}h{_number(side)}v{_number(side)}"
            f"h-{_number(side)}z"
            for row, column in np.argwhere(levels == level).tolist()
        ]
        content.append(Markup('<path class="heat h{}" d="{}"/>').format(level, "".join(cells)))
    for mark in ticks(0, count - 1, whole=True):
        if mark < count:
            middle = (mark + 0.5) * side
            content.append(_text(_LEFT + middle, _TOP + size + 14, f"{mark:g}", "middle"))
            content.append(_text(_LEFT - 5, _TOP + middle + 4, f"{mark:g}", "end"))
    content.append(_text(_LEFT + size / 2, _TOP + size + 29, "new class number", "middle"))
    content.append(_upright("given class number", _TOP + size / 2))
    return _svg(_LEFT + size + _RIGHT, _TOP + size + 36, label, content)


def heat_legend() -> list[tuple[int, str]]:
    """Return each shade and the fractions it stands for."""
    bounds = [f"{100 * bound:g}" for bound in _HEAT]
    ends = [*(f"up to {bound} %" for bound in bounds[1:]), f"above {bounds[-1]} %"]
    return list(enumerate(ends, 1))


def scatter(shift: Shift, panel: Panel, *, label: str) -> Markup:
    """Draw one panel of a shift; all its panels have the same axes."""
    outlines = np.concatenate([outline for each in shift.panels for outline in (*each.outlines, each.means)])
    low, high = outlines.min(0), outlines.max(0)
    room = 0.06 * np.maximum(high - low, 1e-9)
    (left, bottom), (right, top) = low - room, high + room
    width, height, edge = _WIDTH, 300.0, 1.0

    def place(points: Array) -> list[tuple[str, str]]:
        across = edge + (points[:, 0] - left) / (right - left) * (width - 2 * edge)
        down = height - edge - (points[:, 1] - bottom) / (top - bottom) * (height - 2 * edge)
        return [(_number(x), _number(y)) for x, y in zip(across.tolist(), down.tolist(), strict=True)]

    content = [
        Markup('<rect class="field" x="{0}" y="{0}" width="{1}" height="{2}"/>').format(
            edge, width - 2 * edge, height - 2 * edge
        )
    ]
    starts, ends = place(shift.panels[0].means), place(panel.means)
    for number, (points, outline) in enumerate(zip(panel.points, panel.outlines, strict=True)):
        inside = points[((points > (left, bottom)) & (points < (right, top))).all(1)]
        dots = "".join(f"M{x} {y}h0" for x, y in place(inside))
        content.append(Markup('<path class="dots c{}" d="{}"/>').format(number, dots))
        content.append(Markup('<path class="line c{}" d="{}"/>').format(number, _path(place(outline))))
    for number, ((x, y), (to_x, to_y)) in enumerate(zip(starts, ends, strict=True)):
        cross = f"M{x} {y}m-4 -4l8 8m0 -8l-8 8"
        content.append(Markup('<path class="cross c{}" d="{}"/>').format(number, cross))
        if (x, y) != (to_x, to_y):
            content.append(Markup('<path class="arrow" d="{}"/>').format(_arrow(x, y, to_x, to_y)))
    return _svg(width, height, label, content)


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return about five round numbers from below ``low`` to above ``high``; with ``whole``, integers between them."""
    span = high - low
    if span <= 0:
        return [low]
    step = 10.0 ** floor(log10(span / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    if whole:
        step = max(1.0, step)
        return [step * i for i in range(ceil(low / step), floor(high / step) + 1)]
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)]


def _frame(axes: _Axes, marks: Sequence[float], write: Callable[[float], str], epochs: Sequence[float]) -> Markup:
    content = []
    for mark in marks:
        content.append(
            Markup('<line class="gridline" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(
                _number(_LEFT), _number(_WIDTH - _RIGHT), y=axes.top(mark)
            )
        )
        content.append(_text(_LEFT - 5, float(axes.top(mark)) + 4, write(mark), "end"))
    low = _HEIGHT - _BOTTOM + 14
    content += [_text(float(axes.left(epoch)), low, f"{epoch:g}", "middle") for epoch in epochs]
    content.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 3, "epoch", "middle"))
    return Markup("").join(content)


def _line(axes: _Axes, line: Line) -> Markup:
    points = [(axes.left(x), axes.top(y)) for x, y in line.points]
    drawn = Markup('<path class="line {}" stroke-dasharray="{}" d="{}"/>').format(
        line.colour, line.dashes, _path(points)
    )
    for (x, y), (epoch, _) in zip(points, line.points, strict=True):
        if line.mark is not None and isclose(epoch, line.mark):
            drawn += Markup('<circle class="fill {}" cx="{}" cy="{}" r="4"/>').format(line.colour, x, y)
    return drawn


def _bars(axes: _Axes, line: Line) -> Markup:
    wide = 0.8 * (_WIDTH - _LEFT - _RIGHT) / (axes.x[1] - axes.x[0])
    floor_ = axes.top(0)
    cells = [
        f"M{_number(float(axes.left(x)) - wide / 2)} {floor_}V{axes.top(y)}h{_number(wide)}V{floor_}z"
        for x, y in line.points
        if y
    ]
    return Markup('<path class="fill {}" d="{}"/>').format(line.colour, "".join(cells))


def _path(points: Iterable[tuple[str, str]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _arrow(x: str, y: str, to_x: str, to_y: str) -> str:
    start, end = np.array([float(x), float(y)]), np.array([float(to_x), float(to_y)])
    along = (end - start) / max(1e-9, float(np.linalg.norm(end - start)))
    across = np.array([-along[1], along[0]])
    wings = [end - 7 * along + side * 3.5 * across for side in (1, -1)]
    (ax, ay), (bx, by) = [tuple(_number(value) for value in wing.tolist()) for wing in wings]
    return f"M{x} {y}L{to_x} {to_y}M{ax} {ay}L{to_x} {to_y}L{bx} {by}"


def _text(x: float, y: float, words: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(_number(x), _number(y), anchor, words)


def _upright(words: str, middle: float) -> Markup:
    return Markup('<text text-anchor="middle" transform="translate(12 {}) rotate(-90)">{}</text>').format(
        _number(middle), words
    )


def _svg(width: float, height: float, label: str, content: Iterable[Markup]) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _number(width), _number(height), label, Markup("").join(content)
    )


def _number(value: float) -> str:
    """Format a length with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _plain(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value / 1000:,.4g}k"
