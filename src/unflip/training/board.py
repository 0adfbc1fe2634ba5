"""Board: writes each epoch's metrics for TensorBoard, if that is installed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from unflip.errors import RunFolderError
from unflip.runs import layout


class Board:
    """Writes to ``folder``; does nothing if the extra ``tensorboard`` is not installed."""

    def __init__(self, folder: Path, *, enabled: bool) -> None:
        self._writer: Any = None
        if enabled:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            self._folder = folder
            with self._writing():
                self._writer = SummaryWriter(str(self._folder), filename_suffix=layout.BOARD_ENDING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            with self._writing():
                self._writer.close()

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Write every number of an epoch's metrics, nested ones as ``group/name``."""
        if self._writer is None:
            return
        with self._writing():
            for key, value in metrics.items():
                for name, number in value.items() if isinstance(value, dict) else [("", value)]:
                    if isinstance(number, int | float):
                        self._writer.add_scalar(f"{key}/{name}".rstrip("/"), number, metrics["epoch"])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # may come from an earlier write: a thread does the writing
            raise RunFolderError(f"cannot write {self._folder}: {error.strerror or error}") from error
