"""What a run's table of labels calls its classes."""

import pyarrow

_COLUMNS = ("given", "current", "suggested")


def class_names(table: pyarrow.Table) -> dict[int, str]:
    """Return the names of the classes that occur in a run's labels; none where classes are numbers."""
    names: dict[int, str] = {}
    for column in _COLUMNS:
        if f"{column}_name" in table.column_names:
            pairs = table.group_by([column, f"{column}_name"]).aggregate([])
            names |= dict(zip(pairs[column].to_pylist(), pairs[f"{column}_name"].to_pylist(), strict=True))
    return names
