"""Dataset: everything a run needs of its data, the truth apart from the labels that train."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from unflip.data.images.files import Frame, Skipped
from unflip.data.labelled import EvaluationSet
from unflip.data.sources import Source, Standardisation


@dataclass(frozen=True)
class Dataset:
    """Training and validation examples in one source, in the data's order, and the test sets."""

    name: str
    source: Source
    given: Tensor
    """Labels as they came (n,), the validation examples' too."""
    reviewed: Tensor | None
    """The labels that people decided (n,), -1 where they did not; None where they decided none."""
    is_val: Tensor
    """Which examples validate (n,)."""
    clean: Tensor | None
    """The true labels (n,), where they are known. For evaluation only."""
    tests: dict[str, EvaluationSet]
    num_classes: int
    class_names: list[str] | None
    columns: tuple[str, ...] | None
    """Names of the features, where they have any."""
    ids: tuple[str, ...] | None
    images_path: str | None
    """The images that the inputs were computed from, where they are features of images."""
    standardisation: Standardisation | None
    frame: Frame | None
    """What the network sees of an image file; None where images are used in their own size."""
    skipped: tuple[Skipped, ...]
    """Broken images, which were left out."""
    clean_val: bool
    """Whether the labels of the validation examples came as clean ones."""
    noise_record: dict[str, Any] | None
    """How noise was added, if it was."""

    def splits(self) -> list[str]:
        """``train`` or ``val`` for every example."""
        return np.where(self.is_val.cpu().numpy(), "val", "train").tolist()  # type: ignore[no-any-return]
