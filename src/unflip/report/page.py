"""Pages: self-contained HTML from templates, without scripts or external resources; below, their charts as inline SVG.

A chart is drawn by matplotlib in the light colors of :data:`THEME`. They become plain ``stroke`` and ``fill``
attributes, which the page's style sheet maps to its own variables, so that charts follow light mode, dark mode and
print. Text stays text.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from io import StringIO
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unflip._version import __version__
from unflip.files import write_text
from unflip.progress import duration

if TYPE_CHECKING:  # imported when a chart is drawn, so that training starts faster
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#00805d", "#b8528c", "#8a6d00", "#5b4bb5", "#333333", "#b0102e")
THEME = {f"c{i}": color for i, color in enumerate(COLORS)} | {
    "ink": "#1b1f24", "soft": "#57606a", "rule": "#d4d9df"
}  # fmt: skip
"""Light colors by the name of their CSS variable; the style sheet has the dark ones."""
_DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3))
_STEPS = (1, 2, 5, 10)  # between the numbers of an axis
_WIDTH, _HEIGHT = 360, 210  # narrow, so that text stays readable on a phone
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_DIGITS = re.compile(r"(\.\d\d)\d+")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "unflip", "path.simplify": False, "font.size": 11,
    "axes.edgecolor": THEME["rule"], "axes.labelcolor": THEME["soft"], "axes.labelpad": 2, "axes.facecolor": "none",
    "grid.color": THEME["rule"], "xtick.labelcolor": THEME["soft"], "ytick.labelcolor": THEME["soft"],
    "xtick.bottom": False, "ytick.left": False, "axes.axisbelow": True, "lines.linewidth": 2,
    "lines.scale_dashes": False, "lines.solid_capstyle": "round",
}  # fmt: skip


def write_page(path: Path, template: str, **content: Any) -> None:
    """Render a template and write the page atomically.

    The content security policy allows only the page's own style sheet, by its hash, and embedded images.
    """
    environment = _environment()
    style = environment.get_template("style.css").render(theme=THEME)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    page = environment.get_template(template).render(
        style=Markup(style), policy=policy, version=__version__, written=datetime.now(UTC), **content
    )
    write_text(path, page)


def written_quality(share: float | None) -> str:
    """Format a label quality as the review page does (`percent` in its dom.js)."""
    if share is None:
        return "unknown"
    value = 100 * share
    if value < 1:
        return "<1\u00a0%"
    return ">99\u00a0%" if 99 < value < 100 else f"{floor(value + 0.5)}\u00a0%"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("unflip.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {
        "percent": lambda share: "unknown" if share is None else f"{100 * share:.1f}\u00a0%",
        "quality": written_quality,
        "count": lambda number: f"{number:,}",
        "moment": lambda when: f"{when:%Y-%m-%d %H:%M} UTC",
        "duration": lambda seconds: duration(seconds).replace(" ", "\u00a0"),
    }
    return environment


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
    percent: bool = False,
    zero: bool = False,
) -> Markup:
    """Draw lines by epoch.

    Args:
        lines: what to draw; epochs without a value are skipped.
        label: text alternative for screen readers.
        percent: whether values are fractions, to be shown as percentages.
        zero: whether the vertical axis starts at 0.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    with _canvas() as (figure, axes):
        for line in lines:
            epochs, values = zip(*line.points, strict=True)
            style: Any = (0, line.dashes) if line.dashes else "-"
            dots = [i for i, epoch in enumerate(epochs) if epoch == line.mark or len(epochs) == 1]
            axes.plot(epochs, values, "o", ls=style, color=line.color, ms=8, mew=0, markevery=dots, clip_on=False)
        (first, low), (last, high) = axes.dataLim.get_points()
        low = min(low, 0.0) if zero else low
        if percent:  # at least ten percentage points, so that small changes look small
            middle = (low + high) / 2
            low, high = max(0.0, min(low, middle - 0.05)), min(1.0, max(high, middle + 0.05))
        marks = MaxNLocator(6, steps=_STEPS).tick_values(low, high if high > low else low + 1)
        half = 0.5 if first == last else 0.0
        axes.set(xlim=(first - half, last + half), xlabel="epoch", ylim=(marks[0], marks[-1]), yticks=marks)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0) if percent else "{x:,.6g}")
        axes.grid(axis="y", clip_on=False)
        axes.spines[:].set_visible(False)
        return _inline(figure, label)


@contextmanager
def _canvas(left: float = 42, right: float = 8, top: float = 10, bottom: float = 32) -> "Iterator[tuple[Figure, Axes]]":
    """Yield a transparent figure and axes inside margins, all in points, the units of the SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), facecolor="none")
        across, up = (_WIDTH - left - right) / _WIDTH, (_HEIGHT - top - bottom) / _HEIGHT
        yield figure, figure.add_axes((left / _WIDTH, bottom / _HEIGHT, across, up))


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
    if "d" in attributes:
        attributes["d"] = _DIGITS.sub(r"\1", " ".join(attributes["d"].split()))
    for name in ("", "id", "style", "font", "font-family", "font-size", _LINK):
        attributes.pop(name, None)
    copy = ElementTree.Element(shape.tag.removeprefix(_SVG), attributes)
    copy.text = (shape.text or "").strip()
    copy.extend(_plain(inner, markers) for inner in shape if inner.tag != f"{_SVG}defs")
    return copy
