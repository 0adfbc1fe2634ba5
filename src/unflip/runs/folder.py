"""Run: a run folder. Reports, the review page, exports and predictions read runs only through this class."""

import json
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file
from torch import Tensor

from unflip.data.arrays import Array, read_array, write_array
from unflip.data.columns import Rows, Table, as_cell
from unflip.data.dataset import Dataset, Encoding
from unflip.data.files import ImageFiles, Skipped
from unflip.data.images import Pictures, bytes_to_pixels, pictures_of_files
from unflip.data.labeling import choose_labels
from unflip.data.loaders import find_loader, load_raw
from unflip.data.loaders.arrays import read_origin
from unflip.data.memory import InMemory, written
from unflip.data.options import DataOptions
from unflip.encoders.base import restore
from unflip.encoders.table import text_columns
from unflip.errors import ConfigError, InputError, RunFolderError, UnflipWarning
from unflip.files import (
    LOCK,
    OwnedFolder,
    check_format,
    locked,
    matching,
    naming_target,
    reading,
    remove_partial,
    write_tensors,
    write_text,
)
from unflip.methods.base import HALF_MOST
from unflip.progress import is_first_process
from unflip.runs import layout
from unflip.runs.annotators import AnnotatorTables, read_annotators
from unflip.runs.config import RunConfig
from unflip.runs.labels import LABEL_COLUMNS, LabelSummary, read_issues, read_table, write_table
from unflip.runs.model_file import Model, load_model
from unflip.stats.gaussians import ClassGaussians

if TYPE_CHECKING:
    from PIL.Image import Image

FORMAT = 4
"""Version of the run folder; raised when older folders can no longer be read."""
MAX_FEATURES_GB = 2.0
"""Larger features are not stored."""
_ROWS = ("arrays", "table", "texts")  # loaders of data without pictures


class _Result(dict[str, Any]):
    """The content of result.json; a missing key is an error that names the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(json.loads(path.read_text("utf-8")))
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise RunFolderError(f"{self.path}: no '{key}'; the file is damaged")


@dataclass(frozen=True)
class Run:
    """A run folder and its contents."""

    folder: Path

    @property
    def _owner(self) -> OwnedFolder:
        return OwnedFolder(self.folder, layout.MARKER, layout.FOLDERS, {"format": FORMAT})

    @property
    def config_path(self) -> Path:
        """The file of the resolved configuration."""
        return self.folder / layout.CONFIG

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / layout.CHECKPOINTS

    @property
    def report_path(self) -> Path:
        """The HTML report."""
        return self.folder / layout.REPORT

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished, that is, whether ``result.json`` exists, which is written last."""
        return (self.folder / layout.RESULT).exists()

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``, which is read again at each access."""
        with reading(self._checked(layout.RESULT), "JSON object") as path:
            return _Result(path)

    @property
    def label_summary(self) -> LabelSummary:
        """How many labels are wrong or doubtful."""
        with reading(self._checked(layout.RESULT), "JSON object"):
            return LabelSummary(**self.result["label_summary"])

    @property
    def class_names(self) -> list[str]:
        """The class names by class number; the number itself if the classes have no names."""
        return [str(name) for name in self.result["classes"]]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one per epoch."""
        with reading(self._checked(layout.METRICS), "JSON Lines file") as path:
            return list(map(json.loads, path.read_text("utf-8").splitlines()))

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        with reading(self._checked(layout.CONFIG), "configuration") as path:
            return RunConfig.resolve([tomllib.loads(path.read_text("utf-8"))])

    @property
    def config_text(self) -> str:
        """The text of ``config.toml``."""
        with reading(self._checked(layout.CONFIG), "text file") as path:
            return path.read_text("utf-8")

    @property
    def model(self) -> Model:
        """The networks of the selected epoch, with everything needed to rebuild them and encode their inputs."""
        return load_model(self._checked(layout.MODEL))

    def labels(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of ``labels.parquet``, one per example; see ``unflip.runs.labels.label_table``."""
        return read_table(self._checked(layout.LABELS), columns, LABEL_COLUMNS)

    def other_issues(self) -> pa.Table | None:
        """Return the rows of ``issues.csv``; None if no checks were run."""
        path = self._checked(layout.ISSUES)
        return read_issues(path) if path.exists() and layout.ISSUES in self.owned() else None

    def annotator_table(self, name: str) -> pa.Table | None:
        """Return the rows of ``annotators.csv``, ``annotations.csv`` or ``ask_next.csv``; None with one label each."""
        path = self._checked(name)
        return read_annotators(path) if path.exists() and name in self.owned() else None

    def history(self) -> pa.Table:
        """Return all label changes during training: ``epoch, index, old, new, confidence``."""
        return read_table(self._checked(layout.HISTORY))

    @property
    def gaussians(self) -> ClassGaussians | None:
        """The class Gaussians of the last epoch; None if the method fits none."""
        path = self.folder / layout.GAUSSIANS
        if not path.exists():
            return None
        with reading(path, "file of class Gaussians"):
            return ClassGaussians.from_state_dict(load_file(path))

    def features(self, data: str | None = None) -> Array | None:
        """Return the features that the run was trained on (n, d), in the order of the label table.

        These are embeddings of images or texts, encoded columns, or the original feature rows; None if the network was
        trained on the images themselves. For the outputs of the trained network's last hidden layer, see
        ``hidden_features``.

        Args:
            data: the current location of the data, if it has moved.
        """
        options, count = self._data_options(data), self.labels(["index"]).num_rows
        raw = load_raw(options)
        if raw.holds_images:
            return None
        parts = [self._encoded(part) for part in _example_parts(raw, options, count)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _encoded(self, inputs: Any) -> Array:
        encoding = self.model.encoding
        if isinstance(inputs, Table) and encoding is not None:
            return restore(encoding).encode(inputs).features
        return np.asarray(inputs)

    @property
    def hidden_features(self) -> Array | None:
        """The outputs of the selected model's last hidden layer for all examples (n, d); None if too large to store.

        This layer was trained on the labels, so wrong labels are harder to detect here than in ``features``. The array
        is in half precision and memory-mapped with copy-on-write.
        """
        path = self.folder / layout.FEATURES
        # Copy on write, since torch warns about read-only arrays.
        return read_array(path, mmap_mode="c") if path.exists() else None

    def pictures(self, data: str | None = None) -> Pictures | None:
        """Return the images of the examples, None if the data has none.

        Args:
            data: where the data is now; by default where it was when the run finished. For features computed by
                ``unflip embed``, the original images are used.
        """
        path = data or self.result.get("pictures_path")
        if path is None:
            return None
        if data is not None and data.endswith(".npz") and (origin := read_origin(Path(data))) is not None:
            path = origin.data
        return open_pictures(self._data_options(path), self.labels(["id"])["id"].to_pylist())

    def rows(self, data: str | None = None) -> Rows | None:
        """Return the examples' table rows, None for images; ``data`` as for ``pictures``."""
        options, count, encoding = self._data_options(data), self.labels(["index"]).num_rows, self.encoding
        if encoding is None:
            return open_rows(options, count)
        return open_rows(options, count, text_columns(encoding), text_columns(encoding, "dropped"))

    def holds_cells(self, data: str | None = None) -> bool:
        """Whether examples are texts or rows of a table; the data tells if the run has no model."""
        if not (self.folder / layout.MODEL).exists():
            return find_loader(self.own_data(data)) in ("table", "texts")
        encoding = self.encoding
        return encoding is not None and encoding.encoder != "images"

    @property
    def encoding(self) -> Encoding | None:
        """How raw examples become features; None for arrays, or if the model was not stored."""
        return self.model.encoding if (self.folder / layout.MODEL).exists() else None

    def own_data(self, data: str | Path | None = None) -> DataOptions:
        """Return where the data is, and how it is read; for images, the images rather than their features.

        Args:
            data: where the data is now, if it has moved.
        """
        options, path, column = self.config.common.data, str(data or self.result["data_path"]), None
        features = Path(self.result["data_path"])  # of this run, which may have moved, or of an earlier one
        own = self.folder / layout.EMBEDDED
        if features.name == layout.EMBEDDED and (origin := read_origin(own) or read_origin(features)) is not None:
            path, column = str(data or origin.data), origin.label_column
        unused = dict.fromkeys(("labels", "annotations", "reviewed", "changes", "limit", "per_class"))
        options = options.model_copy(update=unused | {"path": path, "label_column": options.label_column or column})
        try:
            find_loader(options)
        except InputError as error:
            raise InputError(f"{error}; if the data was moved, name its location with --data") from error
        return options

    def _data_options(self, data: str | None) -> DataOptions:
        options = self.config.common.data
        path = data or self.result.get("data_path")
        return options.model_copy(update={"path": path}) if path else options

    def _checked(self, name: str) -> Path:
        """Return the path of a file to read; raise RunFolderError if the run was written in another format."""
        with reading(self.folder / layout.MARKER, "run marker") as path:
            version = json.loads(path.read_text("utf-8"))["format"]
        check_format(self.folder, "run", version, FORMAT)
        return self.folder / name

    def check_free(self, *, resume: bool, force: bool, inputs: Iterable[Path] = ()) -> None:
        """Raise an error if writing the run would replace another run, its own inputs or foreign files.

        Args:
            resume: resume the run in the folder.
            force: replace the run in the folder, if there is one.
            inputs: files and folders that the run reads.
        """
        if resume and force:
            raise ConfigError("--resume and --force cannot be combined")
        if resume and not self.config_path.exists():
            raise RunFolderError(f"{self.folder}: no run to resume")
        if resume:
            self._checked(layout.CONFIG)
        self._owner.check(layout.REPLACED if force else ())
        if not (resume or force) and (self.config_path.exists() or self.is_finished):
            how = "replace it with --force, or resume it with `train --resume`"
            raise RunFolderError(f"{self.folder}: already contains a run; {how}")
        own = [path for path in (self.folder, *map(self.folder.joinpath, layout.REPLACED)) if path.exists()]
        for path in inputs:
            if path.exists() and any(path.samefile(replaced) for replaced in own):
                raise RunFolderError(f"{path}: is an input of the run that would replace it; choose another folder")

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder for this process; raise RunFolderError if another one has it."""
        return locked(self.folder / LOCK, busy="another process is using this run; wait until it has finished")

    def clear(self) -> None:
        """Remove the files of the previous run, if there is one."""
        if self._owner.is_marked:
            self.remove(layout.REPLACED)

    def begin(self) -> None:
        """Create the folder if needed, and mark it as a run."""
        self._owner.begin()

    def check_own(self, names: Iterable[str]) -> None:
        """Raise RunFolderError if the folder is neither new nor a run, or if foreign files have these names."""
        self._owner.check(names)

    def own(self, name: str) -> Path:
        """Return the path of a file or folder to write, and record it as the run's; foreign files are an error."""
        return self._owner.own(name)

    def owned(self) -> list[str]:
        """Return the names of all recorded files."""
        return self._owner.owned()

    def write_config(self, text: str) -> None:
        """Write the resolved configuration."""
        write_text(self.own(layout.CONFIG), text)

    def write_metrics(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Replace the metrics of all epochs."""
        write_text(self.own(layout.METRICS), "".join(json.dumps(line) + "\n" for line in metrics))

    def write_labels(self, table: pa.Table, history: Mapping[str, Tensor]) -> None:
        """Write the label table as Parquet and CSV, and the history as Parquet."""
        changes = pa.table({name: column.numpy() for name, column in history.items()})
        for name, content in ((layout.LABELS, table), (layout.LABELS_CSV, table), (layout.HISTORY, changes)):
            write_table(self.own(name), content)

    def write_annotators(self, tables: AnnotatorTables) -> None:
        """Write what is known about several annotators."""
        names = layout.ANNOTATORS, layout.ANNOTATIONS, layout.ASK_NEXT
        for name, table in zip(names, tables, strict=True):
            write_table(self.own(name), table)

    def write_skipped(self, images: Sequence[Skipped]) -> None:
        """Write the list of images that were skipped."""
        write_table(self.own(layout.SKIPPED), pa.Table.from_pylist([image._asdict() for image in images]))

    def write_gaussians(self, gaussians: ClassGaussians) -> None:
        """Write the class Gaussians of the last epoch."""
        tensors = {name: value.cpu().contiguous() for name, value in gaussians.state_dict().items()}
        write_tensors(self.own(layout.GAUSSIANS), tensors, {})

    def write_features(self, features: Tensor) -> None:
        """Write the features of the selected model, unless too large."""
        name, size = layout.FEATURES, 2 * features.numel() / 2**30
        if size <= MAX_FEATURES_GB:
            half = features if features.dtype == torch.float16 else features.clamp(-HALF_MOST, HALF_MOST).half()
            write_array(self.own(name), half.cpu().numpy())
            return
        if name in self.owned():
            (self.folder / name).unlink(missing_ok=True)
        message = f"{name} would take {size:.1f} GB, more than {MAX_FEATURES_GB:g}: not stored"
        warnings.warn(message, UnflipWarning, stacklevel=2)

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of the named files that the run wrote; foreign files stay.

        Configuration and result go last, so that the folder still contains a run if a file cannot be removed.
        """
        names, owned = set(names), self.owned()
        last = (layout.CONFIG, layout.RESULT)
        for name in sorted(names.intersection(owned), key=lambda name: (name in last, name not in layout.FOLDERS)):
            path = self.folder / name
            is_folder = path.is_dir() and name == layout.CHECKPOINTS
            for file in matching(path, layout.CHECKPOINT) if is_folder else [path]:
                if file.is_file():
                    with naming_target(file):
                        file.unlink()
            if is_folder:
                remove_partial(path)
                with suppress(OSError):  # it contains foreign files
                    path.rmdir()
        self._owner.record([name for name in owned if name not in names or (self.folder / name).exists()])


class Claim:
    """The right to write to a run folder, from the first write of a command to its last; a context manager.

    Args:
        run: the run folder.
        resume: the run in it is resumed.
        force: the run in it is replaced.
        inputs: files and folders that the command reads.
    """

    def __init__(self, run: Run, *, resume: bool = False, force: bool = False, inputs: Iterable[Path] = ()) -> None:
        run.check_free(resume=resume, force=force, inputs=inputs)
        self.run, self.resume, self.force = run, resume, force
        self._locks, self._held = ExitStack(), not is_first_process()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._locks.close()

    @contextmanager
    def located(self, data: str | Path | InMemory | None) -> Iterator[str | Path | None]:
        """Say where data is; data in memory is written to the run folder first, and removed after an error."""
        if not isinstance(data, InMemory):
            yield data
            return
        self.hold().begin()
        with written(data, self.run.own(layout.DATA)) as path:
            yield path

    def hold(self) -> Run:
        """Create and lock the folder before the first write; return the run. Only the first process locks.

        A finished run is locked against reviews, too: nobody decides about a run that is being replaced.
        """
        run = self.run
        if self._held:
            return run
        with naming_target(run.folder):
            run.folder.mkdir(parents=True, exist_ok=True)
        self._locks.enter_context(run.locked())
        run.check_free(resume=self.resume, force=self.force)  # again: another process may have just finished
        if run.is_finished:
            busy = "is under review; end `unflip review` first"
            self._locks.enter_context(locked(run.folder / layout.REVIEW_LOCK, busy=busy))
        remove_partial(run.folder)
        remove_partial(run.checkpoints)
        self._held = True
        return run


def open_pictures(options: DataOptions, ids: Sequence[str]) -> Pictures | None:
    """Find the pictures of a run's examples; images are not read yet.

    Args:
        options: which data.
        ids: the names of the examples, in the order of the run.

    Returns:
        None for data without pictures.
    """
    raw = _load(options, rows=False)
    if raw is None:
        return None
    files = [part.inputs for part in (raw.train, raw.val) if part is not None and isinstance(part.inputs, ImageFiles)]
    if files:
        return pictures_of_files(files, ids, options.path)
    as_pixels = bytes_to_pixels if raw.holds_images else raw.as_pixels
    if as_pixels is None:
        return None
    row_of = _example_rows(raw, options, len(ids))

    def read(index: int, size: int) -> "Image":
        from PIL import Image

        return Image.fromarray(as_pixels(row_of(index)))

    return Pictures(len(ids), "image/png", read)


def open_rows(
    options: DataOptions, count: int, texts: Sequence[str] | None = None, last: Sequence[str] = ()
) -> Rows | None:
    """Find the rows of a run's ``count`` examples; None for images. ``texts``, ``last``: see :class:`Rows`."""
    raw = _load(options, rows=True)
    if raw is None or isinstance(raw.train.inputs, ImageFiles) or len(raw.train.inputs.shape) != 2:
        return None
    inputs, row_of = raw.train.inputs, _example_rows(raw, options, count)
    if isinstance(inputs, Table):
        names = inputs.table.column_names
        return Rows(lambda index: [as_cell(value) for value in row_of(index)], len(names), names, texts, last)
    return Rows(lambda index: [as_cell(float(value)) for value in row_of(index)], inputs.shape[1])


def _load(options: DataOptions, *, rows: bool) -> Dataset | None:
    """Load data of rows, or of images; None if it is of the other kind."""
    try:
        return load_raw(options) if (find_loader(options) in _ROWS) == rows else None
    except InputError as error:
        raise InputError(f"{error}; if the data was moved, name its location with --data") from error


def _example_parts(raw: Dataset, options: DataOptions, count: int) -> list[Any]:
    """Return the inputs of a run's ``count`` examples: those for training, and the data's own validation examples."""
    # Labels, which may be in another file, matter with `per_class` only.
    train = raw.train[: options.limit] if options.per_class is None else choose_labels(raw, options)[0].train
    parts = [part.inputs for part in (train, raw.val) if part is not None and not isinstance(part.inputs, ImageFiles)]
    if (total := sum(map(len, parts))) != count:
        raise InputError(f"data {options.path}: {total} examples, the run had {count}; is it another data set?")
    return parts


def _example_rows(raw: Dataset, options: DataOptions, count: int) -> Callable[[int], Any]:
    """Return a function from the number of an example, of ``count``, to its input: a row of an array or of a table."""
    parts = _example_parts(raw, options, count)

    def row_of(index: int) -> Any:
        part, row = (parts[0], index) if index < len(parts[0]) else (parts[1], index - len(parts[0]))
        return part.cells(row) if isinstance(part, Table) else part[row]

    return row_of


def as_run(folder: str | Path | Run | None) -> Run:
    """Return the run in a folder; None is a new temporary folder, which is not removed."""
    if isinstance(folder, Run):
        return folder
    return Run(Path(tempfile.mkdtemp(prefix="unflip-") if folder is None else folder))
