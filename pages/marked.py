"""Marked parts of a page: everything between `<!-- NAME WORDS -->` and the next `<!-- end -->` is generated."""

import re
from collections.abc import Callable, Iterable


def fill(page: str, name: str, make: Callable[[str], str | Iterable[str]]) -> str:
    """Regenerate the parts of a page with that name: ``make`` returns text or lines for the words of a mark."""

    def part(found: re.Match[str]) -> str:
        made = make(found[2])
        text = made if isinstance(made, str) else "\n".join(made)
        return f"{found[1]}\n\n{text.strip()}\n\n<!-- end -->"

    return re.sub(rf"(<!-- {re.escape(name)}(?: ([^\n]*?))? -->)\n.*?<!-- end -->", part, page, flags=re.DOTALL)
