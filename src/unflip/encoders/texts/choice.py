"""Which text encoder to use where nobody chose one."""

import importlib.util
import warnings

from unflip.encoders.texts import text_encoders
from unflip.encoders.texts.base import TextEncoder
from unflip.errors import UnflipWarning


def choose_text_encoder(name: str | None = None) -> tuple[str, type[TextEncoder]]:
    """Return an encoder and its name; nobody having chosen, wordllama, or tfidf with a warning where it is missing."""
    if name is None:
        name = "wordllama"
        if any(importlib.util.find_spec(package) is None for package in ("wordllama", "tokenizers")):
            name = "tfidf"
            warnings.warn(
                'texts are encoded by tfidf; pip install "unflip[text]" brings a better encoder',
                UnflipWarning,
                stacklevel=2,
            )
    return name, text_encoders.load(name)
