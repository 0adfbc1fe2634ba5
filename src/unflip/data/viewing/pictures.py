"""Pictures of examples for people to look at; only files that the data set lists are ever opened."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from unflip.data.cells import Cells
from unflip.data.files.arrays import Array
from unflip.data.images.decoding import reason_of, to_upright_rgb
from unflip.data.images.files import ImageFiles
from unflip.data.labelled import choose_labels
from unflip.data.loader import find_loader, load_raw
from unflip.data.options import DataOptions
from unflip.data.raw import Inputs, RawData
from unflip.errors import InputError
from unflip.options import Options

if TYPE_CHECKING:
    from PIL.Image import Image

_QUALITY = 85  # of JPEG


class Pictures:
    """The pictures of a run's examples, by row of its labels; each is read on demand."""

    media_type: str
    """Of every thumbnail: ``image/jpeg`` for files, ``image/png`` for arrays."""

    def __init__(self, count: int, media_type: str, read: Callable[[int, int], "Image"]) -> None:
        self._count, self.media_type, self._read = count, media_type, read

    def __len__(self) -> int:
        return self._count

    def thumbnail(self, index: int, size: int) -> bytes:
        """Return the picture of an example with sides of at most ``size`` pixels; a smaller one stays as it is."""
        if not 0 <= index < self._count:
            raise InputError(f"picture {index}: there are {self._count}, counted from 0")
        image = self._read(index, size)
        if max(image.size) > size:
            image.thumbnail((size, size))
        content = BytesIO()
        if self.media_type == "image/jpeg":
            image.save(content, "JPEG", quality=_QUALITY)
        else:
            image.save(content, "PNG", optimize=True)
        return content.getvalue()


def open_pictures(
    options: DataOptions, ids: Sequence[str], own: Mapping[str, Options] = MappingProxyType({})
) -> Pictures | None:
    """Find the pictures of a run's examples, called ``ids``, in this order; None for data without pictures.

    Lists are read, images are not. ``own`` holds options of loaders by name.
    """
    try:
        if find_loader(Path(options.path)) == "arrays":
            return None
        raw = load_raw(options, own)
    except InputError as error:
        raise InputError(f"{error}; pictures are read from where the run found its data: has it moved?") from error
    if isinstance(raw.train.inputs, ImageFiles):
        return _of_files([part.inputs for part in (raw.train, raw.val) if part is not None], options, ids)
    return _of_arrays(raw, options, len(ids))


def _of_files(parts: Sequence[Inputs], options: DataOptions, ids: Sequence[str]) -> Pictures:
    """Find files by id, the name that the data lists them by, not by position: a run has no rows for broken files."""
    listed = {
        str(name): files.root for files in parts if isinstance(files, ImageFiles) for name in files.names.tolist()
    }
    missing = next((name for name in ids if name not in listed), None)
    if missing is not None:
        raise InputError(f"data {options.path}: no image {missing} in it, which the run had; is it another data set?")

    def read(index: int, size: int) -> "Image":
        from PIL import Image

        path = listed[ids[index]].joinpath(ids[index])
        try:
            with path.open("rb") as file:
                image = Image.open(file)
                image.draft("RGB", (size, size))
                return to_upright_rgb(image)
        except Exception as error:  # image libraries raise all kinds of errors for broken files
            raise InputError(f"{path}: {reason_of(error)}") from error

    return Pictures(len(ids), "image/jpeg", read)


def _of_arrays(raw: RawData, options: DataOptions, count: int) -> Pictures | None:
    as_pixels = _bytes_to_pixels if raw.holds_images else raw.as_pixels
    if as_pixels is None:
        return None
    row_of = example_rows(raw, options, count)

    def read(index: int, size: int) -> "Image":
        from PIL import Image

        return Image.fromarray(as_pixels(row_of(index)))

    return Pictures(count, "image/png", read)


def example_rows(raw: RawData, options: DataOptions, count: int) -> Callable[[int], Any]:
    """Return a function that finds the input of each of a run's ``count`` examples: a row of an array, or of cells."""
    # Only `per_class` needs the labels, which may be in another file.
    train = raw.train[: options.take] if options.per_class is None else choose_labels(raw, options)[0]
    parts = [part.inputs for part in (train, raw.val) if part is not None and not isinstance(part.inputs, ImageFiles)]
    if (found := sum(map(len, parts))) != count:
        raise InputError(f"data {options.path}: {found} examples, the run had {count}; is it another data set?")

    def row_of(index: int) -> Any:
        part, row = (parts[0], index) if index < len(parts[0]) else (parts[1], index - len(parts[0]))
        return part[row : row + 1] if isinstance(part, Cells) else part[row]

    return row_of


def _bytes_to_pixels(image: Array) -> Array:
    """Turn channels (c, h, w) into what Pillow takes: (h, w, 3), or (h, w) where there is one."""
    return np.ascontiguousarray(image.transpose(1, 2, 0).squeeze(2) if len(image) == 1 else image.transpose(1, 2, 0))
