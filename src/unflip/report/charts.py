"""Charts of the pages: drawn by matplotlib, inlined as SVG without ids, styles or scripts.

A chart is drawn in the light colors of :data:`THEME`. They become plain ``stroke`` and ``fill`` attributes, which the
page's style sheet maps to its own variables, so that charts follow light mode, dark mode and print. Text stays text.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from unflip.data.arrays import Array
from unflip.report.shift import Panel, Shift

if TYPE_CHECKING:  # imported when a chart is drawn, so that training starts faster
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#00805d", "#b8528c", "#8a6d00", "#5b4bb5", "#333333", "#b0102e")
THEME = {f"c{i}": color for i, color in enumerate(COLORS)} | {
    "ink": "#1b1f24", "soft": "#57606a", "rule": "#d4d9df", "field": "#fafbfc"
}  # fmt: skip
"""Light colors by the name of their CSS variable; the style sheet has the dark ones."""
HEAT = "#d9531e"  # legible on white and on black
_DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3))
_LEVELS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # fractions above which a cell gets the next darker shade
_WIDTH, _HEIGHT = 360, 210  # narrow, so that text stays readable on a phone
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_DIGITS = re.compile(r"(\.\d\d)\d+")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "unflip", "path.simplify": False, "font.size": 11,
    "axes.edgecolor": THEME["rule"], "axes.labelcolor": THEME["soft"], "axes.labelpad": 2, "axes.facecolor": "none",
    "grid.color": THEME["rule"], "xtick.labelcolor": THEME["soft"], "ytick.labelcolor": THEME["soft"],
    "xtick.bottom": False, "ytick.left": False, "axes.axisbelow": True, "lines.linewidth": 2,
    "lines.scale_dashes": False,
}  # fmt: skip


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        name: in the legend.
        points: (epoch, value).
        place: index of the color and, once all are used, of the dash pattern.
        mark: epoch at which to draw a dot.
    """

    name: str
    points: Sequence[tuple[float, float]]
    place: int
    mark: float | None = None

    @property
    def color(self) -> str:
        """Its color in light mode."""
        return COLORS[self.place % len(COLORS)]

    @property
    def dashes(self) -> tuple[int, ...]:
        """Lengths of dashes and gaps; empty for a solid line."""
        return _DASHES[self.place // len(COLORS) % len(_DASHES)]


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
        label: text alternative for screen readers.
        chosen: epoch to mark with a vertical line.
        percent: whether values are fractions, to be shown as percentages.
        zero: whether the vertical axis starts at 0.
        bars: whether to draw bars from 0 instead of lines.
    """
    with _canvas(_HEIGHT, left=42, right=8, top=10, bottom=32) as (figure, axes):
        for line in lines:
            epochs, values = zip(*line.points, strict=True)
            if bars:
                axes.bar(epochs, values, color=line.color, clip_on=False)
                continue
            style: Any = (0, line.dashes) if line.dashes else "-"
            axes.plot(epochs, values, color=line.color, ls=style, solid_capstyle="round", clip_on=False)
            if line.mark is not None and line.mark in epochs:
                axes.plot(line.mark, dict(line.points)[line.mark], "o", color=line.color, ms=8, mew=0, clip_on=False)
        (first, low), (last, high) = axes.dataLim.get_points()
        low = min(low, 0.0) if zero or bars else low
        if percent:  # at least ten percentage points, so that small changes look small
            middle = (low + high) / 2
            low, high = max(0.0, min(low, middle - 0.05)), min(1.0, max(high, middle + 0.05))
        marks = _ticks(low, high if high > low else low + 1)
        whole = sorted({round(mark) for mark in _ticks(first, last)} & set(range(ceil(first), floor(last) + 1)))
        half = 0.5 if first == last else 0.0
        axes.set(xlim=(first - half, last + half), xticks=whole, xlabel="epoch", ylim=(marks[0], marks[-1]))
        write = "{:.3g}%" if percent else "{:,.6g}"
        axes.set_yticks(marks, [write.format(100 * mark if percent else mark) for mark in marks])
        axes.grid(axis="y", clip_on=False)
        axes.spines[:].set_visible(False)
        if chosen is not None:
            axes.axvline(chosen, color=THEME["soft"], lw=1.2, dashes=(3, 3), clip_on=False)
        return _inline(figure, label)


def heat(shares: Array) -> Array:
    """Return the shade of each cell: 0 for none, then 1 to 6."""
    return np.searchsorted(np.array(_LEVELS), shares, side="left")


def heat_legend() -> list[tuple[int, str]]:
    """Return each shade and the fractions it stands for."""
    bounds = [f"{100 * bound:g}" for bound in _LEVELS]
    return list(enumerate([*(f"up to {bound} %" for bound in bounds[1:]), f"above {bounds[-1]} %"], 1))


def heat_map(shares: Array, *, label: str) -> Markup:
    """Draw a large matrix (k, k) without its diagonal: one shade per cell, class numbers along the sides."""
    from matplotlib.colors import to_rgba

    levels = heat(shares)
    np.fill_diagonal(levels, 0)
    cells = np.tile(to_rgba(HEAT), (*shares.shape, 1))
    cells[:, :, 3] = np.where(levels > 0, 0.06 + 0.16 * levels, 0)  # from 0.22 to 1.02
    with _canvas(356, left=42, right=8, top=8, bottom=38) as (figure, axes):
        axes.imshow(cells.clip(0, 1), interpolation="none", aspect="auto", clip_on=False)
        axes.plot(axes.get_xlim(), axes.get_ylim()[::-1], color=THEME["rule"], lw=1.5, clip_on=False)
        whole = [mark for mark in _ticks(0, len(shares)) if mark < len(shares)]
        axes.set(xlabel="new class number", ylabel="given class number", xticks=whole, yticks=whole)
        return _inline(figure, label)


def scatter(shift: Shift, panel: Panel, *, label: str) -> Markup:
    """Draw one panel: points, ellipses and means of the classes, on the same axes for all panels."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    outlines = np.concatenate([outline for each in shift.panels for outline in (*each.outlines, each.means)])
    low, high = outlines.min(0), outlines.max(0)
    room = 0.06 * np.maximum(high - low, 1e-9)
    low, high = low - room, high + room
    with _canvas(300, left=1, right=1, top=1, bottom=1) as (figure, axes):
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[], facecolor=THEME["field"])
        for color, points, outline in zip(COLORS, panel.points, panel.outlines, strict=False):
            inside = points[((points > low) & (points < high)).all(1)]
            dots = Path(inside.repeat(2, 0), np.tile([Path.MOVETO, Path.LINETO], len(inside)))  # one path is small
            axes.add_patch(PathPatch(dots, ec=color, fill=False, lw=3.2, alpha=0.45, capstyle="round", clip_on=False))
            axes.plot(*outline.T, color=color, clip_on=False)
        for color, start, end in zip(COLORS, shift.panels[0].means, panel.means, strict=False):
            axes.plot(*start, "x", color=color, ms=8, mew=1.6, clip_on=False)
            if not np.array_equal(start, end):
                style = {"arrowstyle": "->", "color": THEME["ink"], "lw": 1.7, "shrinkA": 0, "shrinkB": 0}
                axes.annotate("", end.tolist(), start.tolist(), arrowprops=style)
        return _inline(figure, label)


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers that cover the range."""
    from matplotlib.ticker import MaxNLocator

    return [float(mark) for mark in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)]


@contextmanager
def _canvas(height: float, *, left: float, right: float, top: float, bottom: float) -> "Iterator[tuple[Figure, Axes]]":
    """Yield a transparent figure and axes inside margins, all in points, the units of the SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH / 72, height / 72), facecolor="none")
        across, up = (_WIDTH - left - right) / _WIDTH, (height - top - bottom) / height
        yield figure, figure.add_axes((left / _WIDTH, bottom / height, across, up))


def _inline(figure: "Figure", label: str) -> Markup:
    """Write a figure as an SVG element for a page whose policy forbids style attributes.

    Styles become attributes and markers are inlined; ids, metadata and fonts are dropped, so that charts on one page
    cannot clash and the same figure is always the same text.
    """
    text = StringIO()
    figure.savefig(text, format="svg")
    drawn = ElementTree.fromstring(text.getvalue())
    markers = {f"#{node.get('id')}": node for node in drawn.iter(f"{_SVG}path") if node.get("id")}
    view = str(drawn.get("viewBox"))
    root = ElementTree.Element("svg", {"class": "chart", "viewBox": view, "role": "img", "aria-label": label})
    root.set("stroke-linejoin", "round")
    root.extend(_plain(node, markers) for node in drawn.iterfind(f"{_SVG}g"))
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _plain(node: ElementTree.Element, markers: dict[str, ElementTree.Element]) -> ElementTree.Element:
    """Return a copy of a node and its children, with styles as attributes."""
    shape = markers[node.get(_LINK, "")] if node.tag == f"{_SVG}use" else node
    attributes = dict(shape.attrib) | dict(node.attrib)
    for rule in f"{shape.get('style', '')};{node.get('style', '')}".split(";"):
        name, _, value = rule.partition(":")
        attributes[name.strip()] = value.strip()
    if node is not shape:
        attributes["transform"] = f"translate({attributes.pop('x')} {attributes.pop('y')})"
    elif node.tag == f"{_SVG}image":
        attributes["href"] = attributes[_LINK]
    if "d" in attributes:
        attributes["d"] = _DIGITS.sub(r"\1", " ".join(attributes["d"].split()))
    for name in ("", "id", "style", "font", "font-family", "font-size", _LINK):
        attributes.pop(name, None)
    copy = ElementTree.Element(shape.tag.removeprefix(_SVG), attributes)
    copy.text = (shape.text or "").strip()
    copy.extend(_plain(inner, markers) for inner in shape if inner.tag != f"{_SVG}defs")
    return copy
