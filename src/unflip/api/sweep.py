"""sweep: every cell of some grids, on this machine or on a Ray cluster."""

from collections.abc import Sequence
from pathlib import Path

from unflip.errors import ConfigError, unknown
from unflip.parallel import find_device
from unflip.reproduce.cell import Cell, Keep
from unflip.reproduce.grid import Point, read_grid
from unflip.reproduce.local import Local
from unflip.reproduce.ray import Ray
from unflip.reproduce.sweep import Place, Progress, Watch, carry_out, fingerprints_in, plan

_PLACES = ("local", "ray")
_KEPT = ("all", "results")


def sweep(
    grids: Sequence[str],
    out: str | Path,
    *,
    jobs: int | None = None,
    threads: int = 1,
    on: str = "local",
    address: str | None = None,
    data_root: Path = Path(),
    keep: str = "all",
    device: str = "auto",
    watch: Watch = lambda progress, news: None,
) -> Progress:
    """Run every cell of some grids that is not finished; results go to ``results.jsonl`` in ``out``.

    Args:
        grids: .toml files, or names of ``unflip list grids``.
        out: the folder; an earlier sweep there goes on.
        jobs: cells at a time; by default one per GPU, else one per core.
        threads: processor threads of a cell.
        on: ``local`` or ``ray``.
        address: of the Ray cluster; by default one is started on this machine.
        data_root: where relative paths in the grids begin.
        keep: what stays of a finished cell: ``all`` (but checkpoints) or ``results``.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        watch: is told how far the sweep is.
    """
    if keep not in _KEPT:
        raise ConfigError(unknown("--keep", keep, _KEPT))
    if on not in _PLACES:
        raise ConfigError(unknown("--on", on, _PLACES))
    if address is not None and on != "ray":
        raise ConfigError(f"--address {address} is that of a Ray cluster; add --on ray")
    if on == "local":
        find_device(device)
    read = [read_grid(name) for name in grids]

    def place() -> Place:
        return Ray(device, threads, address) if on == "ray" else Local(device, threads)

    kept: Keep = "all" if keep == "all" else "results"
    return carry_out(read, Path(out), place, data_root=data_root, jobs=jobs, keep=kept, watch=watch)


def plan_sweep(grids: Sequence[str], out: str | Path, *, data_root: Path = Path()) -> dict[Cell, list[Point]]:
    """Return every cell of some grids, with the points in which it stands; nothing is run or written."""
    return plan([read_grid(name) for name in grids], Path(out), data_root, fingerprints_in(Path(out)))
