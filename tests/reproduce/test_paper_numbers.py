"""The paper's numbers: all of them, as printed, and compared with the paper's source where that is at hand."""

import os
import re
from decimal import Decimal
from pathlib import Path

import pytest

from unflip.errors import ConfigError
from unflip.methods import find_method
from unflip.nn import networks
from unflip.reproduce.tables import Number, best_two, paper_table, paper_tables

CIFAR10 = {"data": "CIFAR-10"}
SHAPES = {"1": (12, 7), "2": (18, 7), "3": (3, 8), "4": (3, 3), "5": (12, 3), "6": (12, 3)}


def test_every_table_has_all_its_cells() -> None:
    assert {name: (len(table.rows), len(table.methods)) for name, table in paper_tables().items()} == SHAPES
    for table in paper_tables().values():
        assert all(list(row.cells) == list(table.methods) for row in table.rows)


def test_every_cell_has_what_its_table_prints() -> None:
    for name, table in paper_tables().items():
        for row in table.rows:
            for method, number in row.cells.items():
                assert (number.deviation is not None) == (name not in "34")
                assert (number.gain is not None) == (name in "56" and method != "plc")
                assert 20 < number.mean < 90


@pytest.mark.parametrize(
    ("table", "where", "method", "number"),
    [
        ("1", {"data": "CIFAR-10", "noise": "I 35%"}, "standard", ("78.11", "0.74", None)),
        ("1", {"data": "CIFAR-100", "noise": "III 70%"}, "coteaching+", ("35.37", "2.65", None)),
        ("2", {"data": "CIFAR-10", "noise": "II 35% + 60% sym."}, "cddc", ("72.37", "0.22", None)),
        ("2", {"data": "CIFAR-100", "noise": "III 35% + 30% asym."}, "mddc", ("62.23", "0.24", None)),
        ("3", {"data": "WebVision", "test": "imagenet"}, "plc", ("62.74", None, None)),
        ("3", {"data": "Clothing1M"}, "cddc", ("74.43", None, None)),
        ("4", {"data": "WebVision", "test": "webvision"}, "dividemix-m", ("77.45", None, None)),
        ("5", {"data": "CIFAR-10", "noise": "II 35%"}, "mddc", ("80.73", "0.19", "-0.81")),
        ("6", {**CIFAR10, "network": "wrn_40_2", "noise": "I 35% + 60% sym."}, "mddc", ("68.79", "0.09", "-2.11")),
    ],
)  # fmt: skip
def test_single_numbers(
    table: str, where: dict[str, str], method: str, number: tuple[str, str | None, str | None]
) -> None:
    (row,) = [row for row in paper_table(table).rows if row.where == where]
    mean, deviation, gain = (None if text is None else Decimal(text) for text in number)
    assert mean is not None
    assert row.cells[method] == Number(mean, deviation, gain)


def test_the_printed_digits_are_kept() -> None:
    assert str(paper_table("1").rows[1].cells["mddc"].mean) == "43.70"


def test_methods_and_networks_are_ours_too() -> None:
    for table in paper_tables().values():
        for method in table.methods:
            find_method(method)
        for row in table.rows:
            assert "network" not in row.where or row.where["network"] in networks


def contradictions_slow() -> dict[tuple[str, int, str], str]:
    """Return the cells that the paper contradicts elsewhere, by table, row (from 0) and method.

    A contradiction is a setting printed with different numbers in two tables, or a printed gain that is not the
    difference of the printed means.
    """
    reasons: dict[tuple[str, int, str], list[str]] = {}
    printed: dict[tuple[object, ...], list[tuple[tuple[str, int, str], Number]]] = {}
    for table in paper_tables().values():
        for place, row in enumerate(table.rows):
            for method, number in row.cells.items():
                key = (table.name, place, method)
                printed.setdefault((*sorted(row.where.items()), method), []).append((key, number))
                difference = number.mean - row.cells[table.baseline].mean if table.baseline else None
                if number.gain is not None and number.gain != difference:
                    reasons[key] = [f"prints {number.gain:+} where the means differ by {difference:+}"]
    for cells in printed.values():
        for key, number in cells:
            for (other, *_), same in cells:
                if (same.mean, same.deviation) != (number.mean, number.deviation):
                    reasons.setdefault(key, []).append(f"Table {other} prints {same.mean} ± {same.deviation}")
    return {key: "; ".join(texts) for key, texts in reasons.items()}


def test_contradictions_are_marked_where_they_are() -> None:
    found = contradictions_slow()
    tables = paper_tables().values()
    marked = {
        (table.name, place, method): text
        for table in tables
        for place, row in enumerate(table.rows)
        for method, text in row.doubts.items()
    }
    assert marked == found
    assert marked["5", 4, "mddc"] == "prints +0.80 where the means differ by +0.84; Table 1 prints 82.02 ± 0.23"
    assert len(marked) == 14


@pytest.mark.parametrize("name", ["1", "table1", "Table 1"])
def test_a_table_has_several_names(name: str) -> None:
    assert paper_table(name).name == "1"


def test_an_unknown_table_says_which_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown table '7'; choose from: 1, 2, 3, 4, 5, 6"):
        paper_table("7")


# The paper's source


@pytest.mark.skipif("UNFLIP_PAPER" not in os.environ, reason="UNFLIP_PAPER does not name the paper's ddc.tex")
def test_every_number_is_the_papers() -> None:
    tables = re.findall(
        r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", Path(os.environ["UNFLIP_PAPER"]).read_text(), re.S
    )
    assert len(tables) == len(SHAPES)
    for name, text in zip(SHAPES, tables, strict=True):
        printed = [[_cell(cell) for cell in line] for line in _lines(text)]
        if name in "34":  # printed with a line a method
            printed = [list(column) for column in zip(*printed, strict=True)]
        table = paper_table(name)
        kept = [[(str(n.mean), n.deviation and str(n.deviation), n.gain and str(n.gain)) for n in row.cells.values()]
                for row in table.rows]  # fmt: skip
        assert kept == [[(mean, deviation, gain) for mean, deviation, gain, _ in line] for line in printed], name
        if table.baseline is None:
            bold = [{m for m, cell in zip(table.methods, line, strict=True) if cell[3]} for line in printed]
            assert bold == [best_two(row.cells) for row in table.rows], name


@pytest.mark.skipif("UNFLIP_PAPER" not in os.environ, reason="UNFLIP_PAPER does not name the paper's ddc.tex")
def test_every_row_is_the_papers() -> None:
    tables = re.findall(
        r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", Path(os.environ["UNFLIP_PAPER"]).read_text(), re.S
    )
    for name in "1256":
        rows = re.findall(
            r"romannumeral(\d)\}\}\$\s*(?:\((\d+)|\+\s*(\d+)\\%\s*(\w+))", tables[int(name) - 1].split(r"\hline", 1)[1]
        )
        kinds = {"1": "I", "2": "II", "3": "III"}
        noise = [
            f"{kinds[kind]} {alone}%" if alone else f"{kinds[kind]} 35% + {level}% {what.lower()}."
            for kind, alone, level, what in rows
        ]
        assert [row.where["noise"] for row in paper_table(name).rows] == noise


def _lines(text: str) -> list[list[str]]:
    lines = []
    for line in text.split(r"\\"):
        cells = [cell for cell in line.split("&") if re.search(r"\d\d\.\d\d", cell)]
        if cells:
            lines.append(cells)
    return lines


def _cell(text: str) -> tuple[str, str | None, str | None, bool]:
    text = text.replace(" ", "")
    match = re.search(r"(\d\d\.\d\d)(?:\$\\pm\$(\d+\.\d\d))?", text)
    gain = re.search(r"\\(up|down)arrow(\d+\.\d\d)", text)
    assert match
    signed = None if gain is None else ("-" if gain[1] == "down" else "") + gain[2]
    return match[1], match[2], signed, "textbf" in text
