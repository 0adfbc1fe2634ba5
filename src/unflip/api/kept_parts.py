"""Parts of features that are computed already, kept beside the file until it is whole: a stopped one goes on."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from unflip.data.arrays import Array, Pieces, read_npz, write_npz
from unflip.data.dataset import Split
from unflip.data.decoding import BrokenImageError, make_pool
from unflip.data.files import ImageFiles
from unflip.encoders.image import Embedded
from unflip.errors import RunFolderError
from unflip.files import LOCK, locked, naming_target, remove_partial
from unflip.progress import Track

PART = 1024
"""Images in a part."""
_FILES = "[0-9a-f]" * 16 + "-*-" + "[0-9]" * 9 + ".npz"  # fingerprint, set, first row


@dataclass(frozen=True, eq=False)
class Part:
    """Some images of a set that become features together."""

    set: str
    start: int
    images: Array | ImageFiles
    fingerprint: str
    """Of these images, and of all that is done to them."""

    @property
    def file(self) -> str:
        """What the file of its features is called."""
        return f"{self.fingerprint}-{self.set}-{self.start:09}.npz"

    def __len__(self) -> int:
        return len(self.images)


def cut_into_parts(
    sets: Mapping[str, Split], made: str, workers: int | None, track: Track, *, skip_missing: bool
) -> list[Part]:
    """Cut every set into parts, with fingerprints: files by size and date.

    A file that is missing is refused here, before anything is computed.

    Args:
        sets: images by the name of their set.
        made: all that is done to images, as text.
        workers: threads that look at files.
        track: is told how many parts have been looked at.
        skip_missing: whether missing files are left to be noted later as images that cannot be read.
    """

    def look(place: tuple[str, int]) -> Part:
        name, start = place
        inputs = sets[name].inputs
        assert isinstance(inputs, np.ndarray | ImageFiles)
        images = inputs[start : start + PART]
        digest = blake2b(json.dumps([made, name]).encode(), digest_size=8)
        digest.update(_state(images, skip_missing) if isinstance(images, ImageFiles) else images.tobytes())
        return Part(name, start, images, digest.hexdigest())

    places = [(name, start) for name, part in sets.items() for start in range(0, len(part.inputs), PART)]
    with make_pool(workers) as pool:
        return [*track(pool.map(look, places), "looking at images", len(places))]


def _state(files: ImageFiles, skip_missing: bool) -> bytes:
    lines = []
    for index, name in enumerate(files.names):
        try:
            state = os.stat(os.path.join(files.root, name))  # noqa: PTH116, PTH118  # a third of a Path's time
            lines.append(f"{name}|{state.st_size}|{state.st_mtime_ns}")
        except OSError as error:
            if not skip_missing:
                raise BrokenImageError(files, index, error.strerror or str(error)) from error
            lines.append(f"{name}|missing")
    return "\n".join(lines).encode()


@dataclass(frozen=True)
class KeptParts:
    """The folder of parts of a feature file that is not whole yet."""

    folder: Path
    parts: Sequence[Part]

    @property
    def total(self) -> int:
        """The number of images."""
        return sum(map(len, self.parts))

    def missing(self) -> list[Part]:
        """Return the parts that are still to be computed."""
        there = {path.name for path in self.folder.glob(_FILES)}
        return [part for part in self.parts if part.file not in there]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Claim the folder; it is removed at the end, or if nothing was kept. Errors say what is kept."""
        with naming_target(self.folder):
            self.folder.mkdir(exist_ok=True)
        with locked(self.folder / LOCK, busy="another process is at work on these features; let it end first"):
            try:
                with naming_target(self.folder):
                    remove_partial(self.folder)
                    for stray in {path.name for path in self.folder.glob(_FILES)} - {part.file for part in self.parts}:
                        (self.folder / stray).unlink()  # of other images
                yield
            except RunFolderError as error:
                if kept := self.total - sum(map(len, self.missing())):
                    raise RunFolderError(f"{error}; {self.kept(kept)}") from error
                self._remove()
                raise
            self._remove()

    def kept(self, count: int) -> str:
        """Say that so many images are done and what to do."""
        return f"{count} of {self.total} images are kept in {self.folder}, the same command goes on"

    def write(self, part: Part, embedded: Embedded) -> None:
        """Keep what became of a part."""
        broken = np.array([*embedded.broken.keys()], np.int64)
        reasons = np.array([*embedded.broken.values()], np.str_)
        content = {"features": embedded.features, "digests": embedded.digests, "image_stats": embedded.image_stats}
        write_npz(self.folder / part.file, content | {"broken": broken, "reasons": reasons})

    def broken(self, name: str, missing: Sequence[Part]) -> dict[int, str]:
        """Return the images of a set that could not be read, with the reasons; nothing of parts that are missing."""
        found: dict[int, str] = {}
        for part in self._of(name):
            if part in missing:
                continue
            content = read_npz(self.folder / part.file, only=("broken", "reasons"))
            rows = (content["broken"] + part.start).tolist()
            found |= dict(zip(rows, content["reasons"].tolist(), strict=True))
        return found

    def noted(self, name: str, what: str) -> Array:
        """Return the ``digests`` or ``image_stats`` of all images of a set that could be read."""
        return np.concatenate([self._read(part, what) for part in self._of(name)])

    def features(self, name: str) -> Pieces:
        """Return their features, part by part."""
        sizes = [self._read(part, "features").shape for part in self._of(name)]
        width = max(columns for _, columns in sizes)

        def read() -> Iterator[Array]:
            return (self._read(part, "features") for part in self._of(name))

        return Pieces((sum(rows for rows, _ in sizes), width), np.dtype(np.float16), read)

    def _of(self, name: str) -> list[Part]:
        return [part for part in self.parts if part.set == name]

    def _read(self, part: Part, what: str) -> Array:
        return read_npz(self.folder / part.file, only=(what,))[what]

    def _remove(self) -> None:
        with suppress(OSError):  # somebody keeps files of their own in it
            for file in [*self.folder.glob(_FILES), self.folder / LOCK]:
                file.unlink(missing_ok=True)
            self.folder.rmdir()
