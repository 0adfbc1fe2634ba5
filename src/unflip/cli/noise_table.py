"""What the commands about noise print: rates, and which class became which."""

from rich.console import Console
from rich.table import Table

from unflip.noise.transition import NoiseProfile

_SHOWN = 20  # classes whose matrix still fits a terminal


def print_noise(measured: NoiseProfile, class_names: list[str] | None) -> None:
    """Print rates and matrix; of many classes, those with the most noise and what they became."""
    console = Console(soft_wrap=True, highlight=False)
    count = len(measured.matrix)
    names = class_names or [str(i) for i in range(count)]
    console.print(f"noise rate {measured.rate:.4f} over {int(measured.class_counts.sum())} labels, {count} classes")
    table = Table(box=None, title="true class (rows) and what it is called (columns)", title_justify="left")
    table.add_column("class")
    table.add_column("examples", justify="right")
    table.add_column("wrong", justify="right")
    if count <= _SHOWN:
        rows = range(count)
        for name in names:
            table.add_column(name[:6], justify="right")
    else:
        rows = measured.class_rates.argsort(descending=True)[:_SHOWN].tolist()  # type: ignore[assignment]
        table.add_column(f"called (the {_SHOWN} classes with the most noise)")
    for i in rows:
        cells = [names[i], str(int(measured.class_counts[i])), f"{float(measured.class_rates[i]):.3f}"]
        if count <= _SHOWN:
            cells += [f"{value:.2f}" if value >= 0.005 else "." for value in measured.matrix[i].tolist()]
        else:
            share, which = measured.matrix[i].topk(4)
            cells.append(", ".join(f"{names[j]} {s:.2f}" for s, j in zip(share.tolist(), which.tolist(), strict=True)))
        table.add_row(*cells)
    console.print(table)
