"""How large the source is: files, lines of code, share of docstrings, in all and by room.

A line of code has a token on it that is neither a comment nor a docstring of a module, class, function or attribute.

    python bench/count_code.py [FOLDER]
"""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src/unflip"
_EMPTY = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    """Files, and lines of three kinds; a line that is not blank is code, docstring or comment."""

    files: int = 0
    code: int = 0
    docstrings: int = 0
    not_blank: int = 0

    @property
    def documented(self) -> float:
        """Share of docstrings in lines that are not blank."""
        return self.docstrings / max(1, self.not_blank)


def count_file(path: Path) -> Size:
    """Count one file."""
    text = path.read_text()
    docstrings, code = docstring_lines(text), code_lines(text)
    not_blank = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    return Size(1, len(code & not_blank), len(docstrings & not_blank), len(not_blank))


def docstring_lines(text: str) -> set[int]:
    """Return the numbers of the lines of docstrings of a source, those of attributes and constants included."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines of code of a source."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _EMPTY:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(text)


def count_rooms(folder: Path = SOURCE) -> dict[str, Size]:
    """Count every folder directly below ``folder``; modules beside them are the room '.'."""
    rooms: defaultdict[str, Size] = defaultdict(Size)
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0] if path.parent != folder else "."
        rooms[room] = total([rooms[room], count_file(path)])
    return dict(rooms)


def total(sizes: list[Size]) -> Size:
    """Add sizes up."""
    return Size(*map(sum, zip(*sizes, strict=True)))


def main() -> None:
    rooms = count_rooms(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
    largest_first = sorted(rooms.items(), key=lambda room: -room[1].code)
    for name, size in [*largest_first, ("all", total([*rooms.values()]))]:
        print(f"{name:12} {size.files:4} files {size.code:6,} lines of code {size.documented:6.1%} docstrings")


if __name__ == "__main__":
    main()
