"""The run folder: everything downstream (report, tables, predict) reads it and nothing else."""

import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from torch import Tensor

from unflip.data.array_files import Array, read_array, write_array
from unflip.data.dataset import DataOptions
from unflip.data.pictures import Pictures, open_pictures
from unflip.data.rows import Rows, open_rows
from unflip.errors import RunFolderError, UnflipWarning
from unflip.files import write_text
from unflip.lock import locked
from unflip.training.config import RunConfig, read_toml

_FEATURES_GB = 2.0  # above that they are not kept
_HALF = 65504.0  # what half precision can hold
_OURS = (
    "config.toml",
    "result.json",
    "metrics.jsonl",
    "noise.json",
    "skipped.csv",
    "labels.parquet",
    "labels.csv",
    "suspects.csv",
    "duplicates.csv",
    "history.parquet",
    "model.safetensors",
    "features.npy",
    "last_features.npy",
    "gaussians.safetensors",
    "transition.npy",
    "checkpoints",
    "tensorboard",
    "report.html",
)


@dataclass(frozen=True)
class Run:
    """A run's folder and what is in it."""

    folder: Path

    @property
    def config_path(self) -> Path:
        """The resolved configuration; its presence makes a folder a run."""
        return self.folder / "config.toml"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end: ``result.json`` is written last."""
        return (self.folder / "result.json").exists()

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json`` as it is now: a resumed run writes it anew."""
        path = self.folder / "result.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise RunFolderError(f"{self.folder}: no result.json; is this the folder of a finished run?") from error
        except ValueError as error:
            raise RunFolderError(f"{path}: not JSON ({error})") from error
        if not isinstance(content, dict) or "method" not in content:
            raise RunFolderError(f"{path}: no 'method' in it; was it written by unflip?")
        return content

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one an epoch."""
        path = self.folder / "metrics.jsonl"
        try:
            return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        except OSError as error:
            raise RunFolderError(f"{self.folder}: no metrics.jsonl; is this the folder of a run?") from error
        except ValueError as error:
            raise RunFolderError(f"{path}: not lines of JSON ({error})") from error

    def write_metrics(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Write all epochs' figures anew."""
        write_text(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics))

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        return RunConfig.resolve([read_toml(self.config_path)])

    def labels(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """The rows of ``labels.parquet``, one an example."""
        path = self.folder / "labels.parquet"
        try:
            return pyarrow.parquet.read_table(path, columns=columns)
        except FileNotFoundError as error:
            raise RunFolderError(f"{self.folder}: no labels.parquet; is this the folder of a finished run?") from error
        except (OSError, pyarrow.ArrowException) as error:
            raise RunFolderError(f"{path}: not a readable Parquet file ({error})".replace("\n", " ")) from error

    @property
    def features(self) -> Array | None:
        """What the chosen model makes of every example (n, d), in half precision, by row of the labels.

        It is mapped: nothing is read before it is asked for, and what is written to it does not reach the file. None
        where it was too large to be kept.
        """
        return self._map("features.npy")

    @property
    def gaussian_features(self) -> Array | None:
        """The features to which the class Gaussians were fitted, those of the last epoch: as :attr:`features`."""
        last = self._map("last_features.npy")
        return self._map("features.npy") if last is None else last

    def _map(self, name: str) -> Array | None:
        path = self.folder / name
        # Copy on write, since torch warns of arrays that cannot be written.
        return read_array(path, mmap_mode="c") if path.exists() else None

    def write_features(self, features: Tensor, last: Tensor | None) -> None:
        """Keep the features of the chosen model and, if they are others, those of the last epoch, unless too large."""
        for name, array in (("features.npy", features), ("last_features.npy", last)):
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

    def pictures(self, data: str | None = None) -> Pictures | None:
        """The pictures of the examples, None where the data has none; ``data`` says where the data is by now.

        By default it is looked for where it was when the run finished, whatever folder that was started from.
        """
        return open_pictures(self._data_options(data), self.labels(["id"])["id"].to_pylist())

    def rows(self, data: str | None = None) -> Rows | None:
        """The examples' rows of numbers, None where they are images; ``data`` as for :meth:`pictures`."""
        return open_rows(self._data_options(data), self.labels(["index"]).num_rows)

    def _data_options(self, data: str | None) -> DataOptions:
        options = self.config.common.data
        path = data or self.result.get("data_path")
        return options.model_copy(update={"path": path}) if path else options

    def check_free(self, *, resume: bool, force: bool) -> None:
        """Refuse to write over a run, or to resume one that is not there."""
        if resume and not self.config_path.exists():
            raise RunFolderError(f"{self.folder}: holds no run to resume; leave --resume out to start one")
        if self.folder.exists() and not self.folder.is_dir():
            raise RunFolderError(f"{self.folder}: is a file; --out names a folder")
        if self.config_path.exists() and not (resume or force):
            raise RunFolderError(
                f"{self.folder}: already holds a run; continue it with --resume or replace it with --force"
            )

    @contextmanager
    def claimed(self, *, resume: bool, force: bool) -> Iterator[None]:
        """Create the folder and have it for this process alone; with ``force`` remove what a run before left."""
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock", busy="another process is at work on this run; wait until it has ended"):
            self.check_free(resume=resume, force=force)  # again: one that just ended may have left a run
            with self._writing():
                self._clear(_OURS if force else ())
            yield

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
        ours = (*(f".{name}." for name in _OURS), ".epoch-", ".tmp")  # .tmp is what safetensors writes first
        return [
            path for place in (self.folder, self.checkpoints) for path in place.glob(".*") if path.name.startswith(ours)
        ]
