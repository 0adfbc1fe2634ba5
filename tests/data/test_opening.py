"""Image files: what the network sees of them, whoever reads them; broken ones, small ones, large ones."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import write_picture
from unflip.data.dataset import Split
from unflip.data.files import (
    IMAGES,
    ImageFiles,
    ResizeCrop,
    as_names,
    cut_images,
    find_files,
    make_pool,
    open_images,
    read_all,
    sizes_of,
    squares,
    to_rgb,
)
from unflip.data.images import IMAGENET, FileSource, mirror, open_sets, pictures_of_files, random_boxes
from unflip.data.options import ImageOptions
from unflip.errors import ConfigError, InputError

SIZES = [(90, 70), (200, 300), (70, 400), (128, 128)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    """Images of four sizes and four kinds."""
    root = tmp_path_factory.mktemp("large")
    for i, (size, kind) in enumerate(zip(SIZES, ("jpg", "png", "webp", "JPEG"), strict=True)):
        write_picture(root / f"{i}.{kind}", i, size)
    return ImageFiles(root, as_names(find_files(root, IMAGES)))


def framed(files: ImageFiles, size: int = 32, resize: int = 40) -> ImageFiles:
    return ImageFiles(files.root, files.names, frame=ResizeCrop(size, resize))


def opened(root: Path, **options: Any) -> tuple[Any, ResizeCrop | None]:
    """Return the inputs of the images in a folder, and their frame."""
    files = ImageFiles(root, as_names(find_files(root, IMAGES)))
    sets, frame, _ = open_sets({"train": Split(files, None)}, ImageOptions(**options))
    return sets["train"].inputs, frame


def bytes_of(inputs: torch.Tensor) -> torch.Tensor:
    return inputs * IMAGENET.std + IMAGENET.mean


def test_what_is_fetched_is_the_center_after_scaling_the_shorter_side(large: ImageFiles) -> None:
    source = FileSource(framed(large), IMAGENET)
    assert (len(source), source.shape, source.augments) == (4, (3, 32, 32), True)
    found = bytes_of(source.fetch(torch.tensor([3, 1])))
    for image, row in zip(found, (3, 1), strict=True):
        picture = Image.open(large.path(row)).convert("RGB")
        short = min(picture.size)
        width, height = (round(side * 40 / short) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - 32) // 2, (height - 32) // 2
        usual = torch.from_numpy(np.array(picture.crop((left, top, left + 32, top + 32)))).permute(2, 0, 1)
        assert (image - usual).abs().mean() < 5  # the noise has a deviation of 14 before it is scaled down
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("crop", ["resized", "random"])
def test_a_view_is_the_part_that_was_drawn_for_each_image_and_mirrored(large: ImageFiles, crop: Any) -> None:
    rows = torch.tensor([0, 2, 3, 1])
    found = FileSource(framed(large), IMAGENET, crop=crop).view(rows, torch.Generator().manual_seed(3))
    draws = torch.Generator().manual_seed(3)
    with make_pool(1) as pool:
        images = open_images(large, rows.tolist(), pool)
        sizes = sizes_of(images)
        boxes = random_boxes(sizes, draws) if crop == "resized" else squares(sizes, 0.8, draws)
        pixels = mirror(cut_images(large, rows.tolist(), images, boxes, ResizeCrop(32, 32), pool), draws)
    torch.testing.assert_close(bytes_of(found), pixels.float(), atol=1e-3, rtol=0)


def test_views_do_not_depend_on_the_number_of_workers(large: ImageFiles) -> None:
    rows = torch.tensor([0, 1, 2, 3, 2, 1])
    one, many = (
        FileSource(framed(large), IMAGENET, workers=workers).view(rows, torch.Generator().manual_seed(1))
        for workers in (1, 5)
    )
    assert torch.equal(one, many)


def test_a_jpeg_that_is_unpacked_at_a_fraction_of_its_size_shows_the_same_part(tmp_path: Path) -> None:
    steps = np.linspace(0, 255, 1000).astype(np.uint8)
    picture = Image.fromarray(
        np.stack([np.tile(steps, (600, 1)), np.tile(steps[:600, None], (1, 1000))] * 2, 2)[..., :3]
    )
    picture.save(tmp_path / "a.jpg", quality=95)
    picture.save(tmp_path / "a.png")
    files = ImageFiles(tmp_path, as_names(["a.jpg", "a.png"]))
    boxes = torch.tensor([[100.0, 300.0, 400.0, 500.0]]).expand(2, -1)
    with make_pool(1) as pool:
        jpeg, png = cut_images(files, [0, 1], open_images(files, [0, 1], pool), boxes, ResizeCrop(50, 50), pool)
    assert (jpeg.int() - png.int()).abs().max() <= 4


def test_without_augmentation_a_view_is_what_is_fetched(large: ImageFiles) -> None:
    source = FileSource(framed(large), IMAGENET, augment=False)
    assert not source.augments
    assert torch.equal(source.view(torch.tensor([1, 0]), torch.Generator()), source.fetch(torch.tensor([1, 0])))


def test_gray_pictures_palettes_and_transparency_become_three_colors(tmp_path: Path) -> None:
    red = Image.new("RGBA", (100, 100), (200, 0, 0, 255))
    red.save(tmp_path / "a.png")
    red.convert("P").save(tmp_path / "b.png", transparency=3)
    red.convert("L").save(tmp_path / "c.png")
    red.convert("CMYK").save(tmp_path / "d.jpg")
    source = FileSource(framed(ImageFiles(tmp_path, as_names(find_files(tmp_path, IMAGES)))), IMAGENET)
    means = bytes_of(source.fetch(torch.arange(4))).mean((2, 3)).round().int().tolist()
    assert means[:2] == [[200, 0, 0]] * 2
    assert means[2] == [60, 60, 60]
    assert means[3][0] > 190


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("RGBA", "png"), ("LA", "png"), ("P", "png"), ("L", "png"), ("RGB", "png"), ("RGBA", "webp"), ("RGBA", "gif")],
)
def test_transparent_pixels_are_white_as_viewers_show_them(tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / f"icon.{suffix}"
    icon = Image.new("RGBA", (80, 80), (0, 0, 0, 0))  # black on transparent ground, which is black, too
    icon.paste((0, 0, 0, 255), (20, 20, 60, 60))
    if mode in ("L", "RGB"):  # one color is transparent
        icon.paste((9, 9, 9, 255), (0, 0), icon.getchannel("A").point(lambda alpha: 255 - alpha))
        icon.convert(mode).save(path, transparency=9 if mode == "L" else (9, 9, 9))
    else:
        (icon.quantize() if mode == "P" else icon.convert(mode)).save(path, lossless=True)
    expected = np.full((80, 80, 3), 255, np.uint8)
    expected[20:60, 20:60] = 0
    files = ImageFiles(tmp_path, as_names([path.name]))
    with make_pool(1) as pool:
        np.testing.assert_array_equal(read_all(files, None, pool)[0].transpose(1, 2, 0), expected)
    thumbnail = pictures_of_files([files], files.names.tolist(), "icons").thumbnail(0, 80)
    assert np.abs(np.asarray(Image.open(BytesIO(thumbnail))).astype(int) - expected)[:, :10].max() < 3


def test_half_transparent_pixels_are_half_white_and_opaque_ones_unchanged() -> None:
    colors = np.random.default_rng(0).integers(0, 256, (9, 9, 4), np.uint8)
    colors[..., 3] = 255
    np.testing.assert_array_equal(np.asarray(to_rgb(Image.fromarray(colors))), colors[..., :3])
    assert to_rgb(Image.new("RGBA", (1, 1), (0, 0, 0, 51))).getpixel((0, 0)) == (204, 204, 204)


def test_small_images_of_one_size_are_read_into_memory_as_they_are(tmp_path: Path) -> None:
    for i in range(5):
        write_picture(tmp_path / f"{i}.png", i, (20, 24))
    pixels, frame = opened(tmp_path)
    assert frame is None
    assert isinstance(pixels, np.ndarray)
    assert pixels.shape == (5, 3, 24, 20)
    np.testing.assert_array_equal(pixels[3], np.array(Image.open(tmp_path / "3.png")).transpose(2, 0, 1))


def test_large_images_stay_files_with_the_usual_frame(large: ImageFiles) -> None:
    inputs, frame = opened(large.root)
    assert frame == ResizeCrop(224, 256)
    assert isinstance(inputs, ImageFiles)
    assert inputs.shape == (4, 3, 224, 224)


@pytest.mark.parametrize(
    ("options", "frame"),
    [
        ({"image_size": 32}, ResizeCrop(32, 32)),
        ({"image_size": 32, "image_resize": 40}, ResizeCrop(32, 40)),
        ({"image_size": 299}, ResizeCrop(299, 342)),
        ({"image_size": 299, "image_resize": 320}, ResizeCrop(299, 320)),
    ],
)
def test_a_size_can_be_asked_for(large: ImageFiles, options: dict[str, int], frame: ResizeCrop) -> None:
    inputs, found = opened(large.root, **options)
    assert found == frame
    assert isinstance(inputs, np.ndarray) == (frame.size <= 64)
    assert inputs.shape == (4, 3, frame.size, frame.size)


def test_images_that_are_read_at_once_show_what_the_others_show(large: ImageFiles) -> None:
    pixels, _ = opened(large.root, image_size=32, image_resize=40)
    assert isinstance(pixels, np.ndarray)
    by_batch = bytes_of(FileSource(framed(large), IMAGENET).fetch(torch.arange(4)))
    torch.testing.assert_close(torch.from_numpy(pixels).float(), by_batch, atol=1e-3, rtol=0)


def test_a_scaled_side_smaller_than_what_is_cut_out_is_refused(large: ImageFiles) -> None:
    with pytest.raises(ConfigError, match=r"data\.image_resize = 200: must be at least .* 224"):
        opened(large.root, image_resize=200)


def test_small_images_of_several_sizes_are_refused_and_the_remedy_works(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", 0, (20, 24))
    write_picture(tmp_path / "b.png", 1, (21, 24))
    message = r"b\.png: 21x24 pixels, .*a\.png has 20x24; to resize all of them: --set data\.image_size=20"
    with pytest.raises(InputError, match=message):
        opened(tmp_path)
    assert opened(tmp_path, image_size=20)[0].shape == (2, 3, 20, 20)


def break_files(root: Path) -> dict[str, str]:
    """Add broken images to a folder; return what is to be said of each."""
    content = write_picture(root / "x.jpg", 0, (300, 200)).read_bytes()
    (root / "cut.jpg").write_bytes(content[: len(content) // 2])
    (root / "empty.jpg").write_bytes(b"")
    (root / "words.png").write_text("no picture")
    (root / "header.png").write_bytes(write_picture(root / "y.png", 1, (300, 200)).read_bytes()[:500])
    (root / "folder.jpg").symlink_to(root)
    return {
        "cut.jpg": "truncated",
        "empty.jpg": "not an image",
        "folder.jpg": "Is a directory",
        "header.png": "truncated",
        "words.png": "not an image",
    }


def test_broken_images_are_left_out_and_named_where_that_is_wanted(tmp_path: Path) -> None:
    expected = break_files(tmp_path)
    names = as_names(sorted(path.name for path in tmp_path.iterdir()))
    train = Split(ImageFiles(tmp_path, names), None, ids=names)
    sets, _, skipped = open_sets({"train": train}, ImageOptions(skip_broken=True, max_broken=1.0))
    assert [image.id for image in skipped] == list(expected)
    for image in skipped:
        assert expected[image.id] in image.reason
        assert image.part == "train"
    assert sets["train"].ids is not None
    assert sets["train"].ids.tolist() == ["x.jpg", "y.png"]
    assert len(sets["train"].inputs) == 2


@pytest.mark.parametrize("name", ["cut.jpg", "empty.jpg", "words.png", "header.png", "folder.jpg", "missing.jpg"])
def test_a_broken_image_stops_the_batch_that_needs_it_with_its_path(tmp_path: Path, name: str) -> None:
    reason = (break_files(tmp_path) | {"missing.jpg": "No such file"})[name]
    files = framed(ImageFiles(tmp_path, as_names(["x.jpg", name])))
    with pytest.raises(InputError, match=rf"{tmp_path}/{name}: .*{reason}.*--skip-broken") as error:
        FileSource(files, IMAGENET).fetch(torch.tensor([0, 1]))
    assert "\n" not in str(error.value)


def test_where_no_image_can_be_read_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"'train': 1 of its 1 images cannot be read, the first: .*not an image"):
        opened(tmp_path, skip_broken=True)


def test_progress_is_told_for_every_image(tmp_path: Path) -> None:
    for i in range(3):
        write_picture(tmp_path / f"{i}.png", i, (20, 20))
    told = []

    def track(items: Any, title: str, total: int) -> Any:
        for item in items:
            told.append((title, total))
            yield item

    files = ImageFiles(tmp_path, as_names(find_files(tmp_path, IMAGES)))
    open_sets({"train": Split(files, None)}, ImageOptions(skip_broken=True), track)
    assert told == [("checking images", 3)] * 3 + [("reading images", 3)] * 3


def test_boxes_of_no_images_are_none() -> None:
    assert squares(sizes_of([]), 1.0).shape == (0, 4)


# EXIF


def quadrants(path: Path, orientation: int | None, size: tuple[int, int] = (160, 96)) -> Path:
    """Write a picture of four colors so that it stands upright under ``orientation``; None writes it as it is."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (255, 0, 0)
    pixels[: height // 2, width // 2 :] = (0, 255, 0)
    pixels[height // 2 :, : width // 2] = (0, 0, 255)
    image = Image.fromarray(pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    if orientation is None:
        image.save(path)
        return path
    undone = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    notes = Image.Exif()
    notes[0x0112] = orientation
    (image if undone is None else image.transpose(undone)).save(path, exif=notes)
    return path


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_network_sees_an_image_upright(tmp_path: Path, orientation: int, kind: str) -> None:
    quadrants(tmp_path / f"turned.{kind}", orientation)
    quadrants(tmp_path / "upright.png", None)
    files = ImageFiles(tmp_path, as_names([f"turned.{kind}", "upright.png"]))
    with make_pool(1) as pool:
        images = open_images(files, [0, 1], pool)
        assert sizes_of(images).tolist() == [[96, 96], [160, 160]]
        for box in ([0.0, 0.0, 96.0, 160.0], [10.0, 30.0, 64.0, 40.0], [40.0, 70.0, 56.0, 90.0]):
            images = open_images(files, [0, 1], pool)
            turned, upright = cut_images(
                files, [0, 1], images, torch.tensor([box, box]), ResizeCrop(16, 16), pool
            ).float()
            assert (turned - upright).abs().mean() < 12, box  # jpg and webp blur the edges


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_small_images_are_read_upright(tmp_path: Path, orientation: int) -> None:
    quadrants(tmp_path / "a" / "turned.png", orientation, (32, 16))
    quadrants(tmp_path / "a" / "upright.png", None, (32, 16))
    turned, upright = np.asarray(opened(tmp_path / "a")[0])
    assert np.array_equal(turned, upright)
    quadrants(tmp_path / "b" / "flat.png", None, (16, 32))
    quadrants(tmp_path / "b" / "turned.png", 6, (32, 16))
    with pytest.raises(InputError, match=r"turned\.png: 32x16 pixels, .*flat\.png has 16x32"):
        opened(tmp_path / "b")


def test_a_large_jpeg_that_is_turned_is_decoded_at_a_fraction_of_its_size(tmp_path: Path) -> None:
    quadrants(tmp_path / "turned.jpg", 6, (1600, 960))
    files = ImageFiles(tmp_path, as_names(["turned.jpg"]))
    with make_pool(1) as pool:
        (image,) = open_images(files, [0], pool)
        pixels = cut_images(files, [0], [image], torch.tensor([[0.0, 0.0, 960.0, 1600.0]]), ResizeCrop(100, 100), pool)
    assert image.size == (120, 200)
    assert pixels[0, :, 20, 20].tolist() == pytest.approx([255, 0, 0], abs=6)
    assert pixels[0, :, 20, 80].tolist() == pytest.approx([0, 255, 0], abs=6)
    assert pixels[0, :, 80, 20].tolist() == pytest.approx([0, 0, 255], abs=6)


@pytest.mark.parametrize("notes", [b"Exif\x00\x00garbage", b"Exif\x00\x00"])
def test_broken_notes_do_not_make_an_image_broken(tmp_path: Path, notes: bytes) -> None:
    write_picture(tmp_path / "a.jpg", 0, (90, 70), exif=notes)
    files = ImageFiles(tmp_path, as_names(["a.jpg"]))
    with make_pool(1) as pool:
        assert sizes_of(open_images(files, [0], pool)).tolist() == [[70], [90]]


# Links


def test_a_link_that_leads_in_a_circle_is_not_followed(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/deep/2.png"):
        write_picture(tmp_path / name, 0, (20, 20))
    (tmp_path / "a" / "loop").symlink_to(".")
    (tmp_path / "a" / "deep" / "up").symlink_to("..")
    assert find_files(tmp_path / "a", IMAGES) == ["1.png", "deep/2.png"]


def test_a_link_to_a_folder_elsewhere_is_followed_and_one_to_a_folder_of_the_same_tree_is_not(tmp_path: Path) -> None:
    for name in ("elsewhere/x/1.png", "data/z/2.png"):
        write_picture(tmp_path / name, 0, (20, 20))
    (tmp_path / "data" / "far").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "again").symlink_to("far")
    (tmp_path / "data" / "a").symlink_to("z")
    assert find_files(tmp_path / "data", IMAGES) == ["again/x/1.png", "z/2.png"]
    (tmp_path / "link").symlink_to("data")
    assert find_files(tmp_path / "link", IMAGES) == ["again/x/1.png", "z/2.png"]


def test_sixteen_bits_are_scaled_and_thirty_two_refused(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        shown = np.asarray(to_rgb(image))
    np.testing.assert_array_equal(shown[..., 0], ramp >> 8)
    Image.fromarray(ramp.astype(np.float32)).save(tmp_path / "b.tif")
    with Image.open(tmp_path / "b.tif") as image, pytest.raises(ValueError, match="32 bits; convert it to 8 or 16"):
        to_rgb(image)
