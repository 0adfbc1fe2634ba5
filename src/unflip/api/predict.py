"""predict: what a finished run's model says of new inputs."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from unflip.data.arrays import Shards
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Encoding, Inputs
from unflip.data.decoding import OtherSizeError
from unflip.data.files import Skipped
from unflip.data.labeling import make_source, open_sets
from unflip.data.loaders import check_used, load_raw
from unflip.data.options import DataOptions
from unflip.data.sources import check_finite
from unflip.encoders.image import ImageEncoder, embed_command, image_options
from unflip.encoders.table import TableEncoder, columns_of
from unflip.engine.distributed import Distributed
from unflip.engine.inference import predict_probs
from unflip.errors import ConfigError, InputError, UnflipWarning, unknown
from unflip.progress import Track, untracked
from unflip.runs.folder import Run
from unflip.runs.model_file import Model

_LISTED = 10  # columns that an error lists


@dataclass(frozen=True)
class Prediction:
    """Class probabilities (n, k) of n examples, and what examples and classes are called."""

    ids: list[str]
    probs: Tensor
    class_names: list[str]
    skipped: tuple[Skipped, ...] = ()
    """Broken images, of which there is no prediction."""
    remarks: tuple[str, ...] = ()
    """What the examples held that training examples did not: unknown categories, empty cells."""

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
    weights: str | Path | None = None,
    device: str = "auto",
    track: Track = untracked,
) -> Prediction:
    """Apply a run's model to a data set, which is encoded as the training examples were.

    Args:
        run: a finished run, or its folder.
        data: what training takes; labels are not needed. Images are brought to the size that the model was trained
            with, columns of a table are found by their names.
        part: one of the data's sets; by default the first test set, else train.
        skip_broken: leave out images that cannot be read.
        weights: the weights of the backbone, if they came from a file that lies elsewhere now.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``mps``.
        track: is told how many images are encoded.
    """
    folder = run if isinstance(run, Run) else Run(Path(run))
    model = folder.model
    options = _data_options(model, str(data), skip_broken=skip_broken)
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
    try:
        opened, _, skipped = open_sets({part: sets[part]}, options)
    except OtherSizeError as error:
        raise InputError(
            f"data {data}, '{part}': images of several sizes, the model takes {model.input_shape}"
        ) from error
    processes = Distributed(device)
    ids = opened[part].ids
    inputs, remarks = _encode(opened[part].inputs, raw, model, f"data {data}", weights, processes.device, track)
    if inputs.shape[1:] != model.input_shape:
        raise InputError(
            f"data {data}, '{part}': examples of shape {inputs.shape[1:]}, the model takes {model.input_shape}"
        )
    if isinstance(inputs, np.ndarray | Shards):
        check_finite(inputs, f"data {data}, '{part}'")
    raw = replace(raw, normalization=None) if model.encoding else raw  # what was images is rows of features now
    source = make_source(raw, inputs, model.standardization, options).to(processes.device)
    probs = predict_probs(model.build().to(processes.device), source, processes).cpu()
    named = map(str, range(len(probs)) if ids is None else ids.tolist())
    return Prediction(list(named), torch.as_tensor(probs), names, skipped, remarks)


def _data_options(model: Model, data: str, *, skip_broken: bool) -> DataOptions:
    """Return options that read new data as the training data was read."""
    frame, encoding = model.frame, model.encoding
    options = DataOptions(path=data, skip_broken=skip_broken, max_broken=1.0, augment=False)
    if frame is not None:
        return options.model_copy(
            update={"image_size": frame.size, "image_resize": frame.resize, "resample": frame.resample}
        )
    if encoding is not None and encoding.encoder == "images":
        return image_options(encoding, options)
    if encoding is None and _takes_squares(model):
        side = model.input_shape[-1]
        return options.model_copy(update={"image_size": side, "image_resize": side})
    return options.model_copy(update={"columns": encoding and columns_of(encoding)})


def _takes_squares(model: Model) -> bool:
    return len(model.input_shape) == 3 and model.input_shape[1] == model.input_shape[2]


def _encode(
    inputs: Inputs,
    raw: Dataset,
    model: Model,
    what: str,
    weights: str | Path | None,
    device: torch.device,
    track: Track,
) -> tuple[Inputs, tuple[str, ...]]:
    """Return new examples as the model takes them, and what is worth saying of them.

    Those that were made in another way than in training are refused.
    """
    encoding = model.encoding
    if weights is not None and (encoding is None or encoding.encoder != "images"):
        raise ConfigError(f"--weights {weights}: this model does not see images through a backbone; leave it out")
    if raw.holds_images:
        if encoding is not None and encoding.encoder == "images":
            if weights is not None:
                encoding = replace(encoding, settings={**encoding.settings, "weights_file": str(weights)})
            return ImageEncoder.restore(encoding).to(device).encode(inputs, track).features, ()
        if len(model.input_shape) == 1:
            raise InputError(f"{what}: images, the model takes {_takes(model)}")
        return inputs, ()
    if isinstance(inputs, Table):
        if encoding is None or encoding.encoder != "table":
            if encoding is not None or len(model.input_shape) > 1:
                raise InputError(f"{what}: a table, the model takes {_takes(model)}")
            return inputs.numbers(what), ()
        try:
            encoded = TableEncoder.restore(encoding).encode(inputs)
            return encoded.features, encoded.remarks
        except InputError as error:
            raise InputError(f"{what}: {error}") from error
    if encoding is not None and encoding.encoder == "table" and raw.encoding is None:
        assert isinstance(inputs, np.ndarray | Shards)
        cells = Table.of_array(np.asarray(inputs), columns_of(encoding), what)
        return TableEncoder.restore(encoding).encode(cells).features, ()
    _check_encoding(encoding, raw, what)
    return inputs, ()


def _takes(model: Model) -> str:
    encoding = model.encoding
    if encoding is None:
        shape = model.input_shape
        features = f"{shape[0]} features, made as those that it learned from (of images: unflip embed)"
        return features if len(shape) == 1 else f"images of shape {shape}"
    if encoding.encoder == "images":
        return f"images, or their features ({embed_command(encoding, 'IMAGES')})"
    columns = columns_of(encoding)
    more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
    return f"a table with the columns {', '.join(columns[:_LISTED])}{more}"


def _check_encoding(trained: Encoding | None, raw: Dataset, what: str) -> None:
    """Refuse features that were made in another way than those that the model learned from."""
    if trained is None and raw.encoding is None:
        return
    if trained is None or raw.encoding is None:
        which = f"the features in {what}" if raw.encoding is None else "the model's features"
        warnings.warn(
            f"it is not known how {which} were made; predictions are right only if they were made like the others",
            UnflipWarning,
            stacklevel=3,
        )
    elif found := trained.differences(raw.encoding):
        again = raw.images_path or "IMAGES"
        hint = f"; make them like those: {embed_command(trained, again)}" if trained.encoder == "images" else ""
        raise InputError(f"{what}: features made in another way than the model's: {', '.join(found)}{hint}")
