"""What `corrupt` and `noise inspect` print: every number whole, whatever the width and the names of the classes."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len

from helpers import Outcome, blobs, write_npz
from unflip.cli.noise_table import noise_lines
from unflip.noise.transition import NoiseProfile, measure_noise

Cli = Callable[..., Outcome]
NAMES: dict[str, Callable[[int], list[str] | None]] = {
    "numbers": lambda count: None,
    "short": lambda count: [chr(ord("a") + i % 26) * (1 + i // 26) for i in range(count)],
    "alike": lambda count: [f"a class with a rather long name, number {i}" for i in range(count)],
    "wide": lambda count: ["長い名前の猫" * 4 + str(i) for i in range(count)],
    "markup": lambda count: [f"[red]\x1b[31m:cat: {i}\n" for i in range(count)],
}


def noisy(count: int, examples: int = 4000) -> NoiseProfile:
    draws = torch.Generator().manual_seed(count)
    clean = torch.arange(examples) % count
    other = torch.randint(0, count, (examples,), generator=draws)
    return measure_noise(clean, torch.where(torch.rand(examples, generator=draws) < 0.4, other, clean), count)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_is_cut_and_no_line_too_long(width: int, names: str) -> None:
    for count in range(2, 31):
        measured = noisy(count)
        class_names = NAMES[names](count)
        title, _, heading, *rows = noise_lines(measured, class_names, width)
        assert title == f"noise rate {measured.rate:.4f} over 4000 labels, {count} classes"
        assert heading.split()[:3] == ["class", "examples", "wrong"]
        assert len(rows) == min(count, 20)
        assert all(cell_len(line) <= width and line.isprintable() for line in (heading, *rows))
        firsts = set()
        for row in rows:
            found = re.search(r"^(.+?) +(\d+)  (\d\.\d{3})((?:  ?.*)?)$", row)
            assert found, row
            firsts.add(found[1])
            assert "…" not in row
            assert re.findall(r"\d\.\d{2}(?:,|$| )", found[4]) or found[4].replace(" ", "").strip(".") == ""
        assert len(firsts) == len(rows)


def test_the_numbers_are_those_that_were_measured() -> None:
    measured = noisy(10)
    for width in (60, 80, 200):
        _, _, heading, *rows = noise_lines(measured, None, width)
        for i, row in enumerate(rows):
            first, examples, wrong, *shares = row.replace(",", "").split()
            assert (first, examples) == (str(i), "400")
            assert wrong == f"{float(measured.class_rates[i]):.3f}"
            if width == 60:
                pairs = {int(j): share for j, share in zip(shares[::2], shares[1::2], strict=True)}
                assert i not in pairs
            else:
                pairs = dict(enumerate(shares))
                assert len(pairs) == 10
            assert pairs
            assert all(share == f"{float(measured.matrix[i, j]):.2f}" for j, share in pairs.items())
        assert ("called instead" in heading) == (width == 60)


def test_a_class_that_is_never_wrong_and_an_empty_one_have_a_row_too() -> None:
    clean = torch.tensor([0, 0, 2, 2])
    for width in (20, 80):
        lines = noise_lines(measure_noise(clean, torch.tensor([0, 0, 2, 0]), 4), list("abcd"), width)
        assert [line.split()[:3] for line in lines[3:]] == [
            ["a", "2", "0.000"],
            ["b", "0", "0.000"],
            ["c", "2", "0.500"],
            ["d", "0", "0.000"],
        ]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_corrupt_prints_whole_numbers_where_there_is_no_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = np.array([f"Größe Nº {i}" for i in range(10)])
    data = write_npz(tmp_path / "d.npz", **blobs(classes=10, columns=10, train=300), class_names=names)
    done = cli("corrupt", "--data", data, "--noise", "sym:0.4", "--out", tmp_path / "l.csv")
    assert done.code == 0, done.err
    assert "…" not in done.out
    rows = done.out.splitlines()[3:13]
    assert len(rows) == 10
    assert all(re.search(r" \d+  \d\.\d{3} ", row) and cell_len(row) <= width for row in rows)
