"""Image folders: one folder per class, either in ``train``, ``val`` and ``test``, or all for training."""

from pathlib import Path

import numpy as np

from unflip.data.files.class_folders import find_parts, is_class, list_part
from unflip.data.images.files import IMAGES, ImageFiles, as_names
from unflip.data.images.sources import IMAGENET
from unflip.data.loader import FOR_IMAGE_FILES, Loader
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.options import Options


class ImageFolder(Loader):
    """Images that are not in class folders have no labels: for prediction, or for use with ``--labels``."""

    general = True
    uses = FOR_IMAGE_FILES

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is a folder with folders or images in it, and no arrays; text folders are tried first."""
        if not path.is_dir():
            return False
        entries = list(path.iterdir())
        return any(is_class(entry) or IMAGES.fits(entry.name) for entry in entries) and not any(
            entry.suffix == ".npy" for entry in entries
        )

    def load(self, path: Path, options: DataOptions, own: Options) -> RawData:
        """List the images, in the order of their names."""
        parts = find_parts(path)
        sets = {part: _list(path, folder) for part, folder in parts.items()} or {"train": _list(path, "")}
        train = sets.pop("train")
        return RawData(
            train=train,
            val=sets.pop("val", None),
            tests=sets,
            class_names=None if train.labels is None else tuple(dict.fromkeys(train.labels.tolist())),
            normalisation=IMAGENET,
            unlabelled="images but no class folders in it",
        )


def _list(root: Path, part: str) -> LabelledSet:
    files, labels = list_part(root, part, IMAGES)
    names = as_names(files)
    return LabelledSet(ImageFiles(root, names), None if labels is None else np.array(labels, np.str_), ids=names)


image_folder = ImageFolder()
