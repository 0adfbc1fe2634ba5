"""Grid files: what they mean, what is wrong with them, and those of the package."""

import itertools
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers import blobs, write_npz
from sweeps import write_grid
from unflip.errors import ConfigError, InputError
from unflip.reproduce.grid import Point, find_cell, read_grid
from unflip.reproduce.grids import grid_names, grid_text


def read(path: Path, text: str) -> list[Point]:
    path.write_text(text)
    return read_grid(str(path))


def test_every_combination_is_a_point_and_the_last_axis_changes_fastest(tmp_path: Path) -> None:
    grid = read_grid(
        str(write_grid(tmp_path / "mine.toml", 'method = ["gce", "sl"]\nseed = [3, 4]\ndata = ["digits"]'))
    )
    assert {point.grid for point in grid} == {"mine"}
    assert [tuple(point.axes.values()) for point in grid] == [
        ("gce", 3, "digits"),
        ("gce", 4, "digits"),
        ("sl", 3, "digits"),
        ("sl", 4, "digits"),
    ]
    assert [point.position for point in grid] == [0, 1, 2, 3]
    common = grid[3].configure().common
    assert (common.method, common.seed, common.data.path, common.epochs) == ("sl", 4, "digits", 2)


def test_precedence_is_preset_config_block_axes(tmp_path: Path) -> None:
    grid = read(
        tmp_path / "a.toml",
        """
        [config]
        preset = "demo" # 40 epochs, lr 0.02, batch 32, hidden [128]
        data = "digits"
        optimizer.lr = 0.03
        epochs = 3
        [axes]
        seed = [1]
        [[grid]]
        config.epochs = 4
        axes.method = ["plc"]
        [[grid]]
        [grid.axes]
        method = ["plc", "sl"]
        epochs = [5]
        """,
    )
    configs = [point.configure() for point in grid]
    assert [config.common.epochs for config in configs] == [4, 5, 5]
    assert [config.common.method for config in configs] == ["plc", "plc", "sl"]
    for config in configs:
        assert (config.common.optimizer.lr, config.common.optimizer.batch_size) == (0.03, 32)
    assert list(grid[0].axes) == ["seed", "method"]


def test_a_named_value_shows_its_name_and_may_set_several_keys(tmp_path: Path) -> None:
    grid = read(
        tmp_path / "a.toml",
        """
        config = { data = "digits", method = "plc" }
        [axes."mlp.hidden"]
        small = [8]
        large = [64, 64]
        [axes.noise]
        none = {}
        "30% sym." = { noise = "sym:0.3", data.limit = 500, preset = "demo" }
        """,
    )
    assert [tuple(point.axes.values()) for point in grid] == [
        ("small", "none"),
        ("small", "30% sym."),
        ("large", "none"),
        ("large", "30% sym."),
    ]
    last = grid[3].configure()
    assert last.tree()["mlp"]["hidden"] == [64, 64]
    assert (last.common.noise.recipe, last.common.data.limit, last.common.epochs) == ("sym:0.3", 500, 40)
    assert grid[2].configure().common.noise.recipe is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axes\n", r"grid .*a\.toml: not TOML: .*line 1"),
        ("seed = [0]\n", r"grid a: 'seed': settings must be in \[config\], axes in \[axes\]"),
        ("axes = 3\n", r"grid a: 'axes': .*axes in \[axes\]"),
        ("[grid]\naxes.seed = [0]\n", r"grid a: blocks must be lists, \[\[grid\]\]"),
        ("[[grid]]\nseed = [0]\n", r"grid a: 'seed': settings must be in"),
        ("[config]\nepochs = 3\n", r"grid a: no axes; .*seed = \[0, 1, 2\]"),
        ("axes.seed = 3\n", r"grid a, axis 'seed': 3 is not a list of values; write \["),
        ("axes.seed = []\n", r"grid a, axis 'seed': \[\] is not a list of values"),
        ("axes.covariance.disturbance = [0.1]\n", r"axis 'covariance': a key with a dot needs quotes"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path / "a.toml", text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ('method = ["pcl"]', "grid a, method = pcl: unknown method 'pcl', did you mean 'plc'"),
        ('"optimizer.lr" = [-1]', r"grid a, optimizer\.lr = -1: optimizer\.lr = -1: must be greater than 0"),
        ('"optimzer.lr" = [1]', r"grid a, optimzer\.lr = 1: unknown configuration key 'optimzer'"),
        ('preset = ["dmeo"]', "grid a, preset = dmeo: unknown preset 'dmeo', did you mean 'demo'"),
    ],
)
def test_a_bad_value_is_reported_with_its_point(tmp_path: Path, axes: str, message: str) -> None:
    grid = read(tmp_path / "a.toml", f'config.data = "digits"\n[axes]\n{axes}\n')
    with pytest.raises(ConfigError, match=message):
        grid[0].configure()


def test_a_missing_file_is_reported_with_its_point(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", **blobs())
    grid = read(tmp_path / "g.toml", 'config.data = "a.npz"\n[axes.noise]\n"I 35%" = { data.labels = "no.npy" }\n')
    message = rf"grid g, noise = I 35%: data\.labels no\.npy is not in --data-root {tmp_path}"
    with pytest.raises(InputError, match=message):
        find_cell(grid[0], tmp_path / "cells", tmp_path)


def test_an_unknown_name_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown grid 'smoke/digit', did you mean 'smoke/digits'\?.*FILE\.toml"):
        read_grid("smoke/digit")
    with pytest.raises(ConfigError, match=r"grid .*none\.toml: No such file"):
        read_grid(str(tmp_path / "none.toml"))


# The grids of the package


TYPES, LEVELS = ("I", "II", "III"), ("35%", "70%")
SMALLER = ("cifar10-1500", "cifar10-5000")
TABLE_1 = {f"{kind} {level}" for kind, level in itertools.product(TYPES, LEVELS)}
TABLE_2 = {f"{kind} 35% + {added}" for kind in TYPES for added in ("30% sym.", "60% sym.", "30% asym.")}


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the grids of the package find their files, all of them empty."""
    root = tmp_path_factory.mktemp("data")
    for folder in (
        "features",
        "pmd",
        "cifar10",
        "cifar100",
        "webvision",
        "clothing1m",
        *(f"{name}/pmd" for name in SMALLER),
    ):
        (root / folder).mkdir(parents=True)
    for name, file in itertools.product(SMALLER, ("features.npz", "images.csv", "pmd/cifar10-1-0.35.npy")):
        (root / name / file).write_text(f"{name} {file}")
    for file in ("webvision/webvision", "clothing1m/clothing1m", "clothing1m/clothing1m-clean-val"):
        (root / f"{file}.parquet").touch()
    for data in ("cifar10", "cifar100"):
        (root / "features" / f"{data}.npz").touch()
        for kind, level in itertools.product((1, 2, 3), ("0.35", "0.70")):
            (root / "pmd" / f"{data}-{kind}-{level}.npy").write_text(f"{data} {kind} {level}")
    return root


@pytest.mark.parametrize("name", grid_names())
def test_every_built_in_grid_has_a_description_and_resolves(name: str, data_root: Path, tmp_path: Path) -> None:
    if name in ("paper/webvision", "paper/clothing1m") and find_spec("timm") is None:
        pytest.skip("the networks of this grid are timm's: pip install 'unflip[timm]'")
    assert grid_text(name).startswith("# ")
    grid = read_grid(name)
    cells = [find_cell(point, tmp_path, data_root) for point in grid]
    assert len({cell.name for cell in cells}) == len(cells)
    for point, cell in zip(grid, cells, strict=True):
        recipe = cell.config["noise"].get("recipe")
        assert {"data", "method", "seed"} <= set(point.axes)
        if "+" in str(point.axes.get("noise")):  # "II 35% + 30% asym.": named after its noise
            level, kind = point.axes["noise"].split(" + ")[1].rstrip(".").split("% ")
            assert recipe == f"{kind}:0.{level}"
        if cell.config["data"].get("labels", "").endswith(".npy"):
            kind, level = point.axes["noise"].split(" + ")[0].rstrip("%").split()
            data = point.axes["data"].lower().replace("-", "")
            assert cell.config["data"]["labels"].endswith(f"pmd/{data}-{len(kind)}-0.{level}.npy")
            assert data in cell.config["data"]["path"]


def test_the_feature_grids_hold_the_30_settings_of_tables_1_and_2_with_every_one_network_method() -> None:
    for data in ("CIFAR-10", "CIFAR-100"):
        points = read_grid(f"features/{data.lower().replace('-', '')}")
        methods = ("standard", "gce", "sl", "lrt", "elr", "elr-m", "elr-c", "plc", "mddc", "cddc", "unflip")
        expected = itertools.product((0, 1, 2), methods, [data], TABLE_1 | TABLE_2)
        actual = [tuple(point.axes[axis] for axis in ("seed", "method", "data", "noise")) for point in points]
        assert sorted(actual) == sorted(expected)


def test_the_ablation_costs_nothing_beside_the_feature_grids(data_root: Path, tmp_path: Path) -> None:
    names = {
        name: {find_cell(point, tmp_path, data_root).name for point in read_grid(name)}
        for name in ("features/cifar10", "features/cifar100", "features/ablation")
    }
    assert names["features/ablation"] < names["features/cifar10"] | names["features/cifar100"]
