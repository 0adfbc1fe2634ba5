"""Checkpoints: any tree comes back, a damaged file is passed over."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import assert_same_tree, passthrough
from unflip.engine import checkpoints as module
from unflip.engine.checkpoints import BestEpoch, Checkpoints, load_tree, save_tree
from unflip.errors import RunFolderError, UnflipWarning
from unflip.nn.base import Ensemble

TENSORS = st.builds(
    lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool]),
    st.integers(0, 99),
)
LEAVES = st.one_of(
    TENSORS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
)
KEYS = st.one_of(st.text(max_size=4), st.sampled_from(["a", "b", "a/b", "/", "0"]), st.integers(-3, 30))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(tree=TREES)
def test_any_tree_comes_back(tmp_path: Path, tree: Any) -> None:
    save_tree(tmp_path / "a.safetensors", tree)
    assert_same_tree(tree, load_tree(tmp_path / "a.safetensors"))


def test_keys_with_slashes_are_not_mixed_up(tmp_path: Path) -> None:
    tree = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "c": [torch.tensor(3)], "c/0": torch.tensor(4)}
    save_tree(tmp_path / "a.safetensors", tree)
    assert_same_tree(tree, load_tree(tmp_path / "a.safetensors"))


def test_tensors_that_share_memory_come_back(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tree = {"whole": whole, "again": whole, "view": whole[1:], "column": whole[:, 1], "turned": whole.T}
    save_tree(tmp_path / "a.safetensors", tree)
    assert_same_tree(tree, load_tree(tmp_path / "a.safetensors"))


def test_the_state_of_an_optimizer_comes_back(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    save_tree(tmp_path / "a.safetensors", optimizer.state_dict())
    other = torch.optim.SGD([weight], lr=1.0, momentum=0.1)
    other.load_state_dict(load_tree(tmp_path / "a.safetensors"))
    assert_same_tree(optimizer.state_dict(), other.state_dict())


def test_what_is_no_plain_value_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a checkpoint cannot hold set at /method/1/seen"):
        save_tree(tmp_path / "a.safetensors", {"method": [0, {"seen": {1}}]})
    assert list(tmp_path.iterdir()) == []


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "garbage":
        path.write_bytes(b"\xff" * len(content))
    elif how == "foreign":
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(2)}, path)


@pytest.mark.parametrize("how", ["empty", "cut", "garbage", "foreign"])
def test_a_damaged_file_is_one_line(tmp_path: Path, how: str) -> None:
    save_tree(tmp_path / "a.safetensors", {"x": torch.arange(100)})
    damage(tmp_path / "a.safetensors", how)
    with pytest.raises(RunFolderError, match=r"a\.safetensors: not a readable checkpoint") as error:
        load_tree(tmp_path / "a.safetensors")
    assert "\n" not in str(error.value)


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path, weights = tmp_path / "a.safetensors", torch.randn(40)
    save_tree(path, {"x": weights, "y": [torch.tensor(3), "name"], "z": 0.5})
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            loaded = load_tree(path)
        except RunFolderError:
            continue
        assert torch.equal(loaded["x"], weights)  # it was a space in the header, or the like
        assert loaded["y"] == [torch.tensor(3), "name"]
        assert loaded["z"] == 0.5


def names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".safetensors") for path in folder.iterdir())


@pytest.mark.parametrize(("keep", "kept"), [(1, [11]), (2, [10, 11]), (3, [9, 10, 11])])
def test_the_last_few_are_kept(tmp_path: Path, keep: int, kept: list[int]) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep, 10.0)
    for epoch in (1, 2, 9, 10, 11):
        checkpoints.save({"epoch": epoch}, epoch)
    assert names(tmp_path / "checkpoints") == [f"epoch-{epoch:05d}" for epoch in kept]
    assert checkpoints.load_last() == {"epoch": 11}


def test_one_is_due_when_it_costs_little_or_after_the_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    checkpoints = Checkpoints(tmp_path, 2, minutes=1.0)
    assert checkpoints.is_due(midway=False)
    assert not checkpoints.is_due(midway=True)
    real = module.save_tree

    def slow(path: Path, tree: Any) -> None:
        nonlocal now
        now += 0.5
        real(path, tree)

    monkeypatch.setattr(module, "save_tree", slow)
    checkpoints.save({}, 1)
    due = []
    for later in (0, 24.9, 25.1, 59.9, 60.1):
        now = 100.5 + later
        due.append((checkpoints.is_due(midway=False), checkpoints.is_due(midway=True)))
    assert due == [(False, False), (False, False), (True, False), (True, False), (True, True)]


@pytest.mark.parametrize("how", ["empty", "cut", "garbage", "foreign"])
def test_when_the_newest_is_damaged_it_is_named_and_the_one_before_used(tmp_path: Path, how: str) -> None:
    checkpoints = Checkpoints(tmp_path, 2, 10.0)
    for epoch in (1, 2):
        checkpoints.save({"epoch": epoch}, epoch)
    damage(tmp_path / "epoch-00002.safetensors", how)
    with pytest.warns(
        UnflipWarning, match=r"epoch-00002\.safetensors: .*resuming from the earlier epoch-00001\.safetensors"
    ) as told:
        assert checkpoints.load_last() == {"epoch": 1}
    assert len(told) == 1


def test_when_all_are_damaged_the_newest_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2, 10.0)
    for epoch in (1, 2):
        checkpoints.save({"epoch": epoch}, epoch)
        damage(tmp_path / f"epoch-{epoch:05d}.safetensors", "cut")
    with pytest.raises(RunFolderError, match=r"epoch-00002.*there is no other; start over with --force"):
        checkpoints.load_last()


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, 2, 10.0).load_last() is None
    assert Checkpoints(tmp_path / "missing", 2, 10.0).load_last() is None


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot write .*checkpoints: Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints", 2, 10.0).save({}, 1)


def test_the_state_of_the_best_epoch_is_a_copy_and_the_first_of_equal_epochs() -> None:
    model = Ensemble([passthrough(2)])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    best = BestEpoch()
    best.update(1, 0.5, model)
    with torch.no_grad():
        for weight in model.networks[0].parameters():
            weight.add_(1.0)
    for epoch, score in ((2, 0.5), (3, 0.4)):
        best.update(epoch, score, model)
    assert (best.epoch, best.score) == (1, 0.5)
    assert_same_tree(before, best.state)


def test_a_checkpoint_in_another_format_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "epoch-00001.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", 1)
        save_tree(path, {"a": 1})
    said = rf"not a readable checkpoint \(format 1, this version of unflip reads {module.FORMAT}\)"
    with pytest.raises(RunFolderError, match=said):
        load_tree(path)
