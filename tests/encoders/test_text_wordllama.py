"""WordLlama: the mean of token vectors, in any order and any blocks; and what is said where its package is missing."""

import importlib.util
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unflip.encoders import text as module
from unflip.encoders import text_encoders
from unflip.encoders.text import Tfidf, WordLlama, blocks, choose_text_encoder
from unflip.errors import ConfigError, InputError, MissingExtraError, UnflipWarning

needs_wordllama = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("wordllama", "tokenizers")),
    reason="the extra `text` is not installed",
)
TEXTS = [
    "My card has not arrived yet.",
    "",
    "  \n ",
    "Wörter, 日本語 𝄞 and\ttabs",
    "card card CARD?",
    "x" * 3000,
    "<s> hi",
]


def slow(encoder: WordLlama, text: str) -> Any:
    """One text at a time, all of it at once, in twice the precision."""
    ids = encoder._tokenizer.encode(" ".join(text.split()), add_special_tokens=False).ids
    return encoder._vectors[ids].astype(np.float64).mean(0) if text.split() else np.zeros(256)


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in missing else find(name, *more))


@needs_wordllama
def test_features_are_the_mean_of_the_whole_texts_token_vectors() -> None:
    encoder = WordLlama.fit(TEXTS)
    features = encoder.encode(TEXTS)
    assert features.shape == (len(TEXTS), 256)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, np.array([slow(encoder, text) for text in TEXTS], np.float32))
    assert not features[1].any()
    assert not features[2].any()


@needs_wordllama
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=5))
def test_any_text_has_the_features_of_its_tokens(texts: list[str]) -> None:
    encoder = WordLlama.fit(texts)
    expected = np.array([slow(encoder, text) for text in texts], np.float32).reshape(-1, 256)
    np.testing.assert_array_equal(encoder.encode(texts), expected)


@needs_wordllama
def test_order_and_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    words = ["my", "card", "has", "not,", "arrived", "since", "Tuesday!", "£30"]
    texts = [" ".join(rng.choices(words, k=n)) for n in range(60)]
    encoder = WordLlama.fit(texts)
    features = encoder.encode(texts)
    order = rng.sample(range(60), 60)
    np.testing.assert_array_equal(encoder.encode([texts[i] for i in order]), features[order])
    monkeypatch.setattr(module, "blocks", lambda texts: blocks(texts, max_chars=50))
    np.testing.assert_array_equal(encoder.encode(texts), features)
    np.testing.assert_array_equal(np.concatenate([encoder.encode([text]) for text in texts]), features)


@needs_wordllama
def test_a_long_text_is_not_truncated() -> None:
    encoder = WordLlama.fit(())
    long = "my card has not arrived " * 5_000
    expected = slow(encoder, long + "at last").astype(np.float32)
    np.testing.assert_array_equal(encoder.encode([long + "at last"])[0], expected)
    assert (encoder.encode([long + "at last"]) != encoder.encode([long])).any()
    assert np.isfinite(encoder.encode(["ab3" * 40_000])).all()


@needs_wordllama
def test_state_is_json_without_the_vectors_and_gives_the_same_features() -> None:
    encoder = WordLlama.fit(TEXTS)
    settings, arrays = encoder.state()
    assert not arrays
    assert settings["features"] == 256
    assert len(json.dumps(settings)) < 200
    restored = WordLlama.restore(json.loads(json.dumps(settings)), {})
    np.testing.assert_array_equal(restored.encode(TEXTS), encoder.encode(TEXTS))
    with pytest.raises(InputError, match=r"wordllama has other weights \(\w+\) than .* \(abc\); restore"):
        WordLlama.restore({**settings, "weights": "abc"}, {})


@needs_wordllama
def test_other_vectors_have_another_state_but_a_line_break_does_not(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    vectors, _, digest = module._read_wordllama(module._wordllama_folder())
    for name in (module._TOKENIZER, module._VECTORS):
        (tmp_path / name).parent.mkdir()
        shutil.copy(module._wordllama_folder() / name, tmp_path / name)
    with (tmp_path / module._TOKENIZER).open("a") as file:
        file.write("\n")
    assert module._read_wordllama(tmp_path)[2] == digest
    module._read_wordllama.cache_clear()
    other = vectors.copy()
    other[5, 5] += 1
    save_file({"embedding.weight": other}, tmp_path / module._VECTORS)
    assert module._read_wordllama(tmp_path)[2] != digest
    module._read_wordllama.cache_clear()
    (tmp_path / module._VECTORS).write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        module._read_wordllama(tmp_path)


@needs_wordllama
def test_the_package_itself_is_never_imported() -> None:
    WordLlama.fit(()).encode(["a"])
    assert "wordllama" not in sys.modules


@pytest.mark.parametrize("package", ["wordllama", "tokenizers"])
def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    without(monkeypatch, package)
    message = rf"{package} is not installed; try: pip install 'unflip\[text\]'"
    with pytest.raises(MissingExtraError, match=message):
        WordLlama.fit(())
    with pytest.raises(MissingExtraError, match=message):
        WordLlama.restore({"weights": "abc"}, {})


def test_without_a_name_the_best_encoder_that_is_there_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert choose_text_encoder() == ("wordllama", WordLlama)
    assert choose_text_encoder("tfidf") == ("tfidf", Tfidf)
    without(monkeypatch, "wordllama")
    with pytest.warns(UnflipWarning, match=r'for a better encoder: pip install "unflip\[text\]"'):
        assert choose_text_encoder(None) == ("tfidf", Tfidf)
    with pytest.raises(ConfigError, match="unknown text encoder 'tfid', did you mean 'tfidf'"):
        choose_text_encoder("tfid")
    assert text_encoders.names() == ["wordllama", "tfidf", "sentence-transformers"]


def test_blocks_keep_all_texts_in_order() -> None:
    texts = ["a" * n for n in (3, 0, 9, 2, 2, 0)]
    assert list(blocks(texts, 8)) == [["aaa", ""], ["a" * 9], ["aa", "aa", ""]]
    assert list(blocks([])) == []
    assert list(blocks(["\ud800b"])) == [["?b"]]
    assert len(list(blocks([""] * 3, 1))) == 2
