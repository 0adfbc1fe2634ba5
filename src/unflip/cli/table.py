"""``unflip table``: a table of the paper, alone or with results beside it."""

from collections.abc import Sequence
from pathlib import Path

from unflip.errors import ConfigError, unknown
from unflip.experiments.paper_numbers import paper_table
from unflip.experiments.results_file import keep, parse_conditions, read_results
from unflip.experiments.tables import IN_THE_PAPER, SHOWN, Side, all_methods, compare
from unflip.report.table_text import FORMATS, render


def run_table(
    name: str,
    results: Sequence[Path],
    *,
    form: str,
    show: str,
    paper: bool,
    methods: str | None,
    where: Sequence[str],
) -> None:
    """Print the table; without results it is the paper's alone."""
    if form not in FORMATS:
        raise ConfigError(unknown("--format", form, FORMATS))
    chosen = next((known for known in SHOWN if known == show), None)
    if chosen is None:
        raise ConfigError(unknown("--show", show, SHOWN))
    if not results and not paper:
        raise ConfigError("--no-paper: leaves nothing to show without results; name some with --results")
    if not results and chosen not in IN_THE_PAPER:
        raise ConfigError(f"--show {show}: the paper has no such numbers; name results with --results")
    table = paper_table(name)
    conditions = parse_conditions(where)
    lines = keep(read_results(results), conditions)
    names = None
    if methods is not None:
        found = all_methods(table, lines)
        names = found if methods == "all" else [method.strip() for method in methods.split(",")]
        for method in names:
            if method not in found:
                raise ConfigError(unknown("method of the table or the results", method, found))
    sides: tuple[Side, ...] = (("ours", "paper") if paper else ("ours",)) if results else ("paper",)
    comparison = compare(table, lines, show=chosen, sides=sides, methods=names, fixed=list(conditions))
    print(render(comparison, form), end="")  # noqa: T201
