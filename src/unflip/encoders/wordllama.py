"""Mean of the token vectors in the package wordllama: no hub, no network, a few seconds for a million words.

Texts are split at white space, and each distinct word of a block is tokenized once. No token of this vocabulary
continues after a space, so these are the tokens of the whole text up to white space. The vectors are float16, so their
sums in float64 are exact: features do not depend on the order or the blocks of texts. Long texts are not truncated.
"""

import hashlib
import importlib
import importlib.util
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from unflip.data.arrays import Array
from unflip.encoders.base import TextEncoder
from unflip.errors import InputError, MissingExtraError

_VECTORS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


class WordLlama(TextEncoder):
    """Mean of token vectors, 256 features; nothing is fitted to the texts."""

    def __init__(self, vectors: Array, tokenizer: Any, digest: str) -> None:
        self._vectors, self._tokenizer, self._digest = vectors, tokenizer, digest
        self.width = vectors.shape[1]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Load the package's vectors."""
        return cls(*_read(_folder()))

    def encode_block(self, texts: list[str]) -> Array:
        """Return the mean token vector of each text."""
        words = [text.split() for text in texts]
        numbers = {word: number for number, word in enumerate(dict.fromkeys(itertools.chain.from_iterable(words)))}
        if not numbers:
            return np.zeros((len(texts), self.width), np.float32)
        sums, tokens = self._sums(list(numbers))
        bag = _bag([[numbers[word] for word in of] for of in words], len(numbers))
        means: Array = (bag @ sums) / np.maximum(bag @ tokens, 1)[:, None]
        return means.astype(np.float32)

    def _sums(self, words: list[str]) -> tuple[Array, Array]:
        """Return the sums of the words' token vectors (n, d), and the numbers of tokens (n,)."""
        tokens = [one.ids for one in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]
        bag = _bag(tokens, len(self._vectors))
        used = np.unique(bag.indices)
        return bag[:, used] @ self._vectors[used].astype(np.float64), bag.sum(1)

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return a hash of the vectors instead of the vectors."""
        return {"model": "wordllama", "weights": self._digest, "features": self.width}, {}


def _bag(members: Sequence[Sequence[int]], width: int) -> Any:
    """Return a sparse matrix (n, width) of how often each number is a member."""
    from scipy.sparse import csr_array

    starts = np.cumsum([0, *map(len, members)])
    indices = np.fromiter(itertools.chain.from_iterable(members), np.int32, int(starts[-1]))
    return csr_array((np.ones(len(indices)), indices, starts), (len(members), width))


def _folder() -> Path:
    """Return the package's folder without importing it, which would configure logging and contact a hub."""
    specs = {package: importlib.util.find_spec(package) for package in ("wordllama", "tokenizers")}
    for package, spec in specs.items():
        if spec is None:
            raise MissingExtraError(f"the package {package}", "text")
    return Path((specs["wordllama"].submodule_search_locations or ["."])[0])  # type: ignore[union-attr]


@cache
def _read(folder: Path) -> tuple[Array, Any, str]:
    """Return the vectors (tokens, features), the tokenizer, and a hash of both."""
    from safetensors import safe_open

    try:
        rules = (folder / _TOKENIZER).read_text("utf-8")
        with safe_open(folder / _VECTORS, "numpy") as file:
            vectors: Array = file.get_tensor("embedding.weight")
        tokenizer = importlib.import_module("tokenizers").Tokenizer.from_str(rules)
    except Exception as error:  # tokenizers raises nothing more precise
        raise InputError(f"{folder}: cannot be read ({error}); reinstall wordllama") from error
    tokenizer.encode_special_tokens = True  # "<s>" in a text is not a special token
    shape = json.dumps([str(vectors.dtype), *vectors.shape])
    digest = hashlib.blake2b(shape.encode(), digest_size=16)
    digest.update(np.ascontiguousarray(vectors).data)
    digest.update(rules.strip().encode())  # versions differ in a line break at the end
    return vectors, tokenizer, digest.hexdigest()
