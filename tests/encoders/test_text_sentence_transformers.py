"""sentence-transformers:NAME: a tiny random model from a folder; nothing of others is run, and errors are one line."""

import importlib
import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unflip.encoders import text_encoders
from unflip.encoders.text import TextEncoder, import_package
from unflip.errors import ConfigError, InputError, MissingExtraError

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="the extra `sentence-transformers` is missing"
)
TEXTS = ["my card", "", "the card is not here", " \n", "card" * 3, "[SEP] unknown"]


def build(folder: Path, seed: int = 0) -> Path:
    """Save a model of one layer with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = import_package()
        transformers: Any = importlib.import_module("transformers")
    (folder / "bert").mkdir(parents=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "my", "card", "the", "is", "not", "here", "##card"]
    (folder / "bert" / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models: Any = importlib.import_module("sentence_transformers.models")
        transformers.BertModel(config).save_pretrained(folder / "bert")
        transformers.BertTokenizer(str(folder / "bert" / "vocab.txt")).save_pretrained(folder / "bert")
        body = models.Transformer(str(folder / "bert"))
        model = package.SentenceTransformer(modules=[body, models.Pooling(16)], device="cpu")
        model.save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tiny"))


def load(folder: Path | str) -> type[TextEncoder]:
    kind: type[TextEncoder] = text_encoders.load(f"sentence-transformers:{folder}")
    return kind


def edit(folder: Path, into: Path, file: str, change: Any) -> Path:
    """Copy a model with one of its JSON files changed."""
    importlib.import_module("shutil").copytree(folder, into)
    content = json.loads((into / file).read_text())
    change(content)
    (into / file).write_text(json.dumps(content))
    return into


@needs_package
def test_features_are_the_models_and_zeros_for_empty_texts(model: Path) -> None:
    encoder = load(model).fit(TEXTS)
    features = encoder.encode(TEXTS)
    assert features.shape == (len(TEXTS), 16)
    assert features.dtype == np.float32
    assert [bool(row.any()) for row in features] == [bool(text.strip()) for text in TEXTS]
    plain = import_package().SentenceTransformer(str(model), device="cpu")
    for text, row in zip(TEXTS, features, strict=True):
        if text.strip():
            np.testing.assert_allclose(row, plain.encode([text], show_progress_bar=False)[0], atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1]), features[::-1], atol=1e-5)
    assert encoder.encode(["card " * 100_000]).any()


@needs_package
def test_state_names_the_model_and_its_weights(model: Path, tmp_path: Path) -> None:
    encoder = load(model).fit(TEXTS)
    settings, arrays = encoder.state()
    assert settings["model"] == f"sentence-transformers:{model}"
    assert not arrays
    restored = load(model).restore(json.loads(json.dumps(settings)), {})
    np.testing.assert_array_equal(restored.encode(TEXTS), encoder.encode(TEXTS))
    with pytest.raises(InputError, match=r"has other weights \(\w+\) than the features") as caught:
        load(build(tmp_path, seed=1)).restore(settings, {})
    assert "\n" not in str(caught.value)


@needs_package
def test_classes_of_others_are_never_imported(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Module: ...\n")
    bad = edit(model, tmp_path / "bad", "modules.json", lambda modules: modules[1].update(type="evil.Module"))
    with pytest.raises(InputError, match=r"runs foreign code, evil\.Module; not loaded"):
        load(bad).fit(TEXTS)
    called = edit(model, tmp_path / "called", "config.json", lambda config: config.update(activation_function="evil.f"))
    with pytest.raises(InputError, match=r"runs foreign code, evil\.f; not loaded"):
        load(called).fit(TEXTS)
    mapped = edit(
        model,
        tmp_path / "mapped",
        "config.json",
        lambda config: config.update(model_type="evil", auto_map={"AutoModel": "evil.Module", "AutoConfig": "evil.C"}),
    )
    (mapped / "evil.py").write_text((tmp_path / "evil.py").read_text())
    with pytest.raises(InputError, match="cannot be loaded"):
        load(mapped).fit(TEXTS)
    assert not (tmp_path / "ran").exists()


@needs_package
def test_pickles_are_refused(model: Path, tmp_path: Path) -> None:
    bad = edit(model, tmp_path / "bad", "modules.json", lambda modules: None)
    (bad / "model.safetensors").rename(bad / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"weights are pickled; save them as \.safetensors"):
        load(bad).fit(TEXTS)


@needs_package
@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '[{"type": 3}]'])
def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "modules.json").write_text(content)
    with pytest.raises(InputError) as caught:
        load(tmp_path).fit(TEXTS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@needs_package
def test_damaged_weights_are_one_line(model: Path, tmp_path: Path) -> None:
    bad = edit(model, tmp_path / "bad", "modules.json", lambda modules: None)
    (bad / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be loaded from"):
        load(bad).fit(TEXTS)


@needs_package
def test_without_the_hub_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def offline(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        raise ConnectionError("a\nlong\nmessage")

    monkeypatch.setattr(importlib.import_module("huggingface_hub"), "snapshot_download", offline)
    with pytest.raises(InputError, match=r":some/model: .* Hub \(ConnectionError\); check the name") as caught:
        load("some/model").fit(TEXTS)
    assert "\n" not in str(caught.value)
    assert asked["name"] == "some/model"
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in asked["allow_patterns"])


@needs_package
def test_a_model_of_the_hub_is_loaded_from_what_was_fetched(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("huggingface_hub"), "snapshot_download", lambda name, **_: str(model))
    encoder = load("some/model").fit(TEXTS)
    assert encoder.state()[0]["model"] == "sentence-transformers:some/model"
    assert encoder.encode(TEXTS).shape == (len(TEXTS), 16)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if "sentence" in name else find(name, *more)
    )
    with pytest.raises(MissingExtraError, match=r"pip install 'unflip\[sentence-transformers\]'"):
        load("some/model")
    with pytest.raises(ConfigError, match="no model; write"):
        load("")
