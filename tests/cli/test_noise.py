"""What `corrupt` prints: every number whole, whatever the names of the classes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from helpers import Outcome, blobs, write_npz
from unflip.cli.train import print_noise
from unflip.noise.transition import NoiseProfile, measure_noise

Cli = Callable[..., Outcome]


def noisy(count: int, examples: int = 4000) -> NoiseProfile:
    draws = torch.Generator().manual_seed(count)
    clean = torch.arange(examples) % count
    other = torch.randint(0, count, (examples,), generator=draws)
    return measure_noise(clean, torch.where(torch.rand(examples, generator=draws) < 0.4, other, clean), count)


@pytest.mark.parametrize("name", ["", "a class with a rather long name ", "長い名前の猫", "[red]\x1b[31m:cat: "])
@pytest.mark.parametrize("count", [2, 10, 30])
def test_the_numbers_are_those_that_were_measured_and_none_is_cut(
    count: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = noisy(count)
    print_noise(measured, [f"{name}{i}" for i in range(count)])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f"noise rate {measured.rate:.4f} over 4000 labels, {count} classes")
    rows = [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
    rates = measured.class_rates.sort(descending=True, stable=True)[0][:20] if count > 20 else measured.class_rates
    for row, rate in zip(rows, rates, strict=True):
        assert row[3] == f"{float(rate):.3f}"
    if count == 2 and not name:
        wrong = [measured.matrix[0, 1], measured.matrix[1, 0]]
        assert [row[4].split()[-1] for row in rows] == [f"{float(x):.2f}" for x in wrong]


def test_classes_without_noise_or_examples_have_a_row_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_noise(measure_noise(torch.tensor([0, 0, 2, 2]), torch.tensor([0, 0, 2, 0]), 4), list("abcd"))
    rows = [line.split()[1:6:2] for line in capsys.readouterr().out.splitlines()[3:]]
    assert rows == [["a", "2", "0.000"], ["b", "0", "0.000"], ["c", "2", "0.500"], ["d", "0", "0.000"]]


def test_corrupt_prints_what_it_made(cli: Cli, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "d.npz", **blobs(classes=10, columns=10, train=300))
    done = cli("corrupt", "--data", data, "--noise", "sym:0.4", "--out", tmp_path / "l.csv")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 3 + 10 + 1
