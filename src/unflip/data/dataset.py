"""Dataset: everything a run needs of its data, with the truth kept apart from the training labels."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from unflip.data.encoding import Encoding
from unflip.data.images.files import Frame, Skipped
from unflip.data.labelled import EvaluationSet
from unflip.data.sources import Source, Standardisation


@dataclass(frozen=True)
class Dataset:
    """Training and validation examples in one source, in the data's order, and the test sets."""

    name: str
    source: Source
    given: Tensor
    """Labels as they came (n,), including those of the validation examples."""
    reviewed: Tensor | None
    """The labels that people decided (n,), -1 for all others; None if they decided none."""
    removed: Tensor
    """Which examples people removed (n,): they neither train nor validate."""
    is_val: Tensor
    """Which examples validate (n,)."""
    clean: Tensor | None
    """The true labels (n,), where they are known. For evaluation only."""
    tests: dict[str, EvaluationSet]
    num_classes: int
    class_names: list[str] | None
    ids: tuple[str, ...] | None
    pictures_path: str | None
    """Where people find pictures of the examples: the data itself, or the images that features were computed from."""
    encoding: Encoding | None
    """How the examples became rows of features, where that is known."""
    standardisation: Standardisation | None
    frame: Frame | None
    """What the network sees of an image file; None where images are used in their own size."""
    skipped: tuple[Skipped, ...]
    """Broken images, which were left out."""
    groups: Tensor | None
    """The group of each example (n,): examples of one group are nearly the same. None if all differ."""
    clean_val: bool
    """Whether the labels of the validation examples are known to be right."""
    noise_record: dict[str, Any] | None
    """How noise was added, if it was."""

    @property
    def trains(self) -> Tensor:
        """Which examples train (n,)."""
        return ~(self.is_val | self.removed)

    def splits(self) -> list[str]:
        """Return ``train``, ``val`` or ``removed`` for every example."""
        kinds = np.where(self.is_val.cpu().numpy(), "val", "train")
        return np.where(self.removed.cpu().numpy(), "removed", kinds).tolist()  # type: ignore[no-any-return]
