"""Run: a run's folder. Report, review, export, tables and predict read it through this and through nothing else."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unflip._version import __version__
from unflip.data.files.arrays import Array, read_array, write_array
from unflip.data.files.features import read_origin
from unflip.data.options import DataOptions
from unflip.data.viewing.pictures import Pictures, open_pictures
from unflip.data.viewing.rows import Rows, open_rows
from unflip.errors import RunFolderError, UnflipWarning
from unflip.files import write_json, write_tensors, write_text
from unflip.lock import locked
from unflip.runs import layout
from unflip.runs.config import RunConfig, read_toml
from unflip.runs.labels import read_labels, read_table
from unflip.runs.model_file import Model, load_model
from unflip.stats.gaussians import ClassGaussians

FORMAT = 2
"""Of run folders. It is raised when an older version's folders can no longer be read."""
_FEATURES_GB = 2.0  # above that they are not kept
_HALF = 65504.0  # the largest number that half precision can hold
_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Run:
    """A run's folder and what is in it."""

    folder: Path

    @property
    def config_path(self) -> Path:
        """The resolved configuration."""
        return self.folder / layout.CONFIG

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / layout.CHECKPOINTS

    @property
    def report_path(self) -> Path:
        """The page about the run."""
        return self.folder / layout.REPORT

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run, finished or not, of this version or an older one."""
        return self.config_path.exists()

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end: ``result.json`` is written last."""
        return (self.folder / layout.RESULT).exists()

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json`` as it is now: a resumed run writes it anew."""
        content = self._read(layout.RESULT, json.loads, "finished run", "JSON")
        if not isinstance(content, dict) or "method" not in content:
            raise RunFolderError(f"{self.folder / layout.RESULT}: no 'method' in it; was it written by unflip?")
        return content

    @property
    def class_names(self) -> list[str]:
        """The name of every class, by class number; its number where classes have no names."""
        names = self.result.get("classes")
        if not isinstance(names, list):
            raise RunFolderError(f"{self.folder / layout.RESULT}: no 'classes' in it; was it written by unflip?")
        return [str(name) for name in names]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one per epoch."""
        return self._read(layout.METRICS, _parse_lines, "run", "lines of JSON")

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        self._check_format()
        return RunConfig.resolve([read_toml(self.config_path)])

    @property
    def model(self) -> Model:
        """The networks of the selected epoch, with all that is needed to rebuild and feed them."""
        self._check_format()
        return load_model(self.folder / layout.MODEL)

    def labels(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """The rows of ``labels.parquet``, one per example; see :func:`unflip.runs.labels.label_table`."""
        self._check_format()
        return read_labels(self.folder / layout.LABELS, columns)

    @property
    def has_labels(self) -> bool:
        """Whether the table of labels is there; a sweep may keep results alone."""
        return (self.folder / layout.LABELS).exists()

    def history(self) -> pyarrow.Table:
        """Every change of a label while the run trained: ``epoch, index, old, new, confidence``."""
        self._check_format()
        return read_table(self.folder / layout.HISTORY)

    @property
    def gaussians(self) -> ClassGaussians | None:
        """The class Gaussians of the last epoch, where the method fits any."""
        path = self.folder / layout.GAUSSIANS
        if not path.exists():
            return None
        try:
            return ClassGaussians.from_state_dict(load_file(path))
        except (SafetensorError, OSError, KeyError, RuntimeError) as error:
            raise RunFolderError(f"{path}: not a readable file of class Gaussians ({error})") from error

    @property
    def features(self) -> Array | None:
        """What the chosen model makes of every example (n, d), in half precision, by row of the labels.

        It is mapped: nothing is read before it is asked for, and what is written to it does not reach the file. None
        where it was too large to be kept.
        """
        return self._map(layout.FEATURES)

    @property
    def gaussian_features(self) -> Array | None:
        """The features to which the class Gaussians were fitted, those of the last epoch: as :attr:`features`."""
        last = self._map(layout.LAST_FEATURES)
        return self._map(layout.FEATURES) if last is None else last

    def _map(self, name: str) -> Array | None:
        path = self.folder / name
        # Copy on write, since torch warns about arrays that cannot be written.
        return read_array(path, mmap_mode="c") if path.exists() else None

    def pictures(self, data: str | None = None) -> Pictures | None:
        """The pictures of the examples, None where the data has none; ``data`` says where the data is now.

        By default it is looked for where it was when the run finished, whatever folder that was started from. The
        pictures of features that `unflip embed` computed are the images that they were computed from.
        """
        path = data or self.result.get("pictures_path")
        if path is None:
            return None
        if data is not None and data.endswith(".npz") and (origin := read_origin(Path(data))) is not None:
            path = origin.data
        return open_pictures(self._data_options(path), self.labels(["id"])["id"].to_pylist(), self.config.parts)

    def rows(self, data: str | None = None) -> Rows | None:
        """The examples' rows of numbers, None where they are images; ``data`` as for :meth:`pictures`."""
        return open_rows(self._data_options(data), self.labels(["index"]).num_rows)

    def _data_options(self, data: str | None) -> DataOptions:
        options = self.config.common.data
        path = data or self.result.get("data_path")
        return options.model_copy(update={"path": path}) if path else options

    def _read(self, name: str, parse: Callable[[str], _Content], kind: str, syntax: str) -> _Content:
        self._check_format()
        path = self.folder / name
        try:
            return parse(path.read_text("utf-8"))
        except OSError as error:
            raise RunFolderError(f"{self.folder}: no {name}; is this the folder of a {kind}?") from error
        except ValueError as error:
            raise RunFolderError(f"{path}: not {syntax} ({error})") from error

    def _check_format(self) -> None:
        """Refuse a run that another version of unflip wrote in a way that this one does not know."""
        path, found = self.folder / layout.MARKER, None
        try:
            found = json.loads(path.read_text("utf-8"))["format"]
        except FileNotFoundError:
            if not self.config_path.exists():
                return  # no run at all: whoever asked says what is missing
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path}: not what unflip writes ({error})") from error
        if found != FORMAT:
            raise RunFolderError(
                f"{self.folder}: a run in format {found or 1}, this version of unflip reads format {FORMAT}; train "
                "again into another folder, or use the version that wrote it"
            )

    def check_free(self, *, resume: bool, force: bool) -> None:
        """Refuse to write over a run, or to resume one that is not there."""
        if resume:
            self._check_format()
        if resume and not self.config_path.exists():
            raise RunFolderError(f"{self.folder}: holds no run to resume; leave --resume out to start one")
        if self.folder.exists() and not self.folder.is_dir():
            raise RunFolderError(f"{self.folder}: is a file; --out names a folder")
        if self.exists and not (resume or force):
            raise RunFolderError(
                f"{self.folder}: already holds a run; continue it with --resume or replace it with --force"
            )

    @contextmanager
    def claimed(self, *, resume: bool, force: bool) -> Iterator[None]:
        """Create the folder and have it for this process alone; with ``force`` remove what a run before left."""
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
        busy = "another process is at work on this run; wait until it has ended"
        with locked(self.folder / layout.LOCK, busy=busy):
            self.check_free(resume=resume, force=force)  # again: one that just ended may have left a run
            with self._writing():
                self._clear(layout.REPLACED if force else ())
            yield

    def write_config(self, text: str) -> None:
        """Begin the run: write which format it is in, and its configuration."""
        write_json(self.folder / layout.MARKER, {"format": FORMAT, "unflip": __version__})
        write_text(self.config_path, text)

    def write_metrics(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Write all epochs' figures anew."""
        write_text(self.folder / layout.METRICS, "".join(json.dumps(line) + "\n" for line in metrics))

    def write_gaussians(self, gaussians: ClassGaussians) -> None:
        """Keep the class Gaussians of the last epoch."""
        tensors = {name: value.cpu().contiguous() for name, value in gaussians.state_dict().items()}
        write_tensors(self.folder / layout.GAUSSIANS, tensors, {})

    def write_features(self, features: Tensor, last: Tensor | None) -> None:
        """Keep the features of the chosen model and, if they are others, those of the last epoch, unless too large."""
        for name, array in ((layout.FEATURES, features), (layout.LAST_FEATURES, last)):
            size = 0.0 if array is None else 2 * array.numel() / 2**30
            if array is None or size > _FEATURES_GB:
                (self.folder / name).unlink(missing_ok=True)
            else:
                write_array(self.folder / name, array.clamp(-_HALF, _HALF).half().cpu().numpy())
            if size > _FEATURES_GB:
                warnings.warn(
                    f"{name} would take {size:.1f} GB, more than {_FEATURES_GB:g}, and is not kept; neighbours and the "
                    "picture of the class Gaussians will be missing",
                    UnflipWarning,
                    stacklevel=2,
                )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFolderError(f"cannot write to {self.folder}: {error.strerror}") from error

    def _clear(self, names: Iterable[str]) -> None:
        """Remove files of a run, and what a process that was killed left half written."""
        for path in [*(self.folder / name for name in names), *self._half_written()]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _half_written(self) -> list[Path]:
        ours = (*(f".{name}." for name in layout.REPLACED), ".epoch-", ".tmp")  # .tmp is what safetensors writes first
        return [
            path for place in (self.folder, self.checkpoints) for path in place.glob(".*") if path.name.startswith(ours)
        ]


def _parse_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
