"""Blocks of texts: few enough characters at a time that memory stays small, whatever the number of texts."""

from collections.abc import Iterable, Iterator

from unflip.errors import InputError

CHARACTERS = 1 << 20
"""In a block, unless a single text is longer."""


def blocks(texts: Iterable[str], most: int = CHARACTERS) -> Iterator[list[str]]:
    """Yield texts in lists of at most ``most`` characters or one text; refuse what is no text."""
    block: list[str] = []
    size = 0
    for index, text in enumerate(texts):
        clean = _checked(text, index)
        if block and size + len(clean) > most:
            yield block
            block, size = [], 0
        block.append(clean)
        size += len(clean) + 1  # so that empty texts count too
    if block:
        yield block


def _checked(text: object, index: int) -> str:
    if not isinstance(text, str):
        raise InputError(f"text {index} is {text!r:.40}, of type {type(text).__name__}; only texts can be encoded")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, such as JSON may hold; no tokeniser takes it
        return text.encode(errors="replace").decode()
    return text
