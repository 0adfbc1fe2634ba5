"""Run: a run's folder. Report, review, export, tables and predict read it through this and through nothing else."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from safetensors import SafetensorError
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
from unflip.runs.config import RunConfig, read_toml
from unflip.runs.labels import read_issues, read_table
from unflip.runs.model_file import Model, load_model
from unflip.stats.gaussians import ClassGaussians

FORMAT = 3
"""Of run folders. It is raised when an older version's folders can no longer be read."""
_FEATURES_GB = 2.0  # above that they are not kept
_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Run:
    """A run's folder and what is in it."""

    folder: Path

    @property
    def _owner(self) -> OwnedFolder:
        return OwnedFolder(self.folder, layout.MARKER, layout.FOLDERS, {"format": FORMAT})

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
        return self.config_path.exists() or self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end: ``result.json`` is written last."""
        return (self.folder / layout.RESULT).exists()

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json`` as it is now: a resumed run writes it anew."""
        content: dict[str, Any] = self._read(layout.RESULT, json.loads, "finished run", "JSON")
        return content

    @property
    def class_names(self) -> list[str]:
        """The name of every class, by class number; its number where classes have no names."""
        return [str(name) for name in self.result["classes"]]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one per epoch."""
        parse: Callable[[str], list[dict[str, Any]]] = lambda text: list(map(json.loads, text.splitlines()))  # noqa: E731
        return self._read(layout.METRICS, parse, "run", "lines of JSON")

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        self._check_format()
        return RunConfig.resolve([read_toml(self.config_path)])

    @property
    def config_text(self) -> str:
        """The resolved configuration as it is in its file."""
        return self._read(layout.CONFIG, str, "run", "a text file in UTF-8")

    @property
    def model(self) -> Model:
        """The networks of the selected epoch, with all that is needed to rebuild and feed them."""
        self._check_format()
        return load_model(self.folder / layout.MODEL)

    def labels(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of ``labels.parquet``, one per example; see ``unflip.runs.labels.label_table``."""
        self._check_format()
        return read_table(self.folder / layout.LABELS, columns)

    def issues(self) -> pa.Table | None:
        """What else was found in the data, None where nothing was looked for; see :mod:`unflip.runs.labels`."""
        self._check_format()
        path = self.folder / layout.ISSUES
        return read_issues(path) if path.exists() and layout.ISSUES in self.owned() else None

    @property
    def has_labels(self) -> bool:
        """Whether the table of labels is there; a sweep may keep results alone."""
        return (self.folder / layout.LABELS).exists()

    def history(self) -> pa.Table:
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
        """The features to which the class Gaussians were fitted, those of the last epoch: as ``features``."""
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
        """The examples' rows of cells, None where they are images; ``data`` as for ``pictures``."""
        return open_rows(self._data_options(data), self.labels(["index"]).num_rows, self.text_columns)

    @property
    def text_columns(self) -> tuple[str, ...] | None:
        """The columns from whose texts the networks learned; None where the model was not kept."""
        if not (self.folder / layout.MODEL).exists():
            return None
        encoding = self.model.encoding
        return () if encoding is None else text_columns(encoding)

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
        path = self.folder / layout.MARKER
        if not path.exists():
            raise RunFolderError(f"{self.folder}: no {layout.MARKER}; is this the folder of a finished run?")
        try:
            found = json.loads(path.read_text("utf-8"))["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path}: not what unflip writes ({error})") from error
        if found != FORMAT:
            raise RunFolderError(
                f"{self.folder}: a run in format {found}, this version of unflip reads format {FORMAT}; train "
                "again into another folder, or use the version that wrote it"
            )

    def check_free(self, *, resume: bool, force: bool, inputs: Iterable[Path] = ()) -> None:
        """Refuse to write over a run, over what a run reads, or into a folder with files that are not ours.

        Args:
            resume: continue the run in the folder, so there must be one.
            force: replace the run in the folder, if there is one.
            inputs: what the run reads: none of it may be a file of the run that is replaced.
        """
        if resume and force:
            raise ConfigError("--resume continues a run and --force replaces it; give one of them")
        if resume:
            if not self.config_path.exists():
                raise RunFolderError(f"{self.folder}: holds no run to resume; leave --resume out to start one")
            self._check_format()
        self._owner.check(layout.REPLACED if force else ())
        if self.exists and not (resume or force):
            raise RunFolderError(
                f"{self.folder}: already holds a run; continue it with --resume or replace it with --force"
            )
        own = [path for path in (self.folder, *map(self.folder.joinpath, layout.REPLACED)) if path.exists()]
        for path in inputs:
            if path.exists() and any(path.samefile(replaced) for replaced in own):
                raise RunFolderError(f"{path}: is read by the run that would replace it; choose another folder")

    @contextmanager
    def claimed(self, *, resume: bool, force: bool) -> Iterator[None]:
        """Create the folder and have it for this process alone; with ``force`` remove what a run before left."""
        with naming_target(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        busy = "another process is at work on this run; wait until it has ended"
        with locked(self.folder / LOCK, busy=busy):
            self.check_free(resume=resume, force=force)  # again: one that just ended may have left a run
            remove_partial(self.folder)
            remove_partial(self.checkpoints)
            if force and self._owner.is_marked:
                self.remove(layout.REPLACED)
            self.begin()
            yield

    def begin(self) -> None:
        """Create the folder, if it is not there, and mark it as a run's."""
        self._owner.begin()

    def check_own(self, names: Iterable[str]) -> None:
        """Refuse a folder that is neither new nor a run's, and one in which something is in the way of ``names``."""
        self._owner.check(names)

    def own(self, name: str) -> Path:
        """Return where to write a file or folder of the run, and remember that it is the run's.

        Something of that name which the run did not write stays as it is: that is an error.
        """
        return self._owner.own(name)

    def owned(self) -> list[str]:
        """Return the names of everything that the run has written, or was about to write."""
        return self._owner.owned()

    def write_config(self, text: str) -> None:
        """Write the resolved configuration."""
        write_text(self.own(layout.CONFIG), text)

    def write_metrics(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Write all epochs' figures anew."""
        write_text(self.own(layout.METRICS), "".join(json.dumps(line) + "\n" for line in metrics))

    def write_labels(self, table: pa.Table, history: Mapping[str, Tensor]) -> None:
        """Write the table of labels as Parquet and CSV, and every change as Parquet."""
        changes = pa.table({name: column.numpy() for name, column in history.items()})
        write_atomically(self.own(layout.LABELS), lambda path: pa.parquet.write_table(table, path))
        write_atomically(self.own(layout.LABELS_CSV), lambda path: pa.csv.write_csv(table, path))
        write_atomically(self.own(layout.HISTORY), lambda path: pa.parquet.write_table(changes, path))

    def write_gaussians(self, gaussians: ClassGaussians) -> None:
        """Keep the class Gaussians of the last epoch."""
        tensors = {name: value.cpu().contiguous() for name, value in gaussians.state_dict().items()}
        write_tensors(self.own(layout.GAUSSIANS), tensors, {})

    def write_features(self, features: Tensor, last: Tensor | None) -> None:
        """Keep the features of the chosen model and, if they are others, those of the last epoch, unless too large."""
        for name, array in ((layout.FEATURES, features), (layout.LAST_FEATURES, last)):
            size = 0.0 if array is None else 2 * array.numel() / 2**30
            if array is None or size > _FEATURES_GB:
                if name in self.owned():
                    (self.folder / name).unlink(missing_ok=True)
            else:
                small = array if array.dtype == torch.float16 else array.clamp(-HALF_MOST, HALF_MOST).half()
                write_array(self.own(name), small.cpu().numpy())
            if size > _FEATURES_GB:
                warnings.warn(
                    f"{name} would take {size:.1f} GB, more than {_FEATURES_GB:g}, and is not kept; neighbors and the "
                    "picture of the class Gaussians will be missing",
                    UnflipWarning,
                    stacklevel=2,
                )

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of the named files that the run wrote; whatever else is in its folders stays.

        The configuration and the result go last: where something cannot be removed, the folder still holds a run.
        """
        names, owned = set(names), self.owned()
        last = (layout.CONFIG, layout.RESULT)
        for name in sorted(owned, key=lambda name: (name in last, name not in layout.FOLDERS)):
            path = self.folder / name
            if name not in names:
                continue
            if path.is_dir() and name in layout.WITHIN:
                for file in layout.files_within(path, name):
                    _unlink(file)
                remove_partial(path)
                with suppress(OSError):  # somebody keeps files of their own in it
                    path.rmdir()
            elif path.is_file():
                _unlink(path)
        self._owner.record([name for name in owned if name not in names or (self.folder / name).exists()])


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be removed: {error.strerror}; allow that, and try again") from error
