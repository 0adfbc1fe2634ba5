"""What commands answer where the way on is not obvious: files of weights, missing class maps, names of methods."""

import io
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from safetensors.torch import save_file

import tiny_backbone
from helpers import Outcome, blobs, spawn_python, write_npz
from pictures import write_picture
from unflip.errors import InputError
from unflip.methods import find_method
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


def test_noise_is_inspected_against_whatever_has_labels(cli: Cli, tmp_path: Path) -> None:
    for i in range(6):
        write_picture(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", i % 2, (20, 20))
    (tmp_path / "photos.txt").write_text("a\na\nb\nb\nb\nb\n")
    done = cli("noise", "inspect", tmp_path / "photos.txt", "--clean", tmp_path / "photos")
    assert "noise rate 0.1667 over 6 labels, 2 classes" in done.out, done
    out = tmp_path / "digits.npy"
    assert cli("corrupt", "--data", "digits", "--noise", "sym:0.3", "--out", out, "--quiet").code == 0
    done = cli("noise", "inspect", out, "--clean", "digits")
    assert done.out.startswith(f"noise rate {(np.load(out) != digits()).mean():.4f} over "), done
    names = np.array(["ape", "bee", "cat"])
    data = write_npz(tmp_path / "d.npz", **blobs(), class_names=names)
    assert cli("corrupt", "--data", data, "--noise", "sym:0.3", "--out", tmp_path / "l.csv", "--quiet").code == 0
    done = cli("noise", "inspect", tmp_path / "l.csv", "--clean", data)  # names here, numbers and names there
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()[3:]] == names.tolist()


def digits() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The labels of the built-in data set, as they are."""
    from unflip.data.loaders import load_raw
    from unflip.data.options import DataOptions

    labels = load_raw(DataOptions(path="digits")).train.labels
    assert labels is not None
    return labels.astype(np.int64)


# Methods


def test_the_list_of_methods_tells_of_those_with_calibration(cli: Cli) -> None:
    told = cli("list", "methods").out.splitlines()[-1]
    assert "such as gce-m" in told
    example = told.split()[-1]
    assert find_method(example) is not None
    assert told in cli("list").out
    assert "gce-m" not in cli("list", "networks").out


def test_results_of_something_else_in_a_sweep_are_named(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"unflip": "0.1.0", "files": ["fingerprints.json", "results.jsonl"]}')
    (tmp_path / "fingerprints.json").write_text("[]")
    (tmp_path / "results.jsonl").write_text('{"mine": 1}\n')
    done = cli("paper", "sweep", "smoke/digits", "--out", tmp_path, "--quiet")
    assert done.code == 2
    assert "results.jsonl" in done.err
    assert done.err.count("\n") == 1
    assert (tmp_path / "results.jsonl").read_text() == '{"mine": 1}\n'


# What other libraries and the shell do


def test_notes_of_an_image_that_are_broken_are_nothing_that_a_user_is_told(tmp_path: Path) -> None:
    for i in range(8):
        write_picture(tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg", i % 2, (20, 20))
    first = tmp_path / "photos" / "a" / "0.jpg"
    cut_off = b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12\0\x03\0\0\0\x01"
    PIL.Image.open(first).copy().save(first, exif=cut_off)
    train = ["train", "--data", tmp_path / "photos", "--network", "mlp", "--out", tmp_path / "run"]
    done = spawn_python("-m", "unflip", *train, "--epochs", 1, "--select", "last", "--device", "cpu", "--quiet")
    assert done == Outcome(0, "", "")
