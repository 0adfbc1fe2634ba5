"""Text folders: .txt files, one folder per class, either in ``train``, ``val`` and ``test``, or all for training."""

import os
from pathlib import Path

import numpy as np

from unflip.data.cells import TEXT, Cells
from unflip.data.files.class_folders import FileKind, find_parts, is_class, list_part
from unflip.data.files.columns import not_utf8
from unflip.data.images.files import as_names
from unflip.data.loader import FOR_ROWS, Loader
from unflip.data.options import DataOptions
from unflip.data.raw import LabelledSet, RawData
from unflip.errors import InputError
from unflip.options import Options

_TEXTS = FileKind("texts", (".txt",))


class TextFolder(Loader):
    """Texts that are not in class folders have no labels: for prediction, or for use with ``--labels``."""

    general = True
    uses = FOR_ROWS | {"text_encoder"}

    def recognises(self, path: Path) -> bool:
        """Whether the first file in a class folder of ``path``, or in ``path`` without any, is a text."""
        if not path.is_dir():
            return False
        folders = sorted(entry for entry in path.iterdir() if is_class(entry))
        if not folders:
            names = [entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith(".")]
            return bool(names) and all(_TEXTS.fits(name) for name in names)
        first = next((name for _, _, files in os.walk(folders[0]) for name in sorted(files) if name[0] != "."), "")
        return _TEXTS.fits(first)

    def load(self, path: Path, options: DataOptions, own: Options) -> RawData:
        """Read the texts, in the order of their names."""
        parts = find_parts(path)
        sets = {part: _read(path, folder) for part, folder in parts.items()} or {"train": _read(path, "")}
        train = sets.pop("train")
        return RawData(
            train=train,
            val=sets.pop("val", None),
            tests=sets,
            class_names=None if train.labels is None else tuple(dict.fromkeys(train.labels.tolist())),
            unlabelled="texts but no class folders in it",
        )


def _read(root: Path, part: str) -> LabelledSet:
    import pyarrow as pa

    names, labels = list_part(root, part, _TEXTS)
    texts = pa.chunked_array([pa.array([_text(root / name) for name in names], pa.large_string())])
    return LabelledSet(
        Cells(pa.table({TEXT: texts})), None if labels is None else np.array(labels, np.str_), ids=as_names(names)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {not_utf8(path, error)}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


text_folder = TextFolder()
