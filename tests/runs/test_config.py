"""The configuration: what wins, and errors that name the key and what is allowed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_backbone
from helpers import Outcome
from pictures import write_picture
from unflip import UnflipClassifier
from unflip.errors import ConfigError
from unflip.methods.gce import GCEOptions
from unflip.runs.config import RunConfig, parse_setting, read_preset, read_toml

DATA = {"data": {"path": "digits"}}


def resolve(*layers: dict[str, Any], explicit: tuple[str, ...] = ()) -> RunConfig:
    return RunConfig.resolve([DATA, *layers], explicit)


@pytest.mark.parametrize(
    ("given_in", "epochs"),
    [
        (("preset",), 10),
        (("preset", "file"), 3),
        (("preset", "file", "set"), 2),
        (("preset", "file", "set", "flag"), 1),
        (("preset", "flag"), 1),
        (("file", "set"), 2),
    ],
)
def test_the_stronger_place_wins(
    cli: Callable[..., Outcome], features: Path, tmp_path: Path, given_in: tuple[str, ...], epochs: int
) -> None:
    (tmp_path / "file.toml").write_text("epochs = 3\n[mlp]\nhidden = [8]\n")
    places: dict[str, list[object]] = {
        "preset": ["--preset", "features"],
        "file": ["--config", tmp_path / "file.toml"],
        "set": ["--set", "epochs=2"],
        "flag": ["--epochs", 1],
    }
    arguments = [argument for place in given_in for argument in places[place]]
    done = cli("train", "--data", features, "--out", tmp_path / "run", "--quiet", *arguments)
    assert done.code == 0, done.err
    written = read_toml(tmp_path / "run" / "config.toml")
    assert written["epochs"] == epochs
    assert written["mlp"]["hidden"] == ([8] if "file" in given_in else [256])


def test_layers_are_merged_by_key_and_not_by_section() -> None:
    config = resolve({"optimizer": {"lr": 0.5, "momentum": 0.1}}, {"optimizer": {"lr": 0.25}})
    assert (config.common.optimizer.lr, config.common.optimizer.momentum) == (0.25, 0.1)


def test_what_is_written_is_read_as_the_same_configuration(tmp_path: Path) -> None:
    config = resolve({"method": "gce", "gce": {"truncation": 0.5}, "mlp": {"hidden": [3, 4]}, "seed": 7})
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    assert RunConfig.resolve([read_toml(tmp_path / "config.toml")]) == config


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"epoch": 3}, "unknown configuration key 'epoch', did you mean 'epochs'?"),
    "unknown key in a section": (
        {"optimizer": {"momentun": 0.5}},
        "unknown configuration key 'optimizer.momentun', did you mean 'optimizer.momentum'?",
    ),
    "unknown key of a method": (
        {"method": "gce", "gce": {"qq": 1}},
        "unknown configuration key 'gce.qq', did you mean 'gce.q'?",
    ),
    "key without its section": ({"lr": 1}, "unknown configuration key 'lr', did you mean 'optimizer.lr'?"),
    "unknown section": ({"optim": {"lr": 1}}, "unknown configuration key 'optim'"),
    "unknown method": ({"method": "gcee"}, "unknown method 'gcee', did you mean 'gce'?"),
    "unknown network": ({"network": "mpl"}, "unknown network 'mpl', did you mean 'mlp'?"),
    "unknown choice": ({"select": "nosy-val"}, "unknown select 'nosy-val', did you mean 'noisy-val'?"),
    "method that is no name": ({"method": 3}, "method = 3: must be a name; see `unflip list methods`"),
    "method that is a section": ({"method": {"x": 1}}, "method = {'x': 1}: must be a name"),
    "network that is no name": ({"network": ["mlp"]}, "network = ['mlp']: must be a name"),
    "section that is a value": ({"mlp": 3}, "mlp = 3: must be "),
    "too small": ({"epochs": 0}, "epochs = 0: must be greater than 0"),
    "above its range": (
        {"data": {"val_fraction": 1.0}},
        "data.val_fraction = 1.0: must be less than 1",
    ),
    "below its range": (
        {"mlp": {"dropout": -0.5}},
        "mlp.dropout = -0.5: must be greater than or equal to 0",
    ),
    "element out of range": ({"mlp": {"hidden": [8, 0]}}, "mlp.hidden.1 = 0: must be greater than 0"),
    "one of several kinds": ({"data": {"classes": 0}}, "data.classes = 0: must be greater than 0"),
    "wrong type": ({"seed": "one"}, "seed = 'one': must be a whole number"),
    "neither number nor word": (
        {"method": "plc", "plc": {"warmup": "foo"}},
        "plc.warmup = 'foo': must be a whole number or 'auto'",
    ),
    "neither fraction nor word": (
        {"method": "cddc", "covariance": {"disturbance": "foo"}},
        "covariance.disturbance = 'foo': must be a number or 'auto'",
    ),
    "nesterov's momentum without any": (
        {"optimizer": {"nesterov": True, "momentum": 0}},
        "optimizer.nesterov = True: must be false if optimizer.momentum is 0",
    ),
    "scaled beyond reason": ({"data": {"image_resize": 10**9}}, "data.image_resize = 1000000000: must be less than or"),
    "huge images": (
        {"data": {"image_size": 2_000_000}},
        "data.image_size = 2000000: must be less than or equal to 4096",
    ),
    "not a number": ({"optimizer": {"lr": float("nan")}}, "optimizer.lr = nan: must be a finite number"),
}


@pytest.mark.parametrize(("layer", "message"), BAD.values(), ids=BAD)
def test_a_bad_value_names_its_key_and_what_is_allowed(layer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(layer)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_data_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"'data.path' is missing; name the data"):
        RunConfig.resolve([{"data": {}}])


def test_a_file_may_have_sections_for_other_methods_but_a_person_may_not() -> None:
    layer = {"method": "standard", "gce": {"q": 0.5}}
    assert "gce" not in resolve(layer).parts
    with pytest.raises(ConfigError, match=r"section 'gce' is not used; method 'standard'"):
        resolve(layer, explicit=("gce",))


FOR_GCE = {
    "epochs": 9,
    "optimizer": {"lr": 0.5, "momentum": 0.1},
    "for": {"gce": {"epochs": 4, "optimizer": {"lr": 0.2}}},
}


def test_values_for_one_method_win_in_their_file_and_for_that_method_alone() -> None:
    config = resolve(FOR_GCE, {"method": "gce"}).common
    assert (config.epochs, config.optimizer.lr, config.optimizer.momentum) == (4, 0.2, 0.1)
    config = resolve(FOR_GCE, {"method": "sl"}).common
    assert (config.epochs, config.optimizer.lr, config.optimizer.momentum) == (9, 0.5, 0.1)
    assert "for" not in resolve(FOR_GCE, {"method": "gce"}).tree()


def test_values_for_one_method_lose_to_stronger_places() -> None:
    chosen = {"method": "gce"}
    assert resolve(FOR_GCE, chosen, {"epochs": 2}).common.epochs == 2
    assert resolve({"epochs": 2}, FOR_GCE, chosen).common.epochs == 4
    assert resolve(FOR_GCE, chosen, {"for": {"gce": {"epochs": 3}}}).common.epochs == 3
    assert resolve(FOR_GCE, chosen, {"epochs": 2}, {"for": {"sl": {"epochs": 3}}}).common.epochs == 2


def test_values_for_one_method_lose_to_flags_and_settings(
    cli: Callable[..., Outcome], features: Path, tmp_path: Path
) -> None:
    (tmp_path / "file.toml").write_text("[for.gce]\nepochs = 3\nmlp.hidden = [8]\n[for.sl]\nepochs = 4\n")
    stronger: list[tuple[int, list[object]]] = [(3, []), (2, ["--epochs", 2]), (1, ["--set", "epochs=1"])]
    for i, (epochs, more) in enumerate(stronger):
        arguments = ["--config", tmp_path / "file.toml", "--method", "gce", "--quiet", *more]
        done = cli("train", "--data", features, "--out", tmp_path / f"run{i}", *arguments)
        assert done.code == 0, done.err
        written = read_toml(tmp_path / f"run{i}" / "config.toml")
        assert (written["epochs"], written["mlp"]["hidden"]) == (epochs, [8])
        assert "for" not in written


@pytest.mark.parametrize(
    ("special", "message"),
    [
        ({"unflop": {"epochs": 3}}, "unknown method 'unflop', did you mean 'unflip'"),
        ({"unflip-m": {"epochs": 3}}, "cannot be calibrated"),
        ({"gce": 3}, r"'for': write a section per method, such as \[for.unflip\]"),
        (3, r"'for': write a section per method, such as \[for.unflip\]"),
        ({"unflip": {"epoch": 3}}, "unknown configuration key 'epoch', did you mean 'epochs'"),
        ({"unflip": {"epochs": "many"}}, "epochs = 'many': must be"),
    ],
)
def test_values_for_no_method_are_refused_in_one_line(special: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        resolve({"for": special})
    assert "\n" not in str(refused.value)


def test_values_for_one_method_cannot_be_typed() -> None:
    with pytest.raises(ConfigError, match="section 'for' is not used"):
        resolve({"for": {"unflip": {"epochs": 3}}}, explicit=("for",))


def test_a_section_in_use_may_be_typed() -> None:
    config = resolve({"method": "gce", "gce": {"q": 0.5}}, explicit=("gce", "mlp", "optimizer", "data"))
    options = config.parts["gce"]
    assert isinstance(options, GCEOptions)
    assert options.q == 0.5


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("epochs=3", {"epochs": 3}),
        ("method=gce", {"method": "gce"}),
        ("method = 'gce'", {"method": "gce"}),
        ("optimizer.lr=1e-3", {"optimizer": {"lr": 1e-3}}),
        ("mlp.hidden=[64, 32]", {"mlp": {"hidden": [64, 32]}}),
        ("mlp.batch_norm=false", {"mlp": {"batch_norm": False}}),
        ("data.path=a=b.npz", {"data": {"path": "a=b.npz"}}),
        ("noise.recipe=pmd1:0.35 + sym:0.3", {"noise": {"recipe": "pmd1:0.35 + sym:0.3"}}),
    ],
)
def test_a_setting_is_a_dotted_key_and_a_value(text: str, tree: dict[str, Any]) -> None:
    assert parse_setting(text) == tree


@pytest.mark.parametrize("text", ["epochs", "=3", "a..b=3", ".a=3", "a.=3", ""])
def test_a_setting_that_is_none_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match="write key=value, for example"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs = ", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^config .*config\.toml: {message}"):
        read_toml(path)


def test_an_unknown_preset_is_told_the_closest() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'feature', did you mean 'features'"):
        read_preset("feature")


@pytest.mark.parametrize(
    ("method", "epochs", "expected"),
    [
        ("lrt", 30, {"lrt.warmup": 10}),
        ("lrt", 180, {"lrt.warmup": 30}),
        ("plc", 6, {"plc.warmup": 2}),
        ("coteaching+", 12, {"coteaching+.warmup": 4}),
        ("dividemix", 12, {"dividemix.warmup": 4, "data.jitter": 0.1}),
        ("mddc", 12, {"plc.warmup": 4, "calibration.head_lr": 0.25}),
        ("dividemix-c", 12, {"dividemix.warmup": 4, "data.jitter": 0.1, "calibration.head_lr": 0.25}),
        ("unflip", 12, {"data.val_fraction": 0.0, "data.standardize": "auto", "optimizer.schedule": "cosine"}),
        ("plc", 1, {"plc.warmup": 1}),
    ],
)
def test_the_shortest_command_does_the_right_thing(method: str, epochs: int, expected: dict[str, Any]) -> None:
    config = resolve({"method": method, "epochs": epochs, "optimizer": {"lr": 0.25}})
    config.check()
    tree = config.tree()
    found = {key: tree[key.split(".")[0]][key.split(".")[1]] for key in expected}
    assert found == expected


def test_what_a_method_advises_is_weaker_than_anything_else() -> None:
    layers = {"lrt": {"warmup": 25}, "data": {"jitter": 0.5}}, {"method": "lrt", "epochs": 30}
    assert resolve(*layers).tree()["lrt"]["warmup"] == 25
    assert resolve(layers[0], {"method": "dividemix"}).common.data.jitter == 0.5


def test_images_need_no_jitter() -> None:
    assert resolve({"method": "dividemix", "network": "preact_resnet18"}).common.data.jitter == 0.0


@pytest.mark.parametrize("warmup", [5, 100])
@pytest.mark.parametrize("method", ["plc", "lrt", "dividemix", "coteaching+"])
def test_a_warm_up_as_long_as_the_run_is_refused_and_a_run_that_has_one_is_still_read(method: str, warmup: int) -> None:
    config = resolve({"method": method, "epochs": 5, method: {"warmup": warmup}})
    with pytest.raises(ConfigError) as error:
        config.check()
    assert str(error.value) == (
        f"{method}.warmup = {warmup} is not below epochs = 5; try --epochs {3 * warmup} or --set {method}.warmup=1"
    )
    resolve({"method": method, "epochs": 5, method: {"warmup": 4}}).check()


@pytest.mark.parametrize("method", ["unflip", "standard", "plc", "dividemix", "mddc"])
def test_a_run_that_does_not_fit_into_memory_says_what_it_takes_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    config = resolve({"method": method})
    monkeypatch.setattr("unflip.runs.config.total_memory", lambda device: 64 * 10**9)
    with pytest.raises(ConfigError) as error:
        config.check_size(300_000, 100_000, "cpu")
    for part in (f"'{method}'", "300,000 examples in 100,000 classes", "more than the 64 GB of memory", "merge"):
        assert part in str(error.value)
    config.check_size(200_000, 5_000, "cpu")
    monkeypatch.setattr("unflip.runs.config.total_memory", lambda device: None)
    config.check_size(300_000, 100_000, "cpu")


def test_the_default_method_needs_three_tables_of_probabilities_and_a_few_matrices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = resolve({"method": "unflip"})
    monkeypatch.setattr("unflip.runs.config.total_memory", lambda device: 6_800_000_000)
    config.check_size(200_000, 5_000, "cpu")
    with pytest.raises(ConfigError, match="take about 7 GB with method 'unflip', more than the 7 GB"):
        config.check_size(200_001, 5_000, "cpu")


def test_memory_is_checked_before_anything_is_written_or_embedded(
    cli: Callable[..., Outcome], features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_backbone.register(monkeypatch)
    for i in range(12):
        write_picture(tmp_path / "photos" / str(i % 2) / f"{i}.png", i % 2, (20, 20))
    monkeypatch.setattr("unflip.runs.config.total_memory", lambda device: 100)
    out, quiet = tmp_path / "run", ("--device", "cpu", "--quiet")
    for command in (
        ("train", "--data", features, "--out", out, *quiet),
        ("clean", features, "--out", out, *quiet),
        ("train", "--data", tmp_path / "photos", "--out", out, "--backbone", "tiny", *quiet),
        ("clean", tmp_path / "photos", "--out", out, "--backbone", "tiny", *quiet),
    ):
        done = cli(*command)
        assert (done.code, done.err.count("\n"), out.exists()) == (2, 1, False), done.err
        assert "merge rare classes" in done.err
    with pytest.raises(ValueError, match="merge rare classes"):
        UnflipClassifier().fit(np.random.default_rng(0).normal(size=(40, 3)), [0, 1] * 20)
