"""check_output: where a command may write a single file."""

from collections.abc import Collection, Iterable
from pathlib import Path

from unflip.errors import ConfigError, RunFolderError
from unflip.files import is_marked, is_within
from unflip.runs import layout


def check_output(
    path: Path,
    suffixes: Collection[str] = (),
    *,
    force: bool,
    inputs: Iterable[str | Path | None] = (),
    option: str = "--out",
) -> None:
    """Refuse a file that cannot be written, or should not be, before anything is computed.

    Args:
        path: the file to write.
        suffixes: the endings that it may have, if only some.
        force: whether a file that is there may be replaced.
        inputs: what the command reads: never replaced.
        option: how the command calls the file.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        *most, last = suffixes
        allowed = f"{', '.join(most)} or {last}" if most else last
        raise ConfigError(f"{option} {path}: cannot write '{path.suffix}'; name a {allowed} file")
    if not path.absolute().parent.is_dir():
        raise RunFolderError(f"{option} {path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise RunFolderError(f"{option} {path}: is a folder; name a file")
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{option} {path}: is not an ordinary file; choose another name")
    for given in inputs:
        if given is not None and path.exists() and is_within(path, Path(given)):
            raise RunFolderError(f"{option} {path}: is what the command reads; choose another name")
    if path.exists() and not force:
        raise RunFolderError(f"{option} {path}: already exists; replace it with --force or choose another name")
    if is_marked(path.parent / layout.MARKER) and path.name in (layout.MARKER, *layout.REPLACED):
        raise RunFolderError(f"{option} {path}: is a file of the run in that folder; choose another name")
