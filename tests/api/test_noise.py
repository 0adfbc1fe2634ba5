"""``unflip corrupt`` and ``unflip train --noise``, through the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unflip
from helpers import Outcome, blobs, write_npz

Cli = Callable[..., Outcome]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "blobs.npz", **blobs(train=600))


@pytest.fixture(scope="module")
def posterior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half sure of the right class, the rest for the next one."""
    labels = blobs(train=600)["train_labels"]
    probs = np.full((600, 3), 0.1, np.float32)
    probs[np.arange(600), labels] = 0.6
    probs[np.arange(600), (labels + 1) % 3] = 0.3
    path = tmp_path_factory.mktemp("posterior") / "eta.npy"
    np.save(path, probs)
    return path


def test_symmetric_labels_come_with_a_record(cli: Cli, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.npy"
    answer = cli("corrupt", "--data", data, "--noise", "sym:0.3", "--out", out)
    assert answer.code == 0, answer.err
    labels, clean = np.load(out), blobs(train=600)["train_labels"]
    record = json.loads((tmp_path / "labels.json").read_text())
    assert record["noise_rate"] == pytest.approx((labels != clean).mean(), abs=1e-6)
    assert record["noise_rate"] == pytest.approx(0.3, abs=0.06)
    assert record["recipe"] == "sym:0.3"
    assert f"Noise rate: {record['noise_rate']:.4f}" in answer.out


def test_pmd_labels_from_given_posteriors_are_repeatable(cli: Cli, data: Path, posterior: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        answer = cli(
            "corrupt", "--data", data, "--noise", "pmd1:0.35", "--posterior", posterior,
            "--out", tmp_path / f"{name}.npy", "--seed", 4,
        )  # fmt: skip
        assert answer.code == 0, answer.err
    one, two = np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy")
    assert (one == two).all()
    clean = blobs(train=600)["train_labels"]
    assert (one != clean).mean() == pytest.approx(0.35, abs=0.005)
    assert set((one - clean)[one != clean] % 3) == {1}


def test_pmd_labels_from_cross_fitted_posteriors(cli: Cli, tmp_path: Path) -> None:
    content = blobs(train=400)
    content["train"] += np.random.default_rng(0).normal(scale=4, size=content["train"].shape).astype(np.float32)
    data = write_npz(tmp_path / "hard.npz", **content)
    kept = tmp_path / "eta.npy"
    answer = cli(
        "corrupt", "--data", data, "--noise", "pmd3:0.4", "--out", tmp_path / "n.csv", "--save-posterior", kept
    )
    assert answer.code == 0, answer.err
    assert np.load(kept).shape == (400, 3)
    lines = (tmp_path / "n.csv").read_text().splitlines()
    assert lines[0] == '"label"'
    assert (np.array(lines[1:], int) != content["train_labels"]).mean() == pytest.approx(0.4, abs=0.005)


def test_a_recipe_laid_over_labels_counts_against_the_truth(cli: Cli, data: Path, tmp_path: Path) -> None:
    clean = blobs(train=600)["train_labels"]
    np.save(tmp_path / "first.npy", np.where(np.arange(600) < 120, (clean + 1) % 3, clean))
    out = tmp_path / "second.csv"
    answer = cli("corrupt", "--data", data, "--labels", tmp_path / "first.npy", "--noise", "sym:0.5", "--out", out)
    assert answer.code == 0, answer.err
    record = json.loads(out.with_suffix(".json").read_text())
    labels = np.array(out.read_text().split()[1:], int)
    assert record["noise_rate"] == pytest.approx((labels != clean).mean(), abs=1e-6)
    assert record["noise_rate"] > 0.5


def test_a_map_by_class_names_from_a_file(cli: Cli, tmp_path: Path) -> None:
    content = blobs(train=300)
    names = np.array(["ant", "bee", "cat"])
    data = write_npz(tmp_path / "named.npz", **content, class_names=names)
    (tmp_path / "map.json").write_text('{"ant": "bee"}')
    answer = cli(
        "corrupt",
        "--data",
        data,
        "--noise",
        "asym:0.5",
        "--class-map",
        tmp_path / "map.json",
        "--out",
        tmp_path / "l.npy",
    )
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "l.json").read_text())["classes"] == names.tolist()
    labels = np.load(tmp_path / "l.npy")
    wrong = labels != content["train_labels"]
    assert set(content["train_labels"][wrong]) == {0}
    assert set(labels[wrong]) == {1}


def test_training_with_a_recipe_makes_the_labels_that_corrupt_makes(cli: Cli, data: Path, tmp_path: Path) -> None:
    assert cli("corrupt", "--data", data, "--noise", "pair:0.2", "--seed", 3, "--out", tmp_path / "l.npy").code == 0
    answer = cli(
        "train", "--data", data, "--noise", "pair:0.2", "--seed", 3, "--epochs", 1, "--out", tmp_path / "run", "-q"
    )
    assert answer.code == 0, answer.err
    import pyarrow.parquet

    given = pyarrow.parquet.read_table(tmp_path / "run" / "labels.parquet")["given_label"].to_numpy()
    assert (given == np.load(tmp_path / "l.npy")).all()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    record = json.loads((tmp_path / "run" / "noise.json").read_text())
    assert result["noise"] == "pair:0.2"
    assert result["noise_rate"] == pytest.approx(record["noise_rate"], abs=1e-6)


def _bad_posteriors() -> dict[str, tuple[np.ndarray, str]]:
    good = np.full((600, 3), 1 / 3, np.float32)
    negative, total, nan = good.copy(), good.copy(), good.copy()
    negative[7] = [-0.5, 1.0, 0.5]
    total[8, 0] = 0.9
    nan[9, 1] = np.nan
    return {
        "negative": (negative, "row 7"),
        "sum": (total, "row 8"),
        "nan": (nan, "row 9"),
        "rows": (good[:10], "600"),
        "classes": (good[:, :2] * 1.5, "3"),
    }


@pytest.mark.parametrize("kind", ["negative", "sum", "nan", "rows", "classes"])
def test_bad_posteriors_are_refused(cli: Cli, data: Path, tmp_path: Path, kind: str) -> None:
    array, message = _bad_posteriors()[kind]
    np.save(tmp_path / "eta.npy", array)
    answer = cli(
        "corrupt",
        "--data",
        data,
        "--noise",
        "pmd1:0.3",
        "--posterior",
        tmp_path / "eta.npy",
        "--out",
        tmp_path / "l.npy",
    )
    _refused(answer, message)
    assert {path.name for path in tmp_path.iterdir()} == {"eta.npy"}


@pytest.mark.parametrize(
    ("noise", "options", "message"),
    [
        ("sym:1.5", [], "1.5"),
        ("sym:0", [], "sym:0"),
        ("sym", [], "level"),
        ("pmd1:0.3 + foo:0.2", [], "unknown step 'foo'"),
        ("sym:0.3 + pmd1:0.2", [], "must be the first step"),
        ("asym:0.3", [], "class map"),
        ("asym:0.3", ["--class-map", "cifar11"], "did you mean 'cifar10'"),
        ("asym:0.3", ["--class-map", "map.json"], "zebra"),
        ("matrix", [], "matrix"),
        ("matrix", ["--matrix", "square.npy"], "3"),
        ("matrix", ["--matrix", "sums.npy"], "row 1"),
        ("pmd1:0.3", ["--posterior", "nope.npy"], "nope.npy"),
        ("pmd1:0.3", ["--posterior", "in-sampel"], "in-sampel"),
        ("sym:0.3", ["--labels", "nope.npy"], "nope.npy"),
        ("sym:0.3", ["--limit", "601"], "600"),
    ],
)
def test_bad_recipes_and_files_are_refused(
    cli: Cli, data: Path, tmp_path: Path, noise: str, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("square.npy", np.full((2, 3), 1 / 3))
    np.save("sums.npy", np.array([[1, 0, 0], [0.5, 0.4, 0], [0, 0, 1.0]]))
    Path("map.json").write_text('{"zebra": 1}')
    before = {path.name for path in tmp_path.iterdir()}
    _refused(cli("corrupt", "--data", data, "--noise", noise, "--out", "l.npy", *options), message)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_level_that_cannot_be_reached_says_which_can(cli: Cli, data: Path, posterior: Path, tmp_path: Path) -> None:
    answer = cli(
        "corrupt", "--data", data, "--noise", "pmd1:0.9999999", "--posterior", posterior, "--out", tmp_path / "l.npy"
    )
    _refused(answer, "reach")


@pytest.mark.parametrize("out", ["labels.xyz", "nowhere/labels.npy"])
def test_bad_targets_are_refused(cli: Cli, data: Path, tmp_path: Path, out: str) -> None:
    _refused(cli("corrupt", "--data", data, "--noise", "sym:0.3", "--out", tmp_path / out), "--out")


def test_files_that_are_there_are_not_overwritten(cli: Cli, data: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text("mine")
    _refused(cli("corrupt", "--data", data, "--noise", "sym:0.3", "--out", tmp_path / "labels.npy"), "--force")
    assert (tmp_path / "labels.json").read_text() == "mine"
    assert cli("corrupt", "--data", data, "--noise", "sym:0.3", "--out", tmp_path / "labels.npy", "--force").code == 0


def _refused(answer: Outcome, message: str) -> None:
    assert answer.code == 2, answer
    assert answer.err.startswith("unflip: ")
    assert answer.err.count("\n") == 1
    assert message in answer.err


def test_python_makes_the_same_labels_as_the_command(cli: Cli, data: Path, tmp_path: Path) -> None:
    made = unflip.corrupt(data, "sym:0.3", tmp_path / "python.npy", seed=3, device="cpu")
    assert cli("corrupt", "--data", data, "--noise", "sym:0.3", "--out", tmp_path / "c.npy", "--seed", "3").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "python.npy"), np.load(tmp_path / "c.npy"))
    assert made.noise_rate == pytest.approx(0.3, abs=0.06)


def test_noise_over_labels_whose_truth_is_unknown_is_measured_against_them(
    cli: Cli, data: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.load(data)["train"])
    np.save(tmp_path / "y.npy", np.load(data)["train_labels"])
    arguments = ["--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--noise", "sym:0.3"]
    answer = cli("corrupt", *arguments, "--out", tmp_path / "noisy.npy")
    rate = (np.load(tmp_path / "noisy.npy") != np.load(tmp_path / "y.npy")).mean()
    assert rate == pytest.approx(0.3, abs=0.06)
    assert f"Noise rate: {rate:.4f}" in answer.out


@pytest.mark.parametrize("suffix", ["npy", "csv"])
def test_labels_of_classes_named_by_numbers_are_read_back(tmp_path: Path, suffix: str) -> None:
    content = blobs() | {"class_names": np.array(["3", "1", "0"])}
    data = write_npz(tmp_path / "data.npz", **content)
    made = unflip.corrupt(data, "sym:0.3", tmp_path / f"labels.{suffix}")
    run = unflip.train(data, tmp_path / "run", labels=made.labels, epochs=1, quiet=True)
    given = run.labels()["given_label"].to_numpy()
    assert (given != content["train_labels"]).mean() == pytest.approx(made.noise_rate, abs=1e-6)
