"""A table of the paper, alone or with results beside it, as text, Markdown, LaTeX or CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from unflip.errors import ConfigError, unknown
from unflip.reproduce.paper_numbers import Number, contradictions, paper_table
from unflip.reproduce.results_file import keep, parse_conditions, read_results
from unflip.reproduce.tables import (
    IN_THE_PAPER,
    OWN_LENGTH,
    SHOWN,
    Comparison,
    Side,
    all_methods,
    best_two,
    compare,
    gains,
)

_MISSING = "—"
_LATEX = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
          "—": "--", "†": r"$^\dagger$"}  # fmt: skip


def table(
    name: str,
    results: Sequence[Path] = (),
    *,
    form: str = "text",
    show: str = "selected",
    paper: bool = True,
    methods: str | None = None,
    where: Sequence[str] = (),
) -> str:
    """Return the table as text; without results it is the paper's alone.

    Args:
        name: of the table in the paper: 1 to 6.
        results: results.jsonl files, or folders of sweeps.
        form: text, markdown, latex or csv.
        show: selected, last, best (test accuracy), labels or quality.
        paper: whether the paper's numbers stand beside.
        methods: names separated by commas; by default the paper's, ``all`` adds what else there is.
        where: ``key=value`` conditions that results must meet.
    """
    if form not in FORMATS:
        raise ConfigError(unknown("--format", form, FORMATS))
    chosen = next((known for known in SHOWN if known == show), None)
    if chosen is None:
        raise ConfigError(unknown("--show", show, SHOWN))
    if not results and not paper:
        raise ConfigError("--no-paper: leaves nothing to show without results; name some with --results")
    if not results and chosen not in IN_THE_PAPER:
        raise ConfigError(f"--show {show}: the paper has no such numbers; name results with --results")
    printed = paper_table(name)
    conditions = parse_conditions(where)
    lines = keep(read_results(results), conditions)
    names = None
    if methods is not None:
        found = all_methods(printed, lines)
        names = found if methods == "all" else [method.strip() for method in methods.split(",")]
        for method in names:
            if method not in found:
                raise ConfigError(unknown("method of the table or the results", method, found))
    sides: tuple[Side, ...] = (("ours", "paper") if paper else ("ours",)) if results else ("paper",)
    comparison = compare(printed, lines, show=chosen, sides=sides, methods=names, fixed=list(conditions))
    return render(comparison, form)


class _Cell(NamedTuple):
    text: str
    bold: bool = False


class _Grid(NamedTuple):
    caption: str
    header: list[str]
    body: list[list[list[_Cell]]]  # settings, lines, cells
    notes: list[str]


def render(comparison: Comparison, form: str) -> str:
    """Return the table in one of FORMATS, ending in a newline."""
    return FORMATS[form](comparison)


def _text(comparison: Comparison) -> str:
    grid = _grid(comparison, "starred")
    lines = [[cell.text + (" *" if cell.bold else "") for cell in line] for setting in grid.body for line in setting]
    widths = [max(map(len, column)) for column in zip(grid.header, *lines, strict=True)]

    def row(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([grid.caption, "", row(grid.header), rule, *map(row, lines), "", *grid.notes]) + "\n"


def _markdown(comparison: Comparison) -> str:
    grid = _grid(comparison, "in bold")

    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    lines = [
        [f"**{cell.text}**" if cell.bold else cell.text for cell in line] for setting in grid.body for line in setting
    ]
    table = [row(grid.header), row(["---"] * len(grid.header)), *map(row, lines)]
    return "\n".join([grid.caption, "", *table, "", *(f"- {note}" for note in grid.notes)]) + "\n"


def _latex(comparison: Comparison) -> str:
    grid = _grid(comparison, "in bold")

    def escape(text: str) -> str:
        escaped = "".join(_LATEX.get(character, character) for character in text)
        return f"${escaped[0]}${escaped[1:]}" if escaped.startswith(("+", "-")) else escaped

    def row(cells: Sequence[str]) -> str:
        return f"    {' & '.join(cells)} \\\\"

    body: list[str] = []
    for setting in grid.body:
        body += [row([f"\\textbf{{{escape(c.text)}}}" if c.bold else escape(c.text) for c in line]) for line in setting]
        body += [r"    \addlinespace"] if len(setting) > 1 else []
    columns = "l" * (len(grid.header) - len(comparison.methods)) + "c" * len(comparison.methods)
    return "\n".join([
        r"\begin{table*}",
        r"  \centering",
        f"  \\caption{{{escape(' '.join([grid.caption, *grid.notes]))}}}",
        f"  \\begin{{tabular}}{{{columns}}} % needs the package booktabs",
        r"    \toprule",
        row([escape(heading) for heading in grid.header]),
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        f"  \\label{{tab:unflip-{comparison.table.name}}}",
        r"\end{table*}",
    ]) + "\n"  # fmt: skip


def _csv(comparison: Comparison) -> str:
    """Return one line per setting and method, each number in its own column; a side that is not shown is empty."""
    table, doubts = comparison.table, contradictions()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([
        "table", *table.keys, "method", "mean", "deviation", "gain", "seeds", "best_two", "paper_mean",
        "paper_deviation", "paper_gain", "difference", "paper_contradiction",
    ])  # fmt: skip
    for place, row in enumerate(comparison.rows):
        best = set() if table.baseline else best_two(row.ours if "ours" in comparison.sides else row.paper)
        for method in comparison.methods:
            ours = row.ours[method] if "ours" in comparison.sides else None
            paper = row.paper[method] if "paper" in comparison.sides else None
            numbers = [
                *((ours.mean, ours.deviation, ours.gain, ours.seeds) if ours else (None,) * 4),
                int(method in best),
                *((paper.mean, paper.deviation, paper.gain) if paper else (None,) * 3),
                ours.mean - paper.mean if ours and paper else None,
                doubts.get((table.name, place, method)) if paper else None,
            ]
            where = [row.where.get(key) for key in table.keys]
            writer.writerow([table.name, *where, method, *numbers])
    return out.getvalue()


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}


def _grid(comparison: Comparison, marked: str) -> _Grid:
    table, both = comparison.table, len(comparison.sides) > 1
    doubts = {(place, method) for name, place, method in contradictions() if name == table.name}
    body = []
    for place, row in enumerate(comparison.rows):
        names = [_Cell(row.where.get(key, "")) for key in table.keys]
        doubtful = {method for at, method in doubts if at == place}
        sides = {"ours": _numbers(comparison, row.ours, set()), "paper": _numbers(comparison, row.paper, doubtful)}
        lines: list[tuple[str, list[_Cell]]] = [(side, sides[side]) for side in comparison.sides]
        if both:
            lines.append(("difference", [_Cell(_signed(row.difference(method))) for method in comparison.methods]))
        blank = [_Cell("")] * len(names)
        body.append([
            [*(blank if number else names), *([_Cell(who)] if both else []), *cells]
            for number, (who, cells) in enumerate(lines)
        ])  # fmt: skip
    means = comparison.mean()
    if "ours" in comparison.sides and any(means.values()):
        names = [_Cell(text) for text in ["mean", *[""] * (len(table.keys) - 1), *(["ours"] if both else [])]]
        body.append([[*names, *_numbers(comparison, means, set())]])
    header = [*table.keys, *([""] if both else []), *comparison.methods.values()]
    return _Grid(f"Table {table.name}. {SHOWN[comparison.show]} {table.title}.", header, body,
                 _notes(comparison, marked))  # fmt: skip


def _numbers(comparison: Comparison, numbers: Mapping[str, Number | None], doubtful: set[str]) -> list[_Cell]:
    best = set() if comparison.table.baseline else best_two(numbers)
    return [
        _Cell(_number(number, comparison.table.seeds) + ("†" if method in doubtful else ""), method in best)
        for method, number in numbers.items()
    ]


def _number(number: Number | None, seeds: int) -> str:
    if number is None:
        return _MISSING
    text = f"{number.mean}" + (f" ± {number.deviation}" if number.deviation is not None else "")
    if number.gain is not None:
        text += f" {'↑' if number.gain >= 0 else '↓'} {abs(number.gain)}"
    return text + (f" ({number.seeds})" if number.seeds is not None and number.seeds < seeds else "")


def _signed(value: Decimal | None) -> str:
    return _MISSING if value is None else f"{value:+}"


def _notes(comparison: Comparison, marked: str) -> list[str]:
    table = comparison.table
    notes = _our_notes(comparison) if "ours" in comparison.sides else []
    if "paper" in comparison.sides:
        notes.append(f"Paper: {table.setup}; it does not say which epoch's accuracy it reports.")
    if table.baseline:
        notes.append(f"Arrows: points above or below {table.methods[table.baseline]}.")
    else:
        notes.append(f"The best two of a row are {marked}.")
    if "ours" in comparison.sides:
        notes += _issues(comparison)
    doubts = [
        f"{' '.join(table.rows[place].where.values())} {table.methods[method]} ({text})"
        for (name, place, method), text in sorted(contradictions().items())
        if name == table.name and method in comparison.methods and "paper" in comparison.sides
    ]
    return [*notes, f"† The paper contradicts itself: {'; '.join(doubts)}."] if doubts else notes


def _our_notes(comparison: Comparison) -> list[str]:
    table = comparison.table
    notes_by_protocol: dict[str, list[str]] = {}
    for data, values in comparison.protocols.items():
        chosen = "the last epoch" if values["protocol"] == "last" else f"the epoch selected by {values['protocol']}"
        of = {
            "selected": f", test accuracy of {chosen}",
            "last": ", test accuracy of the last epoch",
            "best": ", best test accuracy of any epoch (uses the truth: test labels)",
        }.get(comparison.show, "")
        network = f"network {values['network']}, " if "network" in values else ""
        apart = f" ({', '.join(OWN_LENGTH)}: {values['own_epochs']})" if "own_epochs" in values else ""
        notes_by_protocol.setdefault(f"{network}{values['epochs']} epochs{apart}{of}", []).append(data)
    notes = [f"Ours, {' and '.join(data)}: {text}." for text, data in notes_by_protocol.items()]
    cells = [number for row in comparison.rows for number in row.ours.values()]
    if any(number and number.deviation is not None for number in cells):
        notes.append("Ours: mean ± sample standard deviation over seeds.")
    if any(number and (number.seeds or 0) < table.seeds for number in cells):
        notes.append(f"(n): over n seeds, fewer than {table.seeds}.")
    if missing := sum(number is None for number in cells):
        notes.append(f"{_MISSING}: missing, {missing} of our {len(cells)} cells.")
    return notes


def _issues(comparison: Comparison) -> list[str]:
    """Check the paper's claims: count rows whose best two are its methods, and give their mean gain over PLC."""
    pair = ("mddc", "cddc")
    if not set(pair) <= set(comparison.methods):
        return []
    notes = []
    sides: list[tuple[str, list[Mapping[str, Number | None]]]] = [
        (side, [row.ours if side == "ours" else row.paper for row in comparison.rows]) for side in comparison.sides
    ]
    if not comparison.table.baseline and comparison.show in IN_THE_PAPER:
        counts = []
        for who, rows in sides:
            complete = [row for row in rows if all(row.get(method) for method in comparison.table.methods)]
            if not complete:
                continue
            hits = sum(
                best_two({name: row[name] for name in comparison.table.methods}) == set(pair) for row in complete
            )
            counts.append(f"{who} {hits} of {len(complete)}")
        if counts:
            notes.append(f"Complete rows whose best two are MDDC and CDDC: {', '.join(counts)}.")
    for method in pair:
        means = [f"{who} {sum(found) / len(found):+.2f} ({len(found)} rows)"
                 for who, rows in sides if (found := gains(rows, method, "plc"))]  # fmt: skip
        if means:
            notes.append(f"Mean gain of {method.upper()} over PLC: {', '.join(means)}.")
    return notes
