"""Parts of pages that are generated from the code and the result files.

    python pages/site_parts.py    # fills them in all pages

A part is between `<!-- generated: NAME ARGUMENT... -->` and `<!-- end -->`.
"""

import json
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import typer

import marked
from unflip.cli.app import build_app
from unflip.methods import find_method, methods
from unflip.reproduce.grids import grid_names, grid_text
from unflip.reproduce.tables import Comparison, Line, Number, compare, paper_table, read_results

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.rglob("*.md")), ROOT / "CONTRIBUTING.md")


def fill(page: str) -> str:
    """Return the page with its generated parts up to date."""
    return marked.fill(page, "generated:", part)


def part(request: str) -> str:
    """Return the Markdown for a comment ``<!-- generated: NAME ARGUMENT... -->``."""
    name, *arguments = shlex.split(request)
    return _PARTS[name](*arguments)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def source_address(path: str) -> str:
    """Return where the repository shows a file or folder."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    return f"{urls['Source']}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


# Commands


def commands() -> str:
    """Return a section for every command: what it does, how it is called, its arguments and options."""
    root = typer.main.get_command(build_app())
    return "\n\n".join(_command(name, command) for name, command in _walk(root, "unflip"))


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
    for own, inner in (below or {}).items():
        yield from _walk(inner, f"{name} {own}")


def _command(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    text, _, example = command.help.partition("Example: ")
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    rows = [[f"`{spelling}`", " ".join(text.split())] for spelling, text in records if spelling != "--help"]
    blocks = [f"## {name}", text.strip(), f"```sh\n{usage}\n```", table(["argument", "what it does"], rows)]
    if example:
        blocks.insert(3, f"For example:\n\n```sh\n{example.strip()}\n```")
    return "\n\n".join(blocks)


# Options


def options() -> str:
    """Return a section for every part of the configuration with its options."""
    from unflip.nn import networks  # not at the top: it imports torch, which most parts do without
    from unflip.runs.options import Common

    run = {key: field for key, field in Common.model_fields.items() if key not in ("data", "noise", "optimizer")}
    blocks = [f"## A run\n\n{_options('', run)}"]
    for section in ("data", "noise", "optimizer"):
        kind = cast("Any", Common.model_fields[section].annotation)
        blocks.append(f"## {section}\n\n{kind.__doc__}\n\n{_options(section, kind.model_fields)}")
    for section, kind, users in method_sections():
        text = f"Options of {', '.join(f'`{name}`' for name in users)}."
        blocks.append(f"## {section}\n\n{text}\n\n{_options(section, kind.model_fields, users[0])}")
    for name in networks.names():
        fields = networks.load("timm:resnet18" if name == "timm" else name).Options.model_fields
        if fields:
            blocks.append(f"## {name}\n\nOptions of `--network {name}`.\n\n{_options(name, fields)}")
    return "\n\n".join(blocks)


def method_sections() -> list[tuple[str, Any, list[str]]]:
    """Return the sections that methods read: name, options, and the methods."""

    found: dict[str, tuple[Any, list[str]]] = {}
    for name in methods.names():
        for section, kind in find_method(name).sections.items():
            if kind.model_fields:
                found.setdefault(section, (kind, []))[1].append(name)
    return [(section, kind, users) for section, (kind, users) in found.items()]


def _options(section: str, fields: Mapping[str, Any], method: str | None = None) -> str:
    from unflip.methods.base import RunShape

    lr = cast("float", "optimizer.lr")
    shape = RunShape(1000, lr, of_rows=True)  # shows which defaults are the run's learning rate
    usual = find_method(method).options_for(shape).get(section, {}) if method else {}
    rows = [
        [
            f"`{section}.{key}`" if section else f"`{key}`",
            f"`{lr}`" if usual.get(key) == lr else _default(field),
            _allowed(field),
            " ".join((field.description or "").split()),
        ]
        for key, field in fields.items()
    ]
    return table(["`--set` key", "default", "allowed", "meaning"], rows)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    if field.default is None:  # its description explains it
        return "—"
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _allowed(field: Any) -> str:
    """Return what a value may be, such as ``number in [0, 1)``."""
    return _kind(field.annotation, list(field.metadata))


def _kind(annotation: Any, limits: Iterable[Any] = (), plural: str = "") -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is Annotated:
        return _kind(inner[0], [*limits, *_limits(inner[1:])], plural)
    if origin in (Union, UnionType):
        return " or ".join(_kind(kind, limits) for kind in inner if kind is not NoneType)
    if origin is tuple:
        return f"list of {_kind(inner[0], plural='s')}"
    name = {int: "integer", float: "number", bool: "true or false", str: "string"}[annotation]
    return f"{name}{plural} {_range(limits)}".strip()


def _limits(metadata: Iterable[Any]) -> Iterator[Any]:
    for limit in metadata:
        yield from getattr(limit, "metadata", None) or [limit]


def _range(limits: Iterable[Any]) -> str:
    """Return the range of a number: an interval, or a comparison if it has one end."""
    ends: dict[str, str] = {}
    for limit in limits:
        for sign in ("gt", "ge", "lt", "le"):
            if (value := getattr(limit, sign, None)) is not None:
                ends[sign] = "2^63" if value == 2**63 else f"{value:g}" if isinstance(value, float) else f"{value}"
    low, high = ({sign: ends[sign] for sign in pair if sign in ends} for pair in (("gt", "ge"), ("lt", "le")))
    if low and high:
        left, right = "(" if "gt" in low else "[", ")" if "lt" in high else "]"
        return f"in {left}{', '.join([*low.values(), *high.values()])}{right}"
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return " ".join(f"{signs[sign]} {value}" for sign, value in (low | high).items())


# Methods


_GROUPS = {
    "CIFAR-10, 35%": ("1", "CIFAR-10", "35%"),
    "CIFAR-10, 70%": ("1", "CIFAR-10", "70%"),
    "CIFAR-10, 35% and symmetric": ("2", "CIFAR-10", " sym."),
    "CIFAR-10, 35% and asymmetric": ("2", "CIFAR-10", "asym."),
    "CIFAR-100, 35%": ("1", "CIFAR-100", "35%"),
    "CIFAR-100, 70%": ("1", "CIFAR-100", "70%"),
    "CIFAR-100, 35% and symmetric": ("2", "CIFAR-100", " sym."),
    "CIFAR-100, 35% and asymmetric": ("2", "CIFAR-100", "asym."),
}
"""Groups of settings: their table in the paper, their data, and the suffix of their noise's name."""


def figures(*names: str) -> str:
    """Return test accuracy by groups of settings, right labels and quality, for some methods side by side."""
    rows = [
        [f"{group} ({len(_rows(group, names))})", *(_mean(_rows(group, names), name) for name in names)]
        for group in _GROUPS
    ]
    for title, show in (("correct labels", "labels"), ("area under the ROC curve of label scores", "quality")):
        compared = _compare("1", show, names)
        rows.append([f"{title}, PMD noise (12)", *(_text(number) for number in compared.mean().values())])
    return table(["means, percent", *(f"`{name}`" for name in names)], rows)


def gains() -> str:
    """Return what calibration adds to `plc` under noise of types I, II and III, ours beside the paper's Table 5."""
    compared = compare(paper_table("5"), _results())
    rows = []
    for group, (number, data, noise) in _GROUPS.items():
        found = [row for row in compared.rows if row.where["data"] == data and row.where["noise"].endswith(noise)]
        if number == "1":
            sides = [[getattr(row, side) for row in found] for side in ("ours", "paper")]
            rows.append([group, *(_gains(cells, name) for name in ("mddc", "cddc") for cells in sides)])
    return table(["points above PLC, types I, II, III", "MDDC, ours", "paper", "CDDC, ours", "paper"], rows)


def _gains(cells: Sequence[Mapping[str, Number]], name: str) -> str:
    return ", ".join(f"{float(numbers[name].mean - numbers['plc'].mean):+.1f}" for numbers in cells)


def _rows(group: str, names: Sequence[str]) -> list[Any]:
    number, data, noise = _GROUPS[group]
    compared = _compare(number, "selected", tuple(names))
    return [row for row in compared.rows if row.where["data"] == data and row.where["noise"].endswith(noise)]


def _mean(rows: Sequence[Any], name: str) -> str:
    found = [row.ours[name].mean for row in rows if row.ours[name]]
    return f"{sum(found) / len(found):.2f}" if len(found) == len(rows) else "—"


def _text(number: Number | None) -> str:
    return "—" if number is None else str(number.mean)


@cache
def _compare(number: str, show: str, names: Sequence[str]) -> Comparison:
    return compare(paper_table(number), _results(), show=show, methods=list(names))


@cache
def _results() -> list[Line]:
    return read_results([DOCS / "results" / "features.jsonl"])


def method_list() -> str:
    """Return every registered method with its line, and a link to its section of docs/methods.md."""
    ours = [entry for entry in methods if entry.target.startswith("unflip.")]  # not those of other packages
    rows = [[f"[`{entry.name}`](#{anchor(entry.name)})", entry.summary] for entry in ours]
    return table(["method", "what it does"], rows)


def anchor(method: str) -> str:
    """Return the anchor of a method's section in docs/methods.md."""
    name = method.rstrip("+")
    return "calibration" if name in ("mddc", "cddc") or name.endswith(("-m", "-c")) else name


def grids() -> str:
    """Return every grid of the package with its line."""
    rows = [[f"`{name}`", grid_text(name).partition("\n")[0].lstrip("# ")] for name in grid_names()]
    return table(["grid", "what it is"], rows)


def result() -> str:
    """Return the keys of result.json, from its schema."""
    properties = json.loads((DOCS / "result.schema.json").read_text("utf-8"))["properties"]
    return table(["key", "content"], [[f"`{key}`", value["description"]] for key, value in properties.items()])


def source(path: str) -> str:
    """Return a file of the repository, for readers who are not online."""
    return f"```python\n{(ROOT / path).read_text('utf-8')}```"


_PARTS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "options": options,
    "figures": figures,
    "gains": gains,
    "methods": method_list,
    "grids": grids,
    "result": result,
    "source": source,
}


if __name__ == "__main__":
    for path in PAGES:
        text = path.read_text("utf-8")
        if (filled := fill(text)) != text:
            path.write_text(filled, "utf-8")
            print(path)
