"""Tfidf: learned from few or many texts, restored to the bit, zeros for what it does not know."""

import json
import random

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from unflip.encoders import text as module
from unflip.encoders.text import Tfidf, blocks
from unflip.errors import InputError

RNG = random.Random(0)
WORDS = [
    "my",
    "card",
    "has",
    "not",
    "arrived",
    "since",
    "tuesday",
    "refund",
    "transfer",
    "pending",
    "top",
    "rate",
    "fee",
]
TEXTS = [" ".join(RNG.choices(WORDS, k=RNG.randint(1, 9))) for _ in range(400)]


def test_inner_products_are_those_of_tf_idf_where_nothing_is_cut() -> None:
    features = Tfidf.fit(TEXTS).encode(TEXTS)
    plain = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True).fit_transform(TEXTS).toarray()
    assert features.shape == (400, min(256, plain.shape[1]))
    assert features.dtype == np.float32
    np.testing.assert_allclose(features @ features.T, plain @ plain.T, atol=1e-4)


def test_state_is_plain_and_gives_the_same_bits() -> None:
    encoder = Tfidf.fit(TEXTS)
    settings, arrays = encoder.state()
    assert {str(array.dtype) for array in arrays.values()} == {"float32"}
    restored = Tfidf.restore(json.loads(json.dumps(settings)), {name: array.copy() for name, array in arrays.items()})
    new = [*TEXTS, "a refnd, please", "日本"]
    np.testing.assert_array_equal(restored.encode(new), encoder.encode(new))


def test_fitting_again_gives_the_same_bits() -> None:
    np.testing.assert_array_equal(Tfidf.fit(TEXTS).encode(TEXTS), Tfidf.fit(TEXTS).encode(TEXTS))


def test_order_and_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Tfidf.fit(TEXTS)
    features = encoder.encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS[::-1]), features[::-1])
    monkeypatch.setattr(module, "blocks", lambda texts: blocks(texts, max_chars=100))
    np.testing.assert_array_equal(encoder.encode(TEXTS), features)


@pytest.mark.parametrize("texts", [["a b", "c", "d e f"], ["same text"] * 3, ["one"], ["x", "", ""], ["!?", "日本語"]])
def test_few_texts_do(texts: list[str]) -> None:
    encoder = Tfidf.fit(texts)
    features = encoder.encode(texts)
    assert np.isfinite(features).all()
    assert [bool(row.any()) for row in features] == [bool(text) for text in texts]


def test_unknown_and_empty_texts_are_zeros() -> None:
    features = Tfidf.fit(TEXTS).encode(["", " \n", "日本語", "card"])
    assert [bool(row.any()) for row in features] == [False, False, False, True]
    assert Tfidf.fit(TEXTS).encode([]).shape[0] == 0


@pytest.mark.parametrize("texts", [[], [""], ["", " \n\t "], ["", ""] * 1000])
def test_texts_without_a_word_are_refused_in_one_line(texts: list[str]) -> None:
    with pytest.raises(InputError, match=rf"no words in {len(texts)} texts"):
        Tfidf.fit(texts)


def test_the_number_of_ngrams_and_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NGRAMS", 40)
    settings, arrays = Tfidf.fit(TEXTS).state()
    assert len(settings["ngrams"]) == len(arrays["idf"]) == len(arrays["components"]) == 40
    monkeypatch.setattr(module, "MAX_CHARS", sum(map(len, TEXTS)) // 3)
    fewer = Tfidf.fit(TEXTS)
    np.testing.assert_array_equal(fewer.encode(TEXTS), Tfidf.fit(TEXTS[::4]).encode(TEXTS))
