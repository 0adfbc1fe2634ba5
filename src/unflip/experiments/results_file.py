"""Reading results.jsonl, a line for each finished cell of a grid."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unflip.errors import ConfigError, InputError, unknown

Line = dict[str, Any]
PROTOCOL = ("network", "epochs", "protocol")
"""What results have in common that may stand in one table."""
_NEEDED = ("cell", "axes", "method", "seed", "network", "epochs", "selection", "test_accuracy")


def read_results(paths: Iterable[Path]) -> list[Line]:
    """Return the lines of all files; a folder stands for the ``results.jsonl`` in it. The same twice counts once."""
    lines: dict[tuple[str, str], Line] = {}
    for path in paths:
        file = path / "results.jsonl" if path.is_dir() else path
        try:
            rows = file.read_text("utf-8").splitlines()
        except OSError as error:
            raise InputError(
                f"results {file}: {error.strerror}; name a results.jsonl that `unflip sweep` wrote"
            ) from error
        except UnicodeDecodeError as error:
            raise InputError(f"results {file}: not a text file in UTF-8") from error
        for number, row in enumerate(rows, 1):
            line = _parse(row, f"results {file}, line {number}")
            lines[line["cell"], json.dumps(line["axes"], sort_keys=True)] = line
    return list(lines.values())


def _parse(row: str, place: str) -> Line:
    try:
        line = json.loads(row)
    except ValueError as error:
        raise InputError(f"{place}: not JSON ({error})") from error
    missing = [key for key in _NEEDED if key not in line] if isinstance(line, dict) else _NEEDED
    if missing:
        raise InputError(f"{place}: has no '{missing[0]}'; is it a results.jsonl that `unflip sweep` wrote?")
    for key in ("axes", "test_accuracy"):
        if not isinstance(line[key], dict):
            raise InputError(f"{place}: '{key}' is {line[key]!r}; `unflip sweep` writes an object there")
    return dict(line)


def find(line: Mapping[str, Any], key: str) -> Any:
    """Return what a line has under ``key``: on that axis of its grid, by the name given there, or else of the run."""
    return line["axes"].get(key, line.get(key))


def parse_conditions(texts: Sequence[str]) -> dict[str, str]:
    """Turn ``KEY=VALUE`` into conditions."""
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
    """Return how results came about, None of none; refuse those that differ in it: they are not to be compared."""
    ways = Counter(tuple(line.get(key, line["selection"]) for key in keys) for line in lines)
    if len(ways) > 1:
        (most, many), *_, (least, few) = ways.most_common()
        differing = [place for place in range(len(keys)) if most[place] != least[place]]
        told = [", ".join(f"{keys[place]} {values[place]}" for place in differing) for values in (most, least)]
        raise ConfigError(
            f"results: {what} mixes {told[0]} ({many} results) with {told[1]} ({few}); keep one with "
            f"--where {keys[differing[0]]}='{most[differing[0]]}'"
        )
    return dict(zip(keys, next(iter(ways)), strict=True)) if ways else None


def by_seed(lines: Iterable[Line], what: str) -> list[Line]:
    """Return one line a seed; two cells of the same seed are refused."""
    seeds: dict[int, Line] = {}
    for line in lines:
        twin = seeds.setdefault(line["seed"], line)
        if twin["cell"] != line["cell"]:
            raise ConfigError(
                f"results: {what}, seed {line['seed']} has two cells, {twin['cell']} and {line['cell']}; keep one with "
                "--where KEY=VALUE"
            )
    return list(seeds.values())
