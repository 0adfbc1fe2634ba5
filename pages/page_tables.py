"""Fill the tables of pages from result files.

    python pages/page_tables.py docs/results/*.md

In a page, the output of a command in Markdown is between `<!-- unflip paper table ARGUMENTS -->` and `<!-- end -->`.
Paths in the arguments are relative to the root of the repository.
"""

import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

import marked

ROOT = Path(__file__).parents[1]


def fill(page: str) -> str:
    """Return ``page`` with its tables filled from the results."""
    return marked.fill(page, "unflip paper table", print_table)


def print_table(arguments: str) -> str:
    """Return the output of `unflip paper table ARGUMENTS`, without the spaces that align its columns."""
    from unflip.cli.app import build_app

    words = [str(ROOT / word) if word.startswith("docs/") else word for word in shlex.split(arguments)]
    done = CliRunner().invoke(build_app(), ["paper", "table", *words], catch_exceptions=False)
    if done.exit_code:
        raise SystemExit(f"unflip paper table {arguments}: {done.output}")
    return re.sub(r"-{3,}", "---", "".join(map(_tight, done.stdout.splitlines(keepends=True))))


def _tight(line: str) -> str:
    """Return a row of a table without the spaces that align it; other lines as they are."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    return f"| {' | '.join(cells)} |\n" if line.startswith("|") else line


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fill(path.read_text("utf-8")), "utf-8")
