"""table: a table of the paper, alone or with results beside it."""

from collections.abc import Sequence
from pathlib import Path

from unflip.errors import ConfigError, unknown
from unflip.report.table_text import FORMATS, render
from unflip.reproduce.paper_numbers import paper_table
from unflip.reproduce.results_file import keep, parse_conditions, read_results
from unflip.reproduce.tables import IN_THE_PAPER, SHOWN, Side, all_methods, compare


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
