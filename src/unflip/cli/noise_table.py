"""What the commands about noise print: rates, and which class became which. Numbers are never cut, names may be."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from torch import Tensor

from unflip.errors import one_line
from unflip.noise.transition import NoiseProfile

_SHOWN = 20  # classes of which each gets a row, and a column where there is room
_SHARE = 4  # characters of a number in the matrix
_HEAD, _NAME = 8, 16  # characters of a class name above a column and before a row, at most
_LEAST = 0.005  # smaller shares would be shown as 0.00
_CALLED = 4  # what a class is called instead, at most, where there is no room for a matrix


def print_noise(measured: NoiseProfile, class_names: Sequence[str] | None) -> None:
    """Print rates and matrix; where that is too wide, what each class became; of many classes, the worst."""
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    for line in noise_lines(measured, class_names, console.width):
        console.print(line)


def noise_lines(measured: NoiseProfile, class_names: Sequence[str] | None, width: int) -> list[str]:
    """Return the lines to print, for a terminal of ``width`` columns."""
    count, counts = len(measured.matrix), measured.class_counts.tolist()
    names = [one_line(name) for name in class_names or map(str, range(count))]
    worst = measured.class_rates.argsort(descending=True, stable=True)[:_SHOWN].tolist()
    rows = list(range(count)) if count <= _SHOWN else worst
    figures = [
        ["examples", *(str(counts[i]) for i in rows)],
        ["wrong", *(f"{float(measured.class_rates[i]):.3f}" for i in rows)],
    ]
    room = width - sum(2 + max(map(len, column)) for column in figures)
    longest = max(len("class"), *map(cell_len, names))
    share = (room - min(longest, _HEAD)) // count - 1  # columns for each class of a matrix
    if count <= _SHOWN and share >= _SHARE:
        share = min(share, max(_SHARE, *map(cell_len, names)), _HEAD)
        names = _distinct(names, min(share, longest))
        short = [_cut(name, min(_NAME, room - count * (share + 1))) for name in names]
        columns = [[_cut(names[j], share), *map(_as_share, measured.matrix[:, j].tolist())] for j in range(count)]
        body = ["".join(f" {_right(cell, share)}" for cell in cells) for cells in zip(*columns, strict=True)]
        about = "true class (rows) and what it is called (columns)"
    else:
        most = min(_NAME, max(len("class"), room // 3))
        short = [_cut(name, most) for name in _distinct(names, most)]
        room -= max(map(cell_len, ("class", *short)))
        body = ["  called instead", *(_called(i, measured.matrix[i], short, room) for i in rows)]
        about = "true class and what it is called" + (f"; the {_SHOWN} with the most noise" if count > _SHOWN else "")
    first = max(map(cell_len, ("class", *short)))
    heading = [set_cell_size(name, first) for name in ("class", *(short[i] for i in rows))]
    numbers = [[f"  {cell:>{max(map(len, column))}}" for cell in column] for column in figures]
    lines = ("".join(cells).rstrip() for cells in zip(heading, *numbers, body, strict=True))
    return [f"noise rate {measured.rate:.4f} over {sum(counts)} labels, {count} classes", about, *lines]


def _distinct(names: Sequence[str], width: int) -> list[str]:
    """Put numbers before names that look alike once they are cut."""
    alike = len({_cut(name, width) for name in names}) < len(names)
    return [f"{i} {name}" for i, name in enumerate(names)] if alike else list(names)


def _cut(name: str, width: int) -> str:
    return name if cell_len(name) <= width else set_cell_size(name, width).rstrip()


def _right(cell: str, width: int) -> str:
    return " " * (width - cell_len(cell)) + cell


def _as_share(value: float) -> str:
    return f"{value:.2f}" if value >= _LEAST else "."


def _called(own: int, shares: Tensor, names: Sequence[str], room: int) -> str:
    """Say what a class is called instead, the most frequent first: as many as there is room for, but at least one."""
    values, which = shares.topk(min(_CALLED + 1, len(shares)))
    found = zip(values.tolist(), which.tolist(), strict=True)
    said = [f"{names[j]} {share:.2f}" for share, j in found if share >= _LEAST and j != own][:_CALLED]
    while len(said) > 1 and cell_len(", ".join(said)) + 2 > room:
        said.pop()
    return f"  {', '.join(said)}"
