"""The model file: all that is needed to rebuild and feed the networks."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from helpers import assert_same_tree
from unflip.data.sources import Standardization
from unflip.errors import RunFolderError
from unflip.nn.base import Ensemble, build_network
from unflip.nn.mlp import MLPOptions
from unflip.runs.model_file import FORMAT, Model, load_model

OPTIONS = MLPOptions(hidden=(5, 4), dropout=0.3)


def some_model(count: int = 1, *, standardized: bool = True, names: bool = True) -> Model:
    networks = [build_network("mlp", OPTIONS, (3,), 2, seed) for seed in range(count)]
    for network in networks:
        network(torch.randn(8, 3))  # so that batch norm has statistics of its own
    return Model(
        network="mlp",
        options=OPTIONS.model_dump(mode="json"),
        input_shape=(3,),
        num_classes=2,
        class_names=["é", "b"] if names else None,
        standardization=Standardization(torch.arange(3.0), torch.ones(3)) if standardized else None,
        state=Ensemble(networks).state_dict(),
    )


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("extras", [True, False])
def test_a_model_comes_back_and_says_the_same(tmp_path: Path, count: int, extras: bool) -> None:
    model = some_model(count, standardized=extras, names=extras)
    model.save(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    for name in ("network", "options", "input_shape", "num_classes", "class_names"):
        assert getattr(loaded, name) == getattr(model, name)
    assert_same_tree(dict(sorted(model.state.items())), dict(sorted(loaded.state.items())))
    if extras:
        assert loaded.standardization is not None
        assert torch.equal(loaded.standardization.mean, torch.arange(3.0))
    else:
        assert loaded.standardization is None
    inputs = torch.randn(6, 3)
    built = loaded.build()
    assert len(built.networks) == count
    for one, other in zip(model.build().networks, built.networks, strict=True):
        assert not other.training
        assert torch.equal(one(inputs), other(inputs))


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_file_that_is_no_model_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.safetensors"
    if content is None:
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(1)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"model\.safetensors: not a readable model") as error:
        load_model(path)
    assert "\n" not in str(error.value)


def test_a_missing_model_asks_whether_the_run_is_finished(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no model\.safetensors; is this the folder of a finished run"):
        load_model(tmp_path / "model.safetensors")


@pytest.mark.parametrize("found", [None, 1, 99])
def test_a_model_in_another_format_is_refused_in_one_line(tmp_path: Path, found: int | None) -> None:
    path = tmp_path / "model.safetensors"
    some_model().save(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        description = json.loads(file.metadata()["model"])
    assert description.pop("format") == FORMAT
    if found is not None:
        description["format"] = found
    save_file(tensors, path, {"model": json.dumps(description)})
    with pytest.raises(RunFolderError, match=f"model format {found or 1}, this version of unflip reads {FORMAT}"):
        load_model(path)


def test_a_model_with_a_single_column_is_read(tmp_path: Path) -> None:
    mean, std = (torch.ones(1).as_strided((1,), (0,)) for _ in range(2))  # contiguous, with a stride of 0
    Model("mlp", {}, (1,), 2, None, Standardization(mean, std), {}).save(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors").standardization
    assert loaded is not None
    assert loaded.mean.tolist() == [1.0]


def test_a_flipped_bit_in_the_weights_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    some_model().save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        RunFolderError, match=r"not a readable model \(its checksum does not match: the file is damaged"
    ):
        load_model(path)
