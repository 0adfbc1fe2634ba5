"""predict: class probabilities of new examples by a finished run's model."""

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from unflip.api.apply import memory_for
from unflip.data.arrays import Array
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Inputs
from unflip.data.files import OtherSizeError, Skipped
from unflip.data.images import open_sets
from unflip.data.labeling import make_source
from unflip.data.loaders import check_used, load_raw
from unflip.data.memory import written
from unflip.data.options import DataOptions
from unflip.data.sources import check_finite
from unflip.encoders.image import ImageEncoder, image_options
from unflip.encoders.table import TableEncoder, columns_of
from unflip.engine.distributed import Distributed
from unflip.engine.inference import predict_probs
from unflip.errors import ConfigError, InputError, UnflipWarning, unknown
from unflip.progress import Track, untracked
from unflip.runs import layout
from unflip.runs.folder import Run, as_run
from unflip.runs.model_file import Model

_MAX_COLUMNS = 10  # column names in an error


@dataclass(frozen=True)
class Prediction:
    """Class probabilities (n, k) of n examples, with the ids of the examples and the class names."""

    ids: list[str] = field(repr=False)
    probs: Tensor = field(repr=False)
    class_names: list[str]
    skipped: tuple[Skipped, ...] = ()
    """Images that could not be read and have no prediction."""
    remarks: tuple[str, ...] = ()
    """Messages about unknown categories and missing values in the new examples."""
    given: Array | None = field(default=None, repr=False)
    """The labels (n,) in the data, if it has any."""

    @property
    def labels(self) -> Tensor:
        """The most probable class of each example (n,)."""
        return self.probs.argmax(1)

    def table(self) -> pa.Table:
        """Return a table with the columns ``id``, ``label``, ``probability`` and, for each class, ``p_CLASS``."""
        best, labels = self.probs.max(1)
        columns = {
            "id": pa.array(self.ids),
            "label": pa.array(np.asarray(self.class_names)[labels.numpy()]),
            "probability": pa.array(best.numpy()),
        }
        probs = zip(self.class_names, self.probs.T, strict=True)
        return pa.table(columns | {f"p_{name}": pa.array(p.numpy()) for name, p in probs})


def predict(
    run: str | Path | Run,
    data: Any,
    *,
    part: str | None = None,
    skip_broken: bool = False,
    weights: str | Path | None = None,
    device: str = "auto",
    track: Track = untracked,
) -> Prediction:
    """Predict classes with the model of a run, which encodes the data as in training.

    Args:
        run: a finished run, or its folder.
        data: new examples of the same kind as in training, such as a path, a data frame, an array or images; labels are
            not needed. Images are resized as in training, and the columns of tables are matched by name.
        part: the split to predict; by default the first test set, or ``train`` if there is none.
        skip_broken: skip images that cannot be read.
        weights: the weights file of the backbone, if it has moved.
        device: ``auto`` (a GPU if available), ``cpu``, ``cuda`` or ``mps``.
        track: progress callback.

    Returns:
        The probabilities (n, k), with ids and class names.
    """
    run = as_run(run)
    if (memory := memory_for(run, data)) is not None:
        examples = memory._replace(labeled=False)
        with TemporaryDirectory() as folder, written(examples, Path(folder) / layout.DATA) as path:
            return predict(run, path, part=part, skip_broken=skip_broken, weights=weights, device=device, track=track)
    new = read_new(run, data, skip_broken=skip_broken, weights=weights)
    sets = {**new.raw.tests, **new.raw.parts()}
    nonempty = [name for name, content in sets.items() if len(content.inputs)]
    part = part or next(iter(nonempty or sets))
    if part not in sets:
        raise InputError(f"{new.what}: {unknown('part', part, sets)}")
    if part not in nonempty:
        return Prediction([], torch.empty(0, new.model.num_classes), new.model.names)
    return predict_part(new, part, device=device, track=track)


class NewData(NamedTuple):
    """New examples for a model."""

    model: Model
    raw: Dataset
    options: DataOptions

    @property
    def what(self) -> str:
        """The name of the data in errors."""
        return f"data {self.options.path}"


def read_new(
    run: str | Path | Run,
    data: str | Path,
    *,
    label_column: str | None = None,
    skip_broken: bool = False,
    weights: str | Path | None = None,
) -> NewData:
    """Read new examples as a run's training examples were read; the arguments are those of :func:`predict`."""
    model = as_run(run).model
    if weights is not None:
        model = _with_weights(model, weights)
    options = _data_options(model, str(data), skip_broken=skip_broken)
    check_used(options, ["skip_broken"] if skip_broken else [])
    options = options.model_copy(update={"label_column": label_column})
    return NewData(model, load_raw(options), options)


def predict_part(new: NewData, part: str, *, device: str = "auto", track: Track = untracked) -> Prediction:
    """Predict the classes of one of the data's sets."""
    model, raw, options = new.model, new.raw, new.options
    what = f"{new.what}, '{part}'"
    try:
        opened, _, skipped = open_sets({part: raw.parts()[part]}, options)
    except OtherSizeError as error:
        raise InputError(f"{what}: images of several sizes; the model takes {model.input_shape}") from error
    processes = Distributed(device)
    inputs, remarks = _encode(opened[part].inputs, raw, model, new.what, processes.device, track)
    if inputs.shape[1:] != model.input_shape:
        raise InputError(f"{what}: examples of shape {inputs.shape[1:]}; the model takes {model.input_shape}")
    if isinstance(inputs, np.ndarray):
        check_finite(inputs, what)
    raw = replace(raw, normalization=None) if model.encoding else raw  # images are rows of features now
    source = make_source(raw, inputs, model.standardization, options).to(processes.device)
    probs = predict_probs(model.build().to(processes.device), source, processes).cpu()
    names = opened[part].names or map(str, range(len(probs)))
    return Prediction([*names], torch.as_tensor(probs), model.names, skipped, remarks, opened[part].labels)


def _data_options(model: Model, data: str, *, skip_broken: bool) -> DataOptions:
    """Return options that read new data as the training data was read."""
    frame, encoding, shape = model.frame, model.encoding, model.input_shape
    options = DataOptions(path=data, skip_broken=skip_broken, max_broken=1.0, augment=False)
    if frame is not None:
        size = {"image_size": frame.size, "image_resize": frame.resize, "resample": frame.resample}
        return options.model_copy(update=size)
    if encoding is not None and encoding.encoder == "images":
        return image_options(encoding, options)
    if encoding is None and len(shape) == 3 and shape[1] == shape[2]:
        return options.model_copy(update={"image_size": shape[-1], "image_resize": shape[-1]})
    return options.model_copy(update={"columns": encoding and columns_of(encoding)})


def _with_weights(model: Model, weights: str | Path) -> Model:
    encoding = model.encoding
    if encoding is None or encoding.encoder != "images":
        raise ConfigError(f"--weights {weights} is not used: this model has no backbone")
    return replace(model, encoding=replace(encoding, settings={**encoding.settings, "weights_file": str(weights)}))


def _encode(
    inputs: Inputs, raw: Dataset, model: Model, what: str, device: torch.device, track: Track
) -> tuple[Inputs, tuple[str, ...]]:
    """Return new examples as the model takes them, and remarks about them.

    Raises InputError if they are of another kind than the training examples, or encoded differently.
    """
    encoding = model.encoding
    encoder = None if encoding is None else encoding.encoder
    if raw.holds_images:
        if encoding is not None and encoder == "images":
            return ImageEncoder.restore(encoding).to(device).encode(inputs, track).features, ()
        if len(model.input_shape) == 1:
            raise InputError(f"{what}: images; the model takes {_takes(model)}")
        return inputs, ()
    if isinstance(inputs, Table):
        if encoding is None and len(model.input_shape) == 1:
            return inputs.numbers(what), ()
        if encoding is None or encoder != "table":
            raise InputError(f"{what}: a table; the model takes {_takes(model)}")
        try:
            encoded = TableEncoder.restore(encoding).encode(inputs)
        except InputError as error:
            raise InputError(f"{what}: {error}") from error
        return encoded.features, encoded.remarks
    if encoding is not None and encoder == "table" and raw.encoding is None:
        assert isinstance(inputs, np.ndarray)
        cells = Table.of_array(np.asarray(inputs), columns_of(encoding), what)
        return TableEncoder.restore(encoding).encode(cells).features, ()
    _check_encoding(encoding, raw, what)
    return inputs, ()


def _takes(model: Model) -> str:
    """Return what a model takes, in a few words."""
    encoding, shape = model.encoding, model.input_shape
    if encoding is None:
        return f"{shape[0]} features, as it was trained on" if len(shape) == 1 else f"images of shape {shape}"
    if encoding.encoder == "images":
        return "images, or their features"
    names = columns_of(encoding)
    more = [] if len(names) <= _MAX_COLUMNS else ["..."]
    return f"a table with the columns {', '.join([*names[:_MAX_COLUMNS], *more])}"


def _check_encoding(trained: Encoding | None, raw: Dataset, what: str) -> None:
    """Raise InputError if features were computed differently from those that the model was trained on."""
    if trained is None and raw.encoding is None:
        return
    if trained is None or raw.encoding is None:
        which = f"the features in {what}" if raw.encoding is None else "the model's features"
        message = f"unknown encoder of {which}; predictions are only valid if both were computed in the same way"
        warnings.warn(message, UnflipWarning, stacklevel=3)
    elif differences := trained.differences(raw.encoding):
        raise InputError(f"{what}: features computed differently from the model's: {', '.join(differences)}")
