"""``unflip table``: a table of the paper, alone or with results beside it."""

from collections.abc import Sequence
from pathlib import Path

from unflip.errors import ConfigError, unknown
from unflip.experiments.paper_numbers import paper_table
from unflip.experiments.results_file import keep, parse_conditions, read_results
from unflip.experiments.tables import ACCURACIES, all_methods, compare
from unflip.report.table_text import FORMATS, render


def run_table(
    name: str,
    results: Sequence[Path],
    *,
    form: str,
    accuracy: str,
    methods: str | None,
    where: Sequence[str],
) -> None:
    """Print the table; without results it is the paper's alone."""
    if form not in FORMATS:
        raise ConfigError(unknown("--format", form, FORMATS))
    chosen = next((known for known in ACCURACIES if known == accuracy), None)
    if chosen is None:
        raise ConfigError(unknown("--accuracy", accuracy, ACCURACIES))
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
    comparison = compare(table, lines, accuracy=chosen, methods=names, fixed=list(conditions))
    print(render(comparison, form, paper_only=not results), end="")  # noqa: T201
