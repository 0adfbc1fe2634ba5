"""Text files that list images, one per line: ``path`` or ``path label``."""

from pathlib import Path

import numpy as np

from unflip.data.files.arrays import Array
from unflip.data.files.columns import not_utf8
from unflip.errors import InputError


def read_list(path: Path) -> list[str]:
    """Return the lines of a list."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {not_utf8(path, error)}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return [line.strip() for line in lines if line.strip()]


def read_labelled_list(path: Path) -> tuple[list[str], Array]:
    """Return the images of a list and their class numbers."""
    names, labels = [], []
    for row, line in enumerate(read_list(path)):
        name, _, label = line.rpartition(" ")
        if not name or not label.isdecimal():
            raise InputError(f"{path}, row {row}: '{line}' has no label; a line is a path, a space and a class number")
        names.append(name.strip())
        labels.append(int(label))
    return names, np.array(labels, np.int64)
