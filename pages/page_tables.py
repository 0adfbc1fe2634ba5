"""Fill the tables of pages from result files.

    python pages/page_tables.py docs/features.md docs/unflip.md

In a page, `<!-- unflip table ARGUMENTS -->` begins what that command prints as Markdown, `<!-- end -->` ends it. Paths
in the arguments start at the repository's root.
"""

import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- unflip (table [^\n]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """Return ``page`` with every table as the results now say it."""
    from unflip.cli.app import app

    def print_table(block: re.Match[str]) -> str:
        arguments = [str(ROOT / word) if word.startswith("docs/") else word for word in shlex.split(block.group(2))]
        done = CliRunner().invoke(app, [*arguments, "--format", "markdown"], catch_exceptions=False)
        if done.exit_code:
            raise SystemExit(f"unflip {block.group(2)}: {done.output}")
        return f"{block.group(1)}\n{done.stdout}\n{block.group(3)}"

    return BLOCK.sub(print_table, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fill(path.read_text("utf-8")), "utf-8")
