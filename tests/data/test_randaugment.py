"""RandAugment: what is drawn for each image, and what it does to it."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import shrink_cifar
from unflip import train
from unflip.compute import repair_torchvision
from unflip.data.images import ImageSource, RandAugment, byte_normalization, flip_crop
from unflip.errors import ConfigError, MissingExtraError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="the extra `timm` is not installed"
)

SHAPE = (3, 16, 16)
IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, *SHAPE), dtype=np.uint8))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_images_are_transformed_as_if_each_were_alone() -> None:
    augment = RandAugment(SHAPE)
    found = augment(IMAGES, seeded())
    random = seeded()
    draws = [torch.randint(28, (64,), generator=random) for _ in range(2)]
    for row, image in enumerate(IMAGES):
        expected = image[None]
        for drawn in draws:
            expected = augment._operations[int(drawn[row])](expected)
        assert torch.equal(found[row], expected[0])
    assert found.dtype == torch.uint8
    assert found.shape == IMAGES.shape


def test_the_operations_are_those_of_torchvision_at_its_default_magnitude() -> None:
    repair_torchvision()
    transforms = importlib.import_module("torchvision.transforms")
    reference: Any = importlib.import_module("torchvision.transforms.v2").RandAugment()
    names = [
        "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
        "Identity", "Posterize", "Solarize", "AutoContrast", "Equalize",
    ]  # fmt: skip
    assert sorted(names) == sorted(reference._AUGMENTATION_SPACE)
    ours = RandAugment(SHAPE)._operations
    for position, name in enumerate(names):
        magnitudes, signed = reference._AUGMENTATION_SPACE[name]
        space = magnitudes(reference.num_magnitude_bins, *SHAPE[1:])
        value = 0.0 if space is None else float(space[reference.magnitude])
        for sign, number in ((1, position), (-1, position + 9)) if signed else ((1, position + 9),):
            expected = reference._apply_image_or_video_transform(
                IMAGES, name, sign * value, transforms.InterpolationMode.NEAREST, reference._fill
            )
            found = ours[number](IMAGES)
            if "Shear" in name:  # about the center instead of a corner
                assert not torch.equal(found, IMAGES)
            else:
                assert int((found.int() - expected.int()).abs().max()) <= 1, name  # its magnitudes are rounded


def test_draws_follow_the_generator_and_images_stay_unchanged() -> None:
    kept, augment = IMAGES.clone(), RandAugment(SHAPE)
    one, same, other = (augment(IMAGES, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(IMAGES, kept)


def test_a_view_is_shifted_and_mirrored_first() -> None:
    standardize = byte_normalization((0.5,) * 3, (0.25,) * 3)
    source = ImageSource(IMAGES.numpy(), standardize, augment="randaugment")
    found = source.view(torch.arange(64), seeded())
    random = seeded()
    expected = RandAugment(SHAPE)(flip_crop(IMAGES, random), random)
    torch.testing.assert_close(found, (expected.float() - 127.5) / 63.75)
    assert torch.equal(source.fetch(torch.arange(3)), (IMAGES[:3].float() - 127.5) / 63.75)


def test_other_channels_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="images have 4 channels"):
        RandAugment((4, 16, 16))
    assert RandAugment((1, 16, 16))(IMAGES[:, :1], seeded()).shape == (64, 1, 16, 16)

    def missing(name: str) -> Tensor:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("unflip.compute.importlib.import_module", missing)
    with pytest.raises(MissingExtraError, match=r"torchvision.*unflip\[timm\]"):
        RandAugment(SHAPE)


def test_a_network_is_trained_on_such_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_cifar(monkeypatch, 8, 8)
    random = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = random.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(8) % 4
        (tmp_path / f"{name}.bin").write_bytes(records.tobytes())
    settings = {"data.augment": "randaugment", "preact_resnet8.width": 4, "preact_resnet8.blocks": [1]}
    runs = [
        train(tmp_path, tmp_path / str(i), method="standard", network="preact_resnet8", epochs=2, settings=settings)
        for i in range(2)
    ]
    one, other = ((run.folder / "model.safetensors").read_bytes() for run in runs)
    assert one == other
