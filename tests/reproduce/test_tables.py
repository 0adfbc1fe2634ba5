"""Tables from made-up results: means, deviations, marks, missing cells, errors."""

import re
import tomllib
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from helpers import Outcome, result_line, spawn_python, write_results
from unflip.errors import ConfigError, InputError
from unflip.reproduce.grids import grid_text
from unflip.reproduce.table_text import render
from unflip.reproduce.tables import (
    ComparedRow,
    Number,
    all_methods,
    best_two,
    compare,
    paper_table,
    read_results,
    select_results,
)

Cli = Callable[..., Outcome]
FIRST = {"data": "CIFAR-10", "noise": "I 35%"}
SEVEN = ("standard", "coteaching+", "gce", "sl", "lrt", "mddc", "cddc")


def seeds(method: str, accuracies: Sequence[float], where: dict[str, Any] = FIRST, **more: Any) -> list[dict[str, Any]]:
    return [
        result_line({**where, "method": method, "seed": s}, accuracy, **more) for s, accuracy in enumerate(accuracies)
    ]


def full_row(where: dict[str, Any] = FIRST) -> list[dict[str, Any]]:
    """Seven methods, three seeds: 0.70, 0.71, ... in the table's order, so that mddc and cddc are the best two."""
    return [
        line
        for n, m in enumerate(SEVEN)
        for line in seeds(m, [0.69 + 0.01 * n, 0.70 + 0.01 * n, 0.71 + 0.01 * n], where)
    ]


def ours(row: ComparedRow, method: str) -> Number:
    """Our number in a row, which must not be missing."""
    number = row.ours[method]
    assert number is not None
    return number


def test_mean_and_deviation_over_seeds() -> None:
    row = compare(paper_table("1"), seeds("gce", [0.80, 0.81, 0.83])).rows[0]
    assert row.ours["gce"] == Number(Decimal("81.33"), Decimal("1.53"), None, 3)
    assert row.paper["gce"] == Number(Decimal("80.65"), Decimal("0.39"))
    assert row.difference("gce") == Decimal("0.68")


def test_one_seed_has_no_deviation_and_says_so() -> None:
    comparison = compare(paper_table("1"), seeds("gce", [0.8]))
    assert comparison.rows[0].ours["gce"] == Number(Decimal("80.00"), None, None, 1)
    text = render(comparison)
    assert "80.00 (1)" in text
    assert "(n): mean over n seeds, fewer than 3." in text


def test_missing_cells_are_shown_as_missing() -> None:
    comparison = compare(paper_table("1"), seeds("gce", [0.80, 0.81, 0.83]))
    assert comparison.rows[0].ours["sl"] is None
    assert comparison.rows[0].difference("sl") is None
    text = render(comparison)
    assert "—: missing, 83 of our 84 cells." in text
    assert text.count("—") > 2 * 83


def test_unknown_accuracy_is_missing() -> None:
    lines = [*seeds("gce", [0.8]), result_line({**FIRST, "method": "sl", "seed": 0}, None)]
    assert compare(paper_table("1"), lines).rows[0].ours["sl"] is None


def test_the_best_two_and_their_equals() -> None:
    def numbers(*means: str) -> dict[str, Number | None]:
        return {str(place): Number(Decimal(mean)) if mean else None for place, mean in enumerate(means)}

    assert best_two(numbers("3.00", "1.00", "2.00")) == {"0", "2"}
    assert best_two(numbers("3.00", "2.00", "2.00", "1.00")) == {"0", "1", "2"}
    assert best_two(numbers("3.00", "2.00", "", "1.00")) == {"0", "1"}
    assert best_two(numbers("3.00", "2.00", "")) == set()


def test_the_best_two_are_bold() -> None:
    text = render(compare(paper_table("1"), full_row()))
    assert "**76.00 ± 1.00**" in text
    assert "**75.00 ± 1.00**" in text
    assert "**74.00 ± 1.00**" not in text


def test_gains_over_the_baseline() -> None:
    lines = [*seeds("plc", [0.80, 0.82]), *seeds("mddc", [0.81, 0.82]), *seeds("cddc", [0.7, 0.8])]
    row = compare(paper_table("5"), lines).rows[0]
    gains = [ours(row, method).gain for method in ("plc", "mddc", "cddc")]
    assert gains == [None, Decimal("0.50"), Decimal("-6.00")]
    text = render(compare(paper_table("5"), lines))
    assert "81.50 ± 0.71 ↑ 0.50 (2)" in text
    assert "75.00 ± 7.07 ↓ 6.00 (2)" in text
    assert "Mean gain of MDDC over PLC: ours +0.50 (1 row), paper +1.30 (12 rows)." in text


def test_the_claim_is_counted_over_complete_rows() -> None:
    second = {"data": "CIFAR-10", "noise": "I 70%"}
    lines = [*full_row(), *seeds("mddc", [0.9, 0.9, 0.9], second), *seeds("unflip", [0.99, 0.99, 0.99])]
    methods = all_methods(paper_table("1"), lines)
    assert methods == [*SEVEN, "unflip"]
    text = render(compare(paper_table("1"), lines, methods=methods))
    assert "MDDC and CDDC are the best two of the original 7 methods: ours 1 of 1, paper 11 of 12." in text
    assert "**99.00 ± 0.00**" in text  # while marks are among what is shown


def test_only_the_selected_methods_are_shown() -> None:
    comparison = compare(paper_table("1"), full_row(), methods=["cddc", "gce"])
    assert list(comparison.rows[0].ours) == ["cddc", "gce"]


def test_the_caption_says_how_results_came_about() -> None:
    text = render(compare(paper_table("1"), full_row()))
    assert "Ours, CIFAR-10: network mlp, 15 epochs, test accuracy of the epoch selected by noisy-val." in text
    last = render(compare(paper_table("1"), full_row(), show="last"))
    assert "test accuracy of the last epoch." in last
    best = render(compare(paper_table("1"), full_row(), show="best"))
    assert "(uses the truth: test labels)" in best


def test_a_protocol_that_uses_the_truth_is_shown() -> None:
    protocol = "best-test (uses the truth: test labels)"
    text = render(compare(paper_table("1"), seeds("gce", [0.8], protocol=protocol)))
    assert f"selected by {protocol}" in text


def test_which_accuracy_is_taken() -> None:
    line = result_line({**FIRST, "method": "gce", "seed": 0}, 0.8)
    line["test_accuracy"] = {"selected": 0.8, "last": 0.7, "best": 0.9}
    means = [
        compare(paper_table("1"), [line], show=which).rows[0].ours["gce"] for which in ("selected", "last", "best")
    ]
    assert [str(number.mean) for number in means if number] == ["80.00", "70.00", "90.00"]


def test_labels_and_quality_are_shown_without_the_paper() -> None:
    lines = seeds("gce", [0.8, 0.8], label_accuracy={"given": 0.65, "current": 0.9}, quality_auroc=0.75)
    lines += [result_line({**FIRST, "method": "sl", "seed": 0}, 0.8, label_accuracy=None, quality_auroc=None)]
    labels = compare(paper_table("1"), lines, show="labels")
    assert labels.rows[0].ours["gce"] == Number(Decimal("90.00"), Decimal("0.00"), None, 2)
    assert labels.rows[0].ours["sl"] is None
    text = render(labels)
    assert text.startswith("Table 1. Correct training labels after the last epoch (%) under PMD noise.\n")
    assert "Ours, CIFAR-10: network mlp, 15 epochs.\n" in text
    assert "paper" not in text.lower()
    assert "75.00 ± 0.00" in render(compare(paper_table("1"), lines, show="quality"))


def test_methods_are_compared_by_their_own_score_where_a_line_has_it() -> None:
    """Older lines have one figure for both."""
    lines = [
        *seeds("gce", [0.8], quality_auroc=0.75, score_auroc=0.85),
        *seeds("sl", [0.8], quality_auroc=0.65),
        *seeds("lrt", [0.8], quality_auroc=0.95, score_auroc=None),
    ]
    ours = compare(paper_table("1"), lines, show="quality").rows[0].ours
    means = {name: number and str(number.mean) for name, number in ours.items()}
    assert (means["gce"], means["sl"], means["lrt"]) == ("85.00", "65.00", None)


def test_ours_alone_has_a_line_a_setting() -> None:
    text = render(compare(paper_table("1"), full_row(), sides=("ours",)))
    assert re.search(r"^\| CIFAR-10 +\| I 35% +\| 70\.00 ± 1\.00 +\| 71\.00 ± 1\.00 +\|", text, re.MULTILINE)
    assert "83.12" not in text
    assert "paper" not in text.lower()
    assert "†" not in text


def test_the_mean_is_over_all_rows_and_only_of_methods_that_have_them() -> None:
    table = paper_table("1")
    lines = seeds("sl", [0.9])
    for place, row in enumerate(table.rows):
        lines += seeds("gce", [0.50 + 0.01 * place, 0.52 + 0.01 * place], dict(row.where))
    comparison = compare(table, lines)
    assert comparison.mean() == dict.fromkeys(SEVEN) | {"gce": Number(Decimal("56.50"))}
    assert re.search(r"^\| mean +\| +\| ours +\| — +\| — +\| 56\.50 +\| —", render(comparison), re.MULTILINE)
    assert "| mean " not in render(compare(table, seeds("sl", [0.9])))


def test_the_mean_gain_is_in_the_mean_row() -> None:
    table = paper_table("5")
    lines = [
        line for row in table.rows for method, accuracy in (("plc", 0.5), ("mddc", 0.6))
        for line in seeds(method, [accuracy], dict(row.where))
    ]  # fmt: skip
    text = render(compare(table, lines, sides=("ours",)))
    assert re.search(r"^\| mean +\| +\| 50\.00 +\| 60\.00 ↑ 10\.00 +\| — +\|$", text, re.MULTILINE)


def test_data_sets_may_differ_in_their_protocol() -> None:
    other = {"data": "CIFAR-100", "noise": "I 35%"}
    comparison = compare(paper_table("1"), [*seeds("gce", [0.8]), *seeds("gce", [0.6], other, epochs=180)])
    assert comparison.protocols["CIFAR-100"]["epochs"] == 180


@pytest.mark.parametrize("change", [{"epochs": 30}, {"network": "mlp2"}, {"protocol": "last"}])
def test_mixed_protocols_are_refused(change: dict[str, Any]) -> None:
    (key, value), *_ = change.items()
    with pytest.raises(ConfigError, match=rf"CIFAR-10 mixes {key} .* \(2\) and {key} {value} \(1\).*--where {key}="):
        compare(paper_table("1"), [*seeds("gce", [0.8, 0.8]), *seeds("sl", [0.8], **change)])


def test_unflip_may_have_its_own_number_of_epochs_which_is_noted_and_no_two() -> None:
    lines = [*seeds("gce", [0.8, 0.8]), *seeds("unflip", [0.8], epochs=10)]
    comparison = compare(paper_table("1"), lines, methods=["gce", "unflip"])
    assert "15 epochs (unflip: 10), test accuracy" in render(comparison)
    with pytest.raises(ConfigError, match=r"CIFAR-10, unflip mixes epochs 10 \(1\) and epochs 12"):
        compare(paper_table("1"), [*lines, *seeds("unflip", [0.7], epochs=12)], methods=["gce", "unflip"])


def test_two_cells_for_one_place_are_refused() -> None:
    lines = [*seeds("gce", [0.8]), *seeds("gce", [0.9])]
    with pytest.raises(ConfigError, match=r"CIFAR-10 I 35%, gce, seed 0 has two cells; .*--where"):
        compare(paper_table("1"), lines)


def test_results_of_other_grids_are_skipped_unless_their_axis_is_fixed(tmp_path: Path) -> None:
    lines = seeds("cddc", [0.8])
    for alpha in (0.1, 0.2):
        lines += seeds("cddc", [0.5 + alpha], {**FIRST, "covariance.disturbance": alpha})
    table = paper_table("1")
    assert str(ours(compare(table, lines).rows[0], "cddc").mean) == "80.00"
    file = write_results(tmp_path / "r.jsonl", lines)
    selected, fixed = select_results([file], ["covariance.disturbance=0.1"])
    comparison = compare(table, selected, fixed=fixed)
    assert str(ours(comparison.rows[0], "cddc").mean) == "60.00"


def test_networks_are_rows_of_table_6_and_no_others() -> None:
    where = {"data": "CIFAR-10", "noise": "I 35% + 30% sym.", "network": "senet18"}
    lines = [
        *seeds("plc", [0.8], where, network="senet18"),
        *seeds("plc", [0.7], {**where, "network": "mobilenet_v2"}, network="mobilenet_v2"),
    ]
    rows = compare(paper_table("6"), lines).rows
    assert [str(ours(rows[place], "plc").mean) for place in (0, 3)] == ["80.00", "70.00"]
    with pytest.raises(ConfigError, match="none of 2 belongs to Table 2"):
        compare(paper_table("2"), lines)


def test_test_sets_are_rows_of_table_3() -> None:
    line = result_line({"data": "WebVision", "method": "plc", "seed": 0}, 0.6)
    line["tests"] = {"test": {"top1": 0.6}, "test-imagenet": {"top1": 0.5}}
    clothing = result_line({"data": "Clothing1M", "method": "plc", "seed": 0}, 0.7)
    comparison = compare(paper_table("3"), [line, clothing])
    assert [str(ours(row, "plc").mean) for row in comparison.rows] == ["60.00", "50.00", "70.00"]
    assert "(1)" not in render(comparison)  # the paper has one too
    with pytest.raises(ConfigError, match="--show last: Table 3 and 4"):
        compare(paper_table("3"), [line], show="last")


# Formats


@pytest.mark.parametrize("name", list("123456"))
def test_a_table_reads_back_as_the_papers_numbers(name: str) -> None:
    table = paper_table(name)
    text = render(compare(table, [], sides=("paper",))).replace("**", "").replace("†", "")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][2:]
    for cells, row in zip(lines, table.rows, strict=True):
        assert [cell.strip() for cell in cells[: len(table.keys)]] == [row.where.get(key, "") for key in table.keys]
        means = [Decimal(cell.split()[0]) for cell in cells[len(table.keys) :]]
        assert means == [number.mean for number in row.cells.values()]


def test_differences_are_ours_less_the_papers() -> None:
    text = render(compare(paper_table("1"), full_row()))
    assert re.search(r"^\| +\| +\| difference +\| -8\.11 ", text, re.MULTILINE)


@pytest.mark.parametrize("name", list("123456"))
def test_markdown_has_as_many_columns_in_every_line(name: str) -> None:
    table = paper_table(name)
    shapes: dict[tuple[str, ...], int] = {("paper",): 1, ("ours",): 1, ("ours", "paper"): 3}
    for sides, lines_a_row in shapes.items():
        text = render(compare(table, [], sides=sides))
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(table.rows) * lines_a_row
        assert len({line.count("|") for line in lines}) == 1


def test_text_is_aligned_in_columns() -> None:
    lines = render(compare(paper_table("1"), full_row())).splitlines()
    start = lines[2].index("GCE")
    assert all(line[start - 2 : start] == "| " and line[start] != " " for line in lines[4:40])


def test_contradictions_are_marked() -> None:
    text = render(compare(paper_table("5"), [], sides=("paper",)))
    assert "47.92 ± 1.28 ↑ 2.06†" in text
    assert "CIFAR-10 III 70% CDDC (prints +2.06 where the means differ by +2.87)" in text


# Results files


def test_a_folder_stands_for_its_file_and_doubles_count_once(tmp_path: Path) -> None:
    file = write_results(tmp_path / "results.jsonl", seeds("gce", [0.8, 0.9]))
    assert len(read_results([tmp_path])) == 2
    assert read_results([tmp_path, file]) == read_results([file])


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"cell": "a"}', b"\xff\xfe"])
def test_a_bad_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"results .*r\.jsonl(, line 1)?: not a result of `unflip paper sweep`"):
        read_results([file])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.jsonl: No such file"):
        read_results([tmp_path / "no.jsonl"])


# The command


def test_the_paper_alone(cli: Cli) -> None:
    done = cli("paper", "table", "table1")
    assert done.code == 0
    assert "Table 1. Test accuracy (%) under PMD noise." in done.out
    assert "ours" not in done.out
    assert "**83.12 ± 0.44**" in done.out


def test_a_table_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['unflip', 'paper', 'table', '1']; from unflip.cli import main\n"
        "try: main()\nfinally: assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    done = spawn_python("-c", code)
    assert done.code == 0, done.err


def test_the_command_shows_selected_results_of_all_methods(cli: Cli, tmp_path: Path) -> None:
    file = write_results(tmp_path / "a.jsonl", [*full_row(), *seeds("unflip", [0.5]), *seeds("gce", [0.1], epochs=99)])
    done = cli("paper", "table", 1, "--results", file, "--where", "epochs=15", "--methods", "all", "--no-paper")
    assert done.code == 0
    row = next(line for line in done.out.splitlines() if line.startswith("| CIFAR-10"))
    assert re.findall(r"(\d\d\.00) ?(?:±|\()", row) == [f"{mean}.00" for mean in (70, 71, 72, 73, 74, 75, 76, 50)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["9"], "unknown table '9'; choose from: 1, 2, 3, 4, 5, 6"),
        (["1", "--show", "lst"], "unknown --show 'lst', did you mean 'last'?"),
        (["1", "--show", "labels"], "--show labels: needs --results; the paper has test accuracies only"),
        (["1", "--no-paper"], "--show selected: needs --results"),
        (["1", "--methods", "gcee"], "unknown --methods 'gcee', did you mean 'gce'?"),
        (["1", "--where", "epochs"], "--where epochs: must be KEY=VALUE"),
        (["1", "--results", "R", "--where", "epoch=15"], "key of --where 'epoch', did you mean 'epochs'?"),
        (["1", "--results", "R"], "CIFAR-10 mixes epochs 15 (2) and epochs 30 (1)"),
        (["4", "--results", "R"], "none of 3 belongs to Table 4"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line(cli: Cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    file = write_results(tmp_path / "r.jsonl", [*seeds("gce", [0.8, 0.8]), *seeds("sl", [0.8], epochs=30)])
    done = cli("paper", "table", *[str(file) if argument == "R" else argument for argument in arguments])
    assert done.code == 2
    assert done.err.startswith("unflip: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert done.out == ""


@pytest.mark.parametrize("kind", ["features", "paper"])
def test_the_grids_of_the_package_name_their_axes_as_the_tables_do(kind: str) -> None:
    for name, data in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        axes = tomllib.loads(grid_text(f"{kind}/{name}"))["axes"]
        rows = [row.where for table in "12" for row in paper_table(table).rows if row.where["data"] == data]
        assert list(axes["data"]) == [data]
        assert set(axes["noise"]) == {where["noise"] for where in rows}
