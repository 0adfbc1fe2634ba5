"""Rendering of pages: self-contained HTML from templates, escaped, without scripts or external resources."""

from base64 import b64encode
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from math import floor
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unflip._version import __version__
from unflip.files import write_text
from unflip.progress import duration
from unflip.report.charts import HEAT, THEME


def write_page(path: Path, template: str, **content: Any) -> None:
    """Render a template and write the page atomically.

    The content security policy allows only the page's own style sheet, by its hash, and embedded images.
    """
    environment = _environment()
    style = environment.get_template("style.css").render(theme=THEME, heat=HEAT)
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
