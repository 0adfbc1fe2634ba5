"""Mean of the token vectors that the package wordllama carries: no hub, no network, a few seconds for a million words.

A text is its words, split at any white space; each distinct word of a block is tokenized once. Since no token of this
vocabulary goes on after a space, these are the tokens of the whole text but for its white space. The vectors are of
16 bits, so their sums are exact in 64: features are the same bit for bit in any order and any blocks of texts.
Nothing is cut off, however long a text is.
"""

import hashlib
import importlib
import importlib.util
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from unflip.data.arrays import Array
from unflip.encoders.base import TextEncoder, blocks
from unflip.errors import InputError, MissingExtraError

_VECTORS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_WORD = re.compile(r"\S+")
_EDGES = re.compile(r"^\W+|\W+$")


class WordLlama(TextEncoder):
    """Mean of token vectors; 256 features, nothing is learned from the texts."""

    extra = "text"

    def __init__(self, vectors: Array, tokenizer: Any, digest: str) -> None:
        self._vectors, self._tokenizer, self._digest = vectors, tokenizer, digest
        self.width = vectors.shape[1]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Read the package's vectors."""
        return cls(*_read(_folder()))

    def encode_block(self, texts: list[str]) -> Array:
        """Return the mean of the vectors of each text's tokens."""
        from scipy.sparse import csr_array

        words = [text.split() for text in texts]
        flat = list(itertools.chain.from_iterable(words))
        if not flat:
            return np.zeros((len(texts), self.width), np.float32)
        numbers = {word: number for number, word in enumerate(dict.fromkeys(flat))}
        sums, tokens = self._sums(list(numbers))
        indices = np.fromiter(map(numbers.__getitem__, flat), np.int32, len(flat))
        bag = csr_array((np.ones(len(flat)), indices, _starts([len(of) for of in words])), (len(texts), len(numbers)))
        means: Array = (bag @ sums) / np.maximum(bag @ tokens, 1)[:, None]
        return means.astype(np.float32)

    def _sums(self, words: list[str]) -> tuple[Array, Array]:
        """Return the sum of each word's token vectors, and the number of its tokens."""
        from scipy.sparse import csr_array

        tokens = [one.ids for one in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]
        lengths = [len(ids) for ids in tokens]
        ids = np.fromiter(itertools.chain.from_iterable(tokens), np.int32, sum(lengths))
        used, columns = np.unique(ids, return_inverse=True)
        bag = csr_array((np.ones(len(ids)), columns.astype(np.int32), _starts(lengths)), (len(words), len(used)))
        return bag @ self._vectors[used].astype(np.float64), np.array(lengths, np.float64)

    def speaking_words(self, text: str, direction: Array, top: int) -> tuple[tuple[int, int], ...]:
        """Rank words by the sum of their tokens' shares of the features' product with ``direction``, which is exact."""
        spans: dict[str, list[tuple[int, int]]] = {}
        shares: dict[str, float] = {}
        found = list(_WORD.finditer(text))
        if not found or top <= 0:
            return ()
        ((clean,),) = blocks([text])  # what takes the place of a broken character is one character too
        sums, _ = self._sums([clean[match.start() : match.end()] for match in found])
        for match, share in zip(found, (sums @ np.asarray(direction, np.float64)).tolist(), strict=True):
            word = _EDGES.sub("", match.group()) or match.group()
            begin = match.start() + match.group().index(word)
            spans.setdefault(word, []).append((begin, begin + len(word)))
            shares[word] = shares.get(word, 0.0) + share
        first = sorted((word for word in shares if shares[word] > 0), key=lambda word: -shares[word])[:top]
        return tuple(itertools.chain.from_iterable(spans[word] for word in first))

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return which vectors these are, not the vectors."""
        return {"vectors": self._digest, "features": self.width}, {}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Read the package's vectors; refuse others than the features were made with."""
        encoder = cls.fit(())
        if encoder.state()[0] != dict(settings):
            raise InputError(
                f"the package wordllama here holds other vectors ({encoder._digest}) than those that the features were "
                f"made with ({settings.get('vectors')}); install the version of then, or train again"
            )
        return encoder


def _starts(lengths: Sequence[int]) -> Array:
    starts: Array = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _folder() -> Path:
    """Return the package's folder, without importing it: it would set up logging and ask for a hub."""
    specs = {package: importlib.util.find_spec(package) for package in ("wordllama", "tokenizers")}
    for package, spec in specs.items():
        if spec is None:
            raise MissingExtraError(f"the package {package}", "text")
    return Path((specs["wordllama"].submodule_search_locations or ["."])[0])  # type: ignore[union-attr]


@cache
def _read(folder: Path) -> tuple[Array, Any, str]:
    """Return vectors (tokens, features), tokenizer, and a hash of both."""
    from safetensors import safe_open

    try:
        rules = (folder / _TOKENIZER).read_text("utf-8")
        with safe_open(folder / _VECTORS, "numpy") as file:
            vectors: Array = file.get_tensor("embedding.weight")
        tokenizer = importlib.import_module("tokenizers").Tokenizer.from_str(rules)
    except Exception as error:  # tokenizers raises nothing more precise
        raise InputError(f"{folder}: not readable ({error}); try to install wordllama again") from error
    tokenizer.encode_special_tokens = True  # a text that holds "<s>" means these characters
    shape = json.dumps([str(vectors.dtype), *vectors.shape])
    digest = hashlib.blake2b(shape.encode(), digest_size=16)
    digest.update(np.ascontiguousarray(vectors).data)
    digest.update(rules.strip().encode())  # versions differ in a line break at the end
    return vectors, tokenizer, digest.hexdigest()
