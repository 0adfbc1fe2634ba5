"""A table of the paper, alone or with results next to it, as Markdown."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from unflip.errors import ConfigError, count_of, unknown
from unflip.reproduce import tables
from unflip.reproduce.tables import IN_THE_PAPER, SHOWN, Comparison, Number, best_two, paper_table

_MISSING = "—"


def table(
    name: str,
    results: Sequence[Path] = (),
    *,
    show: str = "selected",
    paper: bool = True,
    methods: str | None = None,
    where: Sequence[str] = (),
) -> str:
    """Return a table as Markdown; without results it is the paper's alone.

    Args:
        name: number of the table in the paper: 1 to 6.
        results: results.jsonl files, or folders of sweeps.
        show: selected, last, best (test accuracy), labels or quality.
        paper: whether to show the paper's numbers.
        methods: names separated by commas; by default the paper's, ``all`` adds all others with results.
        where: ``key=value`` conditions that results must meet.
    """
    if show not in SHOWN:
        raise ConfigError(unknown("--show", show, SHOWN))
    if not results and not (paper and show in IN_THE_PAPER):
        raise ConfigError(f"--show {show}: needs --results; the paper has test accuracies only")
    printed = paper_table(name)
    lines, fixed = tables.select_results(results, where)
    known = tables.all_methods(printed, lines)
    names = known if methods == "all" else [method.strip() for method in methods.split(",")] if methods else None
    for method in names or ():
        if method not in known:
            raise ConfigError(unknown("--methods", method, known))
    sides = ("ours", "paper") if results and paper else ("ours",) if results else ("paper",)
    return render(tables.compare(printed, lines, show=show, sides=sides, methods=names, fixed=fixed))


def render(comparison: Comparison) -> str:
    """Return the table as Markdown that is readable as text, too: caption, rows and notes."""
    table, sides = comparison.table, comparison.sides
    both = len(sides) > 1

    def cells(numbers: Mapping[str, Number | None], doubts: Collection[str] = ()) -> list[str]:
        best = set() if table.baseline else best_two(numbers)
        texts = {name: _number(number, table.seeds) + "†" * (name in doubts) for name, number in numbers.items()}
        return [f"**{text}**" if method in best else text for method, text in texts.items()]

    lines = []
    for row, printed in zip(comparison.rows, table.rows, strict=True):
        names = [row.where.get(key, "") for key in table.keys]
        numbers = {"ours": cells(row.ours), "paper": cells(row.paper, printed.doubts)}
        for side in sides:
            lines.append([*names, *([side] if both else []), *numbers[side]])
            names = [""] * len(names)
        if both:
            differences = [row.difference(method) for method in comparison.methods]
            lines.append([*names, "difference", *(_MISSING if d is None else f"{d:+}" for d in differences)])
    means = comparison.mean()
    if "ours" in sides and any(means.values()):
        lines.append(["mean", *[""] * (len(table.keys) - 1), *(["ours"] if both else []), *cells(means)])
    header = [*table.keys, *([""] if both else []), *comparison.methods.values()]
    caption = f"Table {table.name}. {SHOWN[comparison.show]} {table.title}."
    notes = [f"- {note}" for note in _notes(comparison)]
    return "\n".join([caption, "", markdown_table([header, *lines]), "", *notes]) + "\n"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that is readable as text, too; the first row is its heading."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = [rows[0], ["-" * width for width in widths], *rows[1:]]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def _number(number: Number | None, seeds: int) -> str:
    if number is None:
        return _MISSING
    text = f"{number.mean}" + (f" ± {number.deviation}" if number.deviation is not None else "")
    if number.gain is not None:
        text += f" {'↑' if number.gain >= 0 else '↓'} {abs(number.gain)}"
    return text + (f" ({number.seeds})" if number.seeds is not None and number.seeds < seeds else "")


def _notes(comparison: Comparison) -> list[str]:
    table = comparison.table
    notes = _our_notes(comparison) if "ours" in comparison.sides else []
    if "paper" in comparison.sides:
        notes.append(f"Paper: {table.setup}; the paper does not say for which epoch it reports the accuracy.")
    if table.baseline:
        notes.append(f"Arrows: points above or below {table.methods[table.baseline]}.")
    else:
        notes.append("The best two values in each row are in bold.")
    if "ours" in comparison.sides:
        notes += _claims(comparison)
    doubts = [
        f"{' '.join(row.where.values())} {table.methods[method]} ({text})"
        for row in table.rows
        for method, text in sorted(row.doubts.items())
        if method in comparison.methods and "paper" in comparison.sides
    ]
    return [*notes, f"† The paper contradicts itself: {'; '.join(doubts)}."] if doubts else notes


def _our_notes(comparison: Comparison) -> list[str]:
    """Describe the protocol of our results, and what is missing."""
    notes: dict[str, list[str]] = {}
    for data, values in comparison.protocols.items():
        epoch = "the last epoch" if values["protocol"] == "last" else f"the epoch selected by {values['protocol']}"
        accuracy = {
            "selected": f", test accuracy of {epoch}",
            "last": ", test accuracy of the last epoch",
            "best": ", best test accuracy of any epoch (uses the truth: test labels)",
        }.get(comparison.show, "")
        network = f"network {values['network']}, " if "network" in values else ""
        own = f" ({tables.OWN_LENGTH}: {values['own_epochs']})" if "own_epochs" in values else ""
        notes.setdefault(f"{network}{values['epochs']} epochs{own}{accuracy}", []).append(data)
    lines = [f"Ours, {' and '.join(data)}: {text}." for text, data in notes.items()]
    numbers = [number for row in comparison.rows for number in row.ours.values()]
    if any(number and number.deviation is not None for number in numbers):
        lines.append("Ours: mean ± sample standard deviation over seeds.")
    if any(number and (number.seeds or 0) < comparison.table.seeds for number in numbers):
        lines.append(f"(n): mean over n seeds, fewer than {comparison.table.seeds}.")
    if missing := numbers.count(None):
        lines.append(f"{_MISSING}: missing, {missing} of our {len(numbers)} cells.")
    return lines


def _claims(comparison: Comparison) -> list[str]:
    """Check the paper's claims: count rows whose best two are its methods, and give their mean gain over PLC."""
    table, pair = comparison.table, {"mddc", "cddc"}
    if not pair <= set(comparison.methods):
        return []
    best = f"Complete rows in which MDDC and CDDC are the best two of the original {len(table.methods)} methods"
    claims: dict[str, list[str]] = {best: []}
    for side in comparison.sides:
        rows = [row.ours if side == "ours" else row.paper for row in comparison.rows]
        complete = [row for row in rows if all(row.get(method) for method in table.methods)]
        if complete and not table.baseline and comparison.show in IN_THE_PAPER:
            hits = sum(best_two({name: row[name] for name in table.methods}) == pair for row in complete)
            claims[best].append(f"{side} {hits} of {len(complete)}")
        for method in ("mddc", "cddc"):
            numbers = [(row.get(method), row.get("plc")) for row in rows]
            if gains := [number.mean - base.mean for number, base in numbers if number and base]:
                gain = f"{side} {sum(gains) / len(gains):+.2f} ({count_of(len(gains), 'row')})"
                claims.setdefault(f"Mean gain of {method.upper()} over PLC", []).append(gain)
    return [f"{claim}: {', '.join(values)}." for claim, values in claims.items() if values]
