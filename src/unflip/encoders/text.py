"""Text encoders: their base class, tf-idf, token vectors of wordllama, and models of sentence-transformers."""

import importlib
import importlib.util
import itertools
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from unflip.compute import repair_torchvision
from unflip.data.arrays import Array
from unflip.encoders import text_encoders
from unflip.errors import ConfigError, InputError, MissingExtraError, UnflipWarning, described
from unflip.progress import Track, untracked

_MAX_CHARS = 1 << 20  # of texts that are encoded at a time, which bounds memory
_MAX_FEATURES = 256
MAX_NGRAMS = 20_000  # the most frequent ones; the stored encoder then has 20 MB
MAX_CHARS = 10_000_000  # to fit; of more, every second, third, ... text is used, to save memory
_MANY_TEXTS = 1000  # from which on an n-gram must occur in two texts
_SETTINGS: Any = {"analyzer": "char_wb", "ngram_range": (2, 4), "sublinear_tf": True, "dtype": np.float32}
_VECTORS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_FAMILY = "sentence-transformers"
_FETCHED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NOT_FETCHED = ["onnx/*", "openvino/*"]


class TextEncoder(ABC):
    """Base class of text encoders. A subclass is registered in ``unflip.encoders.text_encoders``.

    Attributes:
        width: number of features.
    """

    width: int

    @classmethod
    @abstractmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Return an encoder fitted to ``texts``; raise InputError if a package or a model is missing."""

    @abstractmethod
    def encode_block(self, texts: list[str]) -> Array:
        """Return the features (n, width) of a block of texts; zeros for an empty text."""

    def encode(self, texts: Sequence[str], track: Track = untracked) -> Array:
        """Return the features (n, width) of texts in float32, computed block by block."""
        features, end = np.zeros((len(texts), self.width), np.float32), 0
        for block in blocks(track(texts, "encoding texts", len(texts))):
            features[end : end + len(block)] = self.encode_block(block)
            end += len(block)
        return features

    @abstractmethod
    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return JSON-serializable settings, and arrays, from which :meth:`restore` rebuilds the encoder."""

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Rebuild an encoder from its :meth:`state`; raise InputError if the package or the weights differ.

        This is for pretrained encoders, to which nothing is fitted; others override it.
        """
        encoder = cls.fit(())
        own = encoder.state()[0]
        if own["weights"] != settings.get("weights"):
            told = f"{own['model']} has other weights ({own['weights']}) than the features were computed with"
            raise InputError(f"{told} ({settings.get('weights')}); restore that version, or train again")
        return encoder


def choose_text_encoder(name: str | None = None) -> tuple[str, type[TextEncoder]]:
    """Return the name and the class of a text encoder; wordllama by default, or tfidf if that is not installed."""
    if name is None:
        name = "wordllama"
        if any(importlib.util.find_spec(package) is None for package in ("wordllama", "tokenizers")):
            name = "tfidf"
            hint = 'texts are encoded by tfidf; for a better encoder: pip install "unflip[text]"'
            warnings.warn(hint, UnflipWarning, stacklevel=2)
    return name, text_encoders.load(name)


def blocks(texts: Iterable[str], max_chars: int = _MAX_CHARS) -> Iterator[list[str]]:
    """Yield texts in lists of at most ``max_chars`` characters, or of one longer text.

    Lone surrogates, which JSON may contain and tokenizers reject, are replaced.
    """
    block: list[str] = []
    size = 0
    for text in texts:
        clean = text.encode(errors="replace").decode()
        if block and size + len(clean) > max_chars:
            yield block
            block, size = [], 0
        block.append(clean)
        size += len(clean) + 1  # so that empty texts count too
    if block:
        yield block


class Tfidf(TextEncoder):
    """Tf-idf of character n-grams, reduced to 256 features by truncated SVD (latent semantic analysis); needs no extra.

    N-grams have 2 to 4 characters and do not cross word boundaries. In cross-validation on BANKING77 (training texts,
    logistic regression) they reach 87.4 %, words 84.4 %; they are robust to typing errors, and need no spaces.
    """

    def __init__(self, ngrams: Sequence[str], idf: Array, components: Array) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._ngrams, self._idf = list(ngrams), np.asarray(idf, np.float32)
        self._components: Array = np.ascontiguousarray(components, np.float32)  # (n-grams, features)
        self._vectorizer = TfidfVectorizer(vocabulary={ngram: i for i, ngram in enumerate(self._ngrams)}, **_SETTINGS)
        self._vectorizer.idf_ = self._idf
        self.width = self._components.shape[1]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Learn n-grams, their weights and the components; raise InputError for texts without words."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        every = -(-sum(map(len, texts)) // MAX_CHARS) or 1
        sample = [text for block in blocks(texts[::every]) for text in block]
        least = 2 if len(sample) >= _MANY_TEXTS else 1
        vectorizer = TfidfVectorizer(max_features=MAX_NGRAMS, min_df=least, **_SETTINGS)
        try:
            weights = vectorizer.fit_transform(sample)
        except ValueError as error:
            raise InputError(f"no words in {len(sample)} texts ({error}); is this the right column?") from error
        ngrams = vectorizer.get_feature_names_out().tolist()
        width = min(_MAX_FEATURES, *weights.shape)
        if width == len(ngrams):
            return cls(ngrams, vectorizer.idf_, np.eye(width, dtype=np.float32))
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # equal texts have no variance
            svd = TruncatedSVD(width, random_state=0).fit(weights)
        return cls(ngrams, vectorizer.idf_, svd.components_.T)

    def encode_block(self, texts: list[str]) -> Array:
        """Return the projections on the components; zeros for a text without known n-grams."""
        return np.asarray(self._vectorizer.transform(texts) @ self._components)

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return the n-grams, and their weights and components as arrays."""
        return {"ngrams": self._ngrams}, {"idf": self._idf, "components": self._components}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Rebuild the encoder."""
        return cls(settings["ngrams"], arrays["idf"], arrays["components"])


class WordLlama(TextEncoder):
    """Mean of the token vectors in the package wordllama, 256 features: no hub, a few seconds for a million words.

    Texts are split at white space, and each distinct word of a block is tokenized once. No token of this vocabulary
    continues after a space, so these are the tokens of the whole text up to white space. The vectors are float16, so
    their sums in float64 are exact: features do not depend on the order or the blocks of texts. Long texts are not
    truncated, and nothing is fitted to the texts.
    """

    def __init__(self, vectors: Array, tokenizer: Any, digest: str) -> None:
        self._vectors, self._tokenizer, self._digest = vectors, tokenizer, digest
        self.width = vectors.shape[1]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Load the package's vectors."""
        return cls(*_read_wordllama(_wordllama_folder()))

    def encode_block(self, texts: list[str]) -> Array:
        """Return the mean token vector of each text."""
        from scipy.sparse import csr_array

        words = [text.split() for text in texts]
        distinct = list(dict.fromkeys(itertools.chain.from_iterable(words)))
        tokenized = self._tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
        tokens = {word: one.ids for word, one in zip(distinct, tokenized, strict=True)}
        members = [[token for word in of for token in tokens[word]] for of in words]
        starts = np.cumsum([0, *map(len, members)])
        indices = np.fromiter(itertools.chain.from_iterable(members), np.int32, int(starts[-1]))
        used, columns = np.unique(indices, return_inverse=True)
        bag = csr_array((np.ones(len(indices)), columns, starts), (len(texts), len(used)))  # how often a text has each
        sums = bag @ self._vectors[used].astype(np.float64)
        means: Array = sums / np.maximum(np.diff(starts), 1)[:, None]
        return means.astype(np.float32)

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return a hash of the vectors instead of the vectors."""
        return {"model": "wordllama", "weights": self._digest, "features": self.width}, {}


def _wordllama_folder() -> Path:
    """Return the package's folder without importing it, which would configure logging and contact a hub."""
    specs = {package: importlib.util.find_spec(package) for package in ("wordllama", "tokenizers")}
    for package, spec in specs.items():
        if spec is None:
            raise MissingExtraError(f"the package {package}", "text")
    return Path((specs["wordllama"].submodule_search_locations or ["."])[0])  # type: ignore[union-attr]


@cache
def _read_wordllama(folder: Path) -> tuple[Array, Any, str]:
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
    digest = blake2b(shape.encode(), digest_size=16)
    digest.update(np.ascontiguousarray(vectors).data)
    digest.update(rules.strip().encode())  # versions differ in a line break at the end
    return vectors, tokenizer, digest.hexdigest()


class SentenceTransformers(TextEncoder):
    """A model of the package sentence-transformers, a name on the hub or a folder; nothing is fitted to the texts.

    Only settings, vocabularies and .safetensors are downloaded from the hub, never code or pickles. Texts are truncated
    to the maximum length of the model.
    """

    name: ClassVar[str]

    def __init__(self, model: Any) -> None:
        self._model = model
        self.width = int(self._encode(["a"]).shape[1])

    @classmethod
    def fit(cls, texts: Sequence[str]) -> Self:
        """Load the model from a folder or the hub."""
        return cls(_load(cls.name))

    def encode_block(self, texts: list[str]) -> Array:
        """Return the model's embeddings; zeros for blank texts."""
        features = np.zeros((len(texts), self.width), np.float32)
        filled = [index for index, text in enumerate(texts) if text.strip()]
        if filled:
            features[filled] = self._encode([texts[index] for index in filled])
        return features

    def _encode(self, texts: list[str]) -> Array:
        return np.asarray(self._model.encode(texts, batch_size=32, show_progress_bar=False, convert_to_numpy=True))

    def state(self) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
        """Return the name of the model, and a hash of its weights and vocabulary."""
        from unflip.nn.backbone import hash_weights

        vocabulary: dict[str, int] = getattr(getattr(self._model, "tokenizer", None), "get_vocab", dict)()
        settings = json.dumps([sorted(vocabulary.items()), self._model.max_seq_length])
        weights = hash_weights(self._model, settings)
        return {"model": f"{_FAMILY}:{self.name}", "weights": weights, "features": self.width}, {}


def named(name: str) -> type[SentenceTransformers]:
    """Return the encoder class of the model ``name``, which is loaded by ``fit`` and ``restore``."""
    if not name:
        raise ConfigError(f"{_FAMILY}: no model; write {_FAMILY}:NAME with a folder or a name on the Hugging Face Hub")
    if importlib.util.find_spec("sentence_transformers") is None:
        raise MissingExtraError(f"the package {_FAMILY}", _FAMILY)
    return type(SentenceTransformers.__name__, (SentenceTransformers,), {"name": name})


def import_package() -> Any:
    """Import the package, even beside a torchvision that was built for another torch."""
    repair_torchvision()
    return importlib.import_module("sentence_transformers")


def _load(name: str) -> Any:
    path = Path(name).expanduser()
    folder = path if path.is_dir() else _fetch(name)
    try:
        _check_safe(folder, name)
        with warnings.catch_warnings(action="ignore"):
            return import_package().SentenceTransformer(
                str(folder), trust_remote_code=False, local_files_only=True, model_kwargs={"use_safetensors": True}
            )
    except InputError:
        raise
    except Exception as error:  # a folder may be damaged in any way
        raise InputError(f"{_FAMILY}:{name}: cannot be loaded from {folder}: {described(error)[:160]}") from error


def _fetch(name: str) -> Path:
    """Return the folder of a model on the hub, downloaded or cached."""
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_FETCHED, ignore_patterns=_NOT_FETCHED))
    except Exception as error:  # no network, unknown name, no access: types vary with the version
        raise InputError(
            f"{_FAMILY}:{name}: neither a folder nor on the Hugging Face Hub ({type(error).__name__}); check the name"
        ) from error


def _check_safe(folder: Path, name: str) -> None:
    """Raise InputError if loading would import foreign code, or unpickle weights."""
    for module in json.loads((folder / "modules.json").read_text("utf-8")):
        part = folder / module["path"]
        settings = part / "config.json"
        function = json.loads(settings.read_text("utf-8")).get("activation_function") if settings.is_file() else None
        for reference, package in ((module["type"], "sentence_transformers."), (function, "torch.nn.")):
            if reference is not None and not str(reference).startswith(package):
                raise InputError(f"{_FAMILY}:{name}: runs foreign code, {reference}; not loaded")
        if any(part.glob("*.bin")) and not any(part.glob("*.safetensors")):
            raise InputError(f"{_FAMILY}:{name} weights are pickled; save them as .safetensors")
