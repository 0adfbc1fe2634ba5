"""The run folder: everything downstream (report, tables, predict) reads it and nothing else."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unflip.errors import RunFolderError
from unflip.files import write_text
from unflip.lock import locked

_OURS = (
    "config.toml",
    "result.json",
    "metrics.jsonl",
    "noise.json",
    "skipped.csv",
    "labels.parquet",
    "labels.csv",
    "history.parquet",
    "model.safetensors",
    "features.npy",
    "gaussians.safetensors",
    "transition.npy",
    "checkpoints",
    "tensorboard",
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
        try:
            content: dict[str, Any] = json.loads((self.folder / "result.json").read_text("utf-8"))
        except OSError as error:
            raise RunFolderError(f"{self.folder}: no result.json; is this the folder of a finished run?") from error
        except ValueError as error:
            raise RunFolderError(f"{self.folder / 'result.json'}: not JSON ({error})") from error
        return content

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one an epoch."""
        lines = (self.folder / "metrics.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def write_metrics(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Write all epochs' figures anew."""
        write_text(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics))

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
