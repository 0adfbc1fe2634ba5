"""What commands answer where the way on is not obvious: files of weights, missing class maps, names of methods."""

import io
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tiny_backbone
from helpers import Outcome, blobs, write_npz
from pictures import write_picture
from unflip.errors import InputError
from unflip.nn.backbone import read_weights

Cli = Callable[..., Outcome]


# Weights


def saved(content: object, **options: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def archive(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return stream.getvalue()


PLAIN = {"weight": torch.ones(3, 1, 1, 1)}
NO_WEIGHTS: dict[str, bytes] = {
    "pickle.pth": pickle.dumps({"weight": 3}),
    "text-pickle.pth": pickle.dumps({"weight": 3}, protocol=0),
    "module.pth": saved(torch.nn.Linear(2, 2)),
    "array.pth": saved({"weight": np.ones(3)}),
    "script.pth": archive("a/constants.pkl", "a/data.pkl", "a/version"),
    "empty.pth": b"",
    "words.pth": b"no weights at all",
    "bytes.bin": bytes(range(256)),
    "archive.pt": archive("a"),
    "half.pth": saved(PLAIN)[:300],
    "half-old.pth": saved(PLAIN, _use_new_zipfile_serialization=False)[:-5],
    "tensor.pth": saved(torch.ones(3)),
    "numbers.pth": saved({1: torch.ones(3)}),
    "nothing.pth": saved({}),
    "words.safetensors": b"no weights at all",
    "empty.safetensors": b"",
    "torch.safetensors": saved(PLAIN),
}


@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_what_is_no_file_of_weights_is_one_line_of_ours(cli: Cli, tmp_path: Path, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tiny_backbone.register(patch)
        for i in range(4):
            write_picture(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", i % 2, (20, 20))
        weights = tmp_path / name
        weights.write_bytes(NO_WEIGHTS[name])
        done = cli(
            "embed", tmp_path / "photos", "--out", tmp_path / "f.npz", "--backbone", "tiny", "--weights", weights
        )  # fmt: skip
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"unflip: weights {weights}: ")
    assert done.err.count("\n") == 1
    for theirs in ("weights_only", "PyTorch", "torch.load", "trusted", "\x1b", "\\x1b"):
        assert theirs not in done.err
    assert not (tmp_path / "f.npz").exists()


@pytest.mark.parametrize("old", [False, True])
def test_no_part_of_a_file_of_weights_breaks_the_reader(tmp_path: Path, old: bool) -> None:
    path, content = tmp_path / "w.pth", saved(PLAIN, _use_new_zipfile_serialization=not old)
    path.write_bytes(content)
    assert torch.equal(read_weights(path)["weight"], PLAIN["weight"])
    random = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        if random.random() < 0.5:
            del damaged[random.integers(len(content)) :]
        else:
            damaged[random.integers(len(content))] = random.integers(256)
        path.write_bytes(damaged)
        with suppress(InputError):
            read_weights(path)


def test_a_file_of_weights_may_be_called_as_one_likes(tmp_path: Path) -> None:
    save_file(PLAIN, tmp_path / "W.SAFETENSORS")
    assert torch.equal(read_weights(tmp_path / "W.SAFETENSORS")["weight"], PLAIN["weight"])


# Noise


def test_noise_that_needs_a_class_map_says_how_to_give_one_and_that_works(cli: Cli, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "d.npz", **blobs())
    train = ["train", "--data", data, "--noise", "asym:0.3", "--out", tmp_path / "run", "--epochs", 1, "--quiet"]
    corrupt = ["corrupt", "--data", data, "--noise", "asym:0.3", "--out", tmp_path / "l.npy", "--quiet"]
    said = (
        "unflip: the noise step asym:0.3 needs a class map or superclasses; none given; corrupt takes "
        "--class-map FILE.json, train takes --set noise.class_map=FILE.json\n"
    )
    assert cli(*train) == cli(*corrupt) == Outcome(2, "", said)
    (tmp_path / "map.json").write_text('{"0": "1", "1": "2"}')
    assert cli(*train, "--set", f"noise.class_map={tmp_path / 'map.json'}") == Outcome(0, "", "")
    assert cli(*corrupt, "--class-map", tmp_path / "map.json") == Outcome(0, "", "")
