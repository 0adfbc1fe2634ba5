"""Pages: self-contained HTML from templates, without scripts or external resources; below, their charts as SVG images.

A chart is drawn by matplotlib in the light colors of :data:`THEME`, which become variables of the image's own style, so
that charts follow light and dark mode.
"""

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from io import StringIO
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unflip._version import __version__
from unflip.files import write_text
from unflip.progress import duration

COLORS = ("#0072b2", "#d55e00", "#00805d", "#b8528c", "#8a6d00", "#5b4bb5", "#333333", "#b0102e")
_DARK = ("#4da6e0", "#f08a3c", "#35c79b", "#e08cbb", "#e8c53a", "#b3a4f5", "#d8dde2", "#ff7a85")
THEME = {f"c{i}": pair for i, pair in enumerate(zip(COLORS, _DARK, strict=True))} | {
    "ink": ("#1b1f24", "#e8ebee"), "soft": ("#57606a", "#a3adb8"), "rule": ("#d4d9df", "#3a424b")
}  # fmt: skip
"""Light and dark colors by the name of their CSS variable."""
_STEPS = (1, 2, 5, 10)  # between the numbers of an axis
_WIDTH, _HEIGHT = 360, 210  # points; narrow, so that text stays readable on a phone
_AXES = (42 / _WIDTH, 32 / _HEIGHT, 310 / _WIDTH, 168 / _HEIGHT)
_SOFT, _RULE = THEME["soft"][0], THEME["rule"][0]
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "unflip", "path.simplify": False, "font.size": 11, "lines.linewidth": 2,
    "lines.solid_capstyle": "round", "axes.edgecolor": _RULE, "axes.labelcolor": _SOFT, "axes.labelpad": 2,
    "axes.facecolor": "none", "axes.axisbelow": True, "grid.color": _RULE, "xtick.bottom": False, "ytick.left": False,
    "xtick.labelcolor": _SOFT, "ytick.labelcolor": _SOFT,
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
        place: index of the color; after the last one, they start over.
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


def line_chart(lines: Sequence[Line], *, label: str, percent: bool = False, zero: bool = False) -> Markup:
    """Draw lines by epoch; return an image.

    Args:
        lines: what to draw; epochs without a value are skipped.
        label: text alternative for screen readers.
        percent: whether values are fractions, to be shown as percentages.
        zero: whether the vertical axis starts at 0.
    """
    from matplotlib import rc_context  # imported when a chart is drawn, so that training starts faster
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), facecolor="none")
        axes = figure.add_axes(_AXES)
        for line in lines:
            epochs, values = zip(*line.points, strict=True)
            dots = [i for i, epoch in enumerate(epochs) if epoch == line.mark or len(epochs) == 1]
            axes.plot(epochs, values, "o-", color=line.color, ms=8, mew=0, markevery=dots, clip_on=False)
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
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    for name, (color, _) in THEME.items():
        svg = svg.replace(color, f"var(--{name})")
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in THEME.items()) for i in (0, 1))
    colors = f":root{{{light}}} @media screen and (prefers-color-scheme: dark) {{:root{{{dark}}}}}"
    source = b64encode(svg.replace("*{", f"{colors} *{{", 1).encode()).decode()
    return Markup('<img class="chart" src="data:image/svg+xml;base64,{}" alt="{}">').format(source, label)
