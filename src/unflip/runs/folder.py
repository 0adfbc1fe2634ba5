"""Run: a run folder. Reports, the review page, exports and predictions read runs only through this class."""

import json
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from safetensors.torch import load_file
from torch import Tensor

from unflip.data.arrays import Array, read_array, write_array
from unflip.data.loaders.arrays import read_origin
from unflip.data.options import DataOptions
from unflip.data.preview import Pictures, Rows, open_pictures, open_rows
from unflip.encoders.table import text_columns
from unflip.errors import ConfigError, RunFolderError, UnflipWarning
from unflip.files import (
    LOCK,
    OwnedFolder,
    locked,
    naming_target,
    remove_partial,
    write_atomically,
    write_tensors,
    write_text,
)
from unflip.methods.base import HALF_MOST
from unflip.runs import layout
from unflip.runs.config import RunConfig
from unflip.runs.labels import LABEL_COLUMNS, read_issues, read_table
from unflip.runs.layout import reading
from unflip.runs.model_file import Model, load_model
from unflip.stats.gaussians import ClassGaussians

FORMAT = 3
"""Version of the run folder; raised when older folders can no longer be read."""
MAX_FEATURES_GB = 2.0
"""Larger features are not stored."""


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
    def exists(self) -> bool:
        """Whether the folder contains a run, finished or not, of any version."""
        return self.config_path.exists() or self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished: ``result.json`` is written last."""
        return (self.folder / layout.RESULT).exists()

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``, read at each access: resuming a run replaces it."""
        with self._reading(layout.RESULT, "JSON object") as path:
            return _Result(path)

    @property
    def class_names(self) -> list[str]:
        """The class names by class index; the index itself for classes without names."""
        return [str(name) for name in self.result["classes"]]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one per epoch."""
        with self._reading(layout.METRICS, "JSON Lines file") as path:
            return list(map(json.loads, path.read_text("utf-8").splitlines()))

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        with self._reading(layout.CONFIG, "configuration") as path:
            return RunConfig.resolve([tomllib.loads(path.read_text("utf-8"))])

    @property
    def config_text(self) -> str:
        """The text of ``config.toml``."""
        with self._reading(layout.CONFIG, "text file") as path:
            return path.read_text("utf-8")

    @property
    def model(self) -> Model:
        """The networks of the selected epoch, with everything needed to rebuild them and encode their inputs."""
        self._check_format()
        return load_model(self.folder / layout.MODEL)

    def labels(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of ``labels.parquet``, one per example; see ``unflip.runs.labels.label_table``."""
        self._check_format()
        return read_table(self.folder / layout.LABELS, columns, LABEL_COLUMNS)

    def issues(self) -> pa.Table | None:
        """Return the rows of ``issues.csv``, None if no checks were run; see :mod:`unflip.runs.labels`."""
        self._check_format()
        path = self.folder / layout.ISSUES
        return read_issues(path) if path.exists() and layout.ISSUES in self.owned() else None

    @property
    def has_labels(self) -> bool:
        """Whether the label table exists; a sweep may keep results only."""
        return (self.folder / layout.LABELS).exists()

    def history(self) -> pa.Table:
        """Return all label changes during training: ``epoch, index, old, new, confidence``."""
        self._check_format()
        return read_table(self.folder / layout.HISTORY)

    @property
    def gaussians(self) -> ClassGaussians | None:
        """The class Gaussians of the last epoch; None if the method fits none."""
        path = self.folder / layout.GAUSSIANS
        if not path.exists():
            return None
        with reading(path, "file of class Gaussians"):
            return ClassGaussians.from_state_dict(load_file(path))

    @property
    def features(self) -> Array | None:
        """The selected model's features of all examples (n, d), in half precision; None if too large to store.

        The array is memory-mapped, copy-on-write.
        """
        return self._map(layout.FEATURES)

    @property
    def gaussian_features(self) -> Array | None:
        """The features that the class Gaussians were fitted to, those of the last epoch; otherwise as ``features``."""
        last = self._map(layout.LAST_FEATURES)
        return self._map(layout.FEATURES) if last is None else last

    def _map(self, name: str) -> Array | None:
        path = self.folder / name
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
        return open_pictures(self._data_options(path), self.labels(["id"])["id"].to_pylist(), self.config.parts)

    def rows(self, data: str | None = None) -> Rows | None:
        """Return the examples' table rows, None for images; ``data`` as for ``pictures``."""
        return open_rows(self._data_options(data), self.labels(["index"]).num_rows, self.text_columns)

    @property
    def text_columns(self) -> tuple[str, ...] | None:
        """The text columns that the model was trained on; None if the model was not stored."""
        if not (self.folder / layout.MODEL).exists():
            return None
        encoding = self.model.encoding
        return () if encoding is None else text_columns(encoding)

    def _data_options(self, data: str | None) -> DataOptions:
        options = self.config.common.data
        path = data or self.result.get("data_path")
        return options.model_copy(update={"path": path}) if path else options

    @contextmanager
    def _reading(self, name: str, kind: str) -> Iterator[Path]:
        self._check_format()
        with reading(self.folder / name, kind) as path:
            yield path

    def _check_format(self) -> None:
        """Raise RunFolderError if the run was written in another format."""
        with reading(self.folder / layout.MARKER, "run marker") as path:
            version = json.loads(path.read_text("utf-8"))["format"]
        if version != FORMAT:
            raise RunFolderError(
                f"{self.folder}: run format {version}, this version of unflip reads {FORMAT}; train again, or use the "
                "version that wrote it"
            )

    def check_free(self, *, resume: bool, force: bool, inputs: Iterable[Path] = ()) -> None:
        """Raise an error if writing the run would replace another run, its own inputs or foreign files.

        Args:
            resume: resume the run in the folder.
            force: replace the run in the folder, if there is one.
            inputs: files and folders that the run reads.
        """
        if resume and force:
            raise ConfigError("--resume and --force cannot be combined")
        if resume:
            if not self.config_path.exists():
                raise RunFolderError(f"{self.folder}: no run to resume")
            self._check_format()
        self._owner.check(layout.REPLACED if force else ())
        if self.exists and not (resume or force):
            raise RunFolderError(
                f"{self.folder}: already contains a run; replace it with --force, or resume it with `train --resume`"
            )
        own = [path for path in (self.folder, *map(self.folder.joinpath, layout.REPLACED)) if path.exists()]
        for path in inputs:
            if path.exists() and any(path.samefile(replaced) for replaced in own):
                raise RunFolderError(f"{path}: is an input of the run that would replace it; choose another folder")

    @contextmanager
    def claimed(self, *, resume: bool, force: bool) -> Iterator[None]:
        """Create and lock the folder; with ``force``, remove the files of the previous run."""
        with naming_target(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / LOCK, busy="another process is using this run; wait until it has finished"):
            self.check_free(resume=resume, force=force)  # again: another process may have just finished
            remove_partial(self.folder)
            remove_partial(self.checkpoints)
            if force and self._owner.is_marked:
                self.remove(layout.REPLACED)
            self.begin()
            yield

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
        write_atomically(self.own(layout.LABELS), lambda path: pa.parquet.write_table(table, path))
        write_atomically(self.own(layout.LABELS_CSV), lambda path: pa.csv.write_csv(table, path))
        write_atomically(self.own(layout.HISTORY), lambda path: pa.parquet.write_table(changes, path))

    def write_gaussians(self, gaussians: ClassGaussians) -> None:
        """Write the class Gaussians of the last epoch."""
        tensors = {name: value.cpu().contiguous() for name, value in gaussians.state_dict().items()}
        write_tensors(self.own(layout.GAUSSIANS), tensors, {})

    def write_features(self, features: Tensor, last: Tensor | None) -> None:
        """Write the features of the selected model and, if they differ, of the last epoch, unless too large."""
        for name, array in ((layout.FEATURES, features), (layout.LAST_FEATURES, last)):
            size = 0.0 if array is None else 2 * array.numel() / 2**30
            if array is not None and size <= MAX_FEATURES_GB:
                half = array if array.dtype == torch.float16 else array.clamp(-HALF_MOST, HALF_MOST).half()
                write_array(self.own(name), half.cpu().numpy())
                continue
            if name in self.owned():
                (self.folder / name).unlink(missing_ok=True)
            if array is not None:
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
            is_folder = path.is_dir() and name in layout.WITHIN
            for file in layout.files_within(path, name) if is_folder else [path]:
                if file.is_file():
                    with naming_target(file):
                        file.unlink()
            if is_folder:
                remove_partial(path)
                with suppress(OSError):  # it contains foreign files
                    path.rmdir()
        self._owner.record([name for name in owned if name not in names or (self.folder / name).exists()])
