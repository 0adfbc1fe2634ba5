"""Read results.jsonl, which has one line per finished cell of a grid."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unflip.errors import ConfigError, InputError, unknown

Line = dict[str, Any]
PROTOCOL = ("network", "epochs", "protocol")
"""What all results in one table must have in common."""
_NEEDED = {
    "cell": str, "axes": dict, "method": str, "seed": int, "network": str, "epochs": int, "selection": str,
    "test_accuracy": dict,
}  # fmt: skip


def read_results(paths: Iterable[Path]) -> list[Line]:
    """Return the lines of all files without duplicates; a folder stands for the ``results.jsonl`` in it."""
    lines: dict[tuple[str, str], Line] = {}
    for path in paths:
        file = path / "results.jsonl" if path.is_dir() else path
        try:
            rows = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"results {file}: {why}; name a results.jsonl of `unflip paper sweep`") from error
        for number, row in enumerate(rows, 1):
            line = _parse(row, f"results {file}, line {number}")
            lines[line["cell"], json.dumps(line["axes"], sort_keys=True)] = line
    return list(lines.values())


def _parse(row: str, place: str) -> Line:
    try:
        line = json.loads(row)
    except ValueError as error:
        raise InputError(f"{place}: not JSON ({error})") from error
    for key, kind in _NEEDED.items():
        if not isinstance(line, dict) or not isinstance(line.get(key), kind):
            raise InputError(f"{place}: '{key}' is missing or wrong; name a results.jsonl of `unflip paper sweep`")
    return dict(line)


def find(line: Mapping[str, Any], key: str) -> Any:
    """Return the value of ``key``: the name on that axis of the grid if there is one, otherwise the run's value."""
    return line["axes"].get(key, line.get(key))


def parse_conditions(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` conditions."""
    conditions = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise ConfigError(f"--where {text}: write KEY=VALUE, for example --where epochs=15")
        conditions[key.strip()] = value.strip()
    return conditions


def keep(lines: Sequence[Line], conditions: Mapping[str, str]) -> list[Line]:
    """Return the lines that meet every condition; a key that no line has is an error."""
    for key in conditions:
        known = {name for line in lines for name in (*line["axes"], *line)}
        if lines and key not in known:
            raise ConfigError(unknown("key of --where", key, known))
    return [line for line in lines if all(str(find(line, key)) == value for key, value in conditions.items())]


def one_protocol(lines: Iterable[Line], what: str, keys: Sequence[str] = PROTOCOL) -> dict[str, Any] | None:
    """Return the common protocol of results, None if there are none; raise if they differ and are not comparable."""
    ways = Counter(tuple(line.get(key, line["selection"]) for key in keys) for line in lines)
    if len(ways) > 1:
        (most, many), *_, (least, few) = ways.most_common()
        differing = [place for place in range(len(keys)) if most[place] != least[place]]
        differences = [", ".join(f"{keys[place]} {values[place]}" for place in differing) for values in (most, least)]
        raise ConfigError(
            f"results: {what} mixes {differences[0]} ({many} results) with {differences[1]} ({few}); keep one with "
            f"--where {keys[differing[0]]}='{most[differing[0]]}'"
        )
    return dict(zip(keys, next(iter(ways)), strict=True)) if ways else None


def by_seed(lines: Iterable[Line], what: str) -> list[Line]:
    """Return one line per seed; raise if two cells have the same seed."""
    seeds: dict[int, Line] = {}
    for line in lines:
        twin = seeds.setdefault(line["seed"], line)
        if twin["cell"] != line["cell"]:
            raise ConfigError(
                f"results: {what}, seed {line['seed']} has two cells, {twin['cell']} and {line['cell']}; keep one with "
                "--where KEY=VALUE"
            )
    return list(seeds.values())
