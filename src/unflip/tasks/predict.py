"""predict: what a finished run's model says of new inputs."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from unflip.compute.passes import predict_probs
from unflip.compute.processes import Processes
from unflip.data.images.files import ImageFiles, Skipped
from unflip.data.labelled import make_source, open_sets
from unflip.data.loader import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.data.raw import RawData
from unflip.data.sources import check_finite
from unflip.data.stamp import Stamp
from unflip.errors import InputError, UnflipWarning, unknown
from unflip.runs.folder import Run


@dataclass(frozen=True)
class Prediction:
    """Class probabilities (n, k) of n examples, and what examples and classes are called."""

    ids: list[str]
    probs: Tensor
    class_names: list[str]
    skipped: tuple[Skipped, ...] = ()
    """Broken images, of which there is no prediction."""

    @property
    def labels(self) -> Tensor:
        """The most probable class of each example."""
        return self.probs.argmax(1)

    def table(self) -> pa.Table:
        """Return the columns ``id, label, probability`` and one probability per class."""
        best, labels = self.probs.max(1)
        columns = {
            "id": pa.array(self.ids),
            "label": pa.array(np.asarray(self.class_names)[labels.numpy()]),
            "probability": pa.array(best.numpy()),
        }
        return pa.table(
            columns | {f"p_{name}": pa.array(p.numpy()) for name, p in zip(self.class_names, self.probs.T, strict=True)}
        )


def predict(
    run: str | Path | Run,
    data: str | Path,
    *,
    part: str | None = None,
    skip_broken: bool = False,
    device: str = "auto",
) -> Prediction:
    """Apply a run's model to a data set.

    Args:
        run: a finished run, or its folder.
        data: what training takes; labels are not needed. Images are brought to the size that the model was trained
            with.
        part: one of the data's sets; by default the first test set, else train.
        skip_broken: leave out images that cannot be read.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``mps``.
    """
    folder = run if isinstance(run, Run) else Run(Path(run))
    model = folder.model
    frame = model.frame
    seen = {"image_size": frame.size, "image_resize": frame.resize, "resample": frame.resample} if frame else {}
    columns = None if model.columns is None else tuple(model.columns)
    options = DataOptions(path=str(data), skip_broken=skip_broken, most_broken=1.0, columns=columns, **seen)
    check_used(options, ["skip_broken"] if skip_broken else [])
    raw = load_raw(options)
    sets = {**raw.tests, **raw.parts()}
    filled = {name: content for name, content in sets.items() if len(content.inputs)}
    part = part or next(iter(filled or sets))
    if part not in sets:
        raise InputError(f"data {data}: {unknown('part', part, sets)}")
    names = list(model.class_names) if model.class_names else [str(i) for i in range(model.num_classes)]
    if part not in filled:
        return Prediction([], torch.empty(0, model.num_classes), names)
    if raw.holds_images and len(model.input_shape) == 1:
        command = model.stamp.command(str(data)) if model.stamp else f"unflip embed {data} --out new.npz"
        raise InputError(
            f"data {data}: images, the model takes {model.input_shape[0]} features; make them first: {command}"
        )
    _check_stamp(model.stamp, raw, str(data))
    opened, _, skipped = open_sets({part: sets[part]}, options)
    inputs, ids = opened[part].inputs, opened[part].ids
    if inputs.shape[1:] != model.input_shape:
        raise InputError(
            f"data {data}, '{part}': examples of shape {inputs.shape[1:]}, the model takes {model.input_shape}"
        )
    if not isinstance(inputs, ImageFiles):
        check_finite(inputs, f"data {data}, '{part}'")
    processes = Processes(device)
    source = make_source(raw, inputs, model.standardisation, options).to(processes.device)
    probs = predict_probs(model.build().to(processes.device), source, processes).cpu()
    named = map(str, range(len(probs)) if ids is None else ids.tolist())
    return Prediction(list(named), torch.as_tensor(probs), names, skipped)


def _check_stamp(trained: Stamp | None, raw: RawData, data: str) -> None:
    """Refuse features that were made in another way than those that the model learnt from."""
    if trained is None and raw.stamp is None:
        return
    if trained is None or raw.stamp is None:
        which = f"the features in {data}" if raw.stamp is None else "the model's features"
        warnings.warn(
            f"it is not known how {which} were made; predictions are right only if they were made like the others",
            UnflipWarning,
            stacklevel=3,
        )
    elif found := trained.differences(raw.stamp):
        own = " with the same --weights" if raw.stamp.weights != trained.weights else ""
        raise InputError(
            f"data {data}: features made in another way than the model's: {', '.join(found)}; make them like those"
            f"{own}: {trained.command(raw.images_path or 'IMAGES')}"
        )
