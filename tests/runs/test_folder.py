"""The run folder: when it is free, and what is removed from it."""

import csv
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import Outcome, quick_train
from pictures import write_picture
from unflip.data.files import Skipped
from unflip.errors import ConfigError, InputError, RunFolderError, UnflipWarning
from unflip.runs import folder as module
from unflip.runs.folder import Claim, Run
from unflip.runs.model_file import load_model
from unflip.stats.gaussians import fit_gaussians


@contextmanager
def claimed(run: Run, *, resume: bool, force: bool) -> Iterator[None]:
    with Claim(run, resume=resume, force=force) as claim:
        claim.hold()
        yield


@pytest.fixture
def finished(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run")
    run.begin()
    run.own("checkpoints").mkdir()
    (run.checkpoints / "epoch-00001.safetensors").write_text("saved")
    run.write_config("epochs = 1\n")
    run.own("result.json").write_text('{"method": "plc", "epochs": 1}')
    run.own("metrics.jsonl").write_text('{"epoch": 1}\n')
    (run.folder / "notes.txt").write_text("mine")
    return run


def test_a_folder_with_a_run_is_not_free(finished: Run) -> None:
    with pytest.raises(RunFolderError, match=r"already contains a run; replace it with --force"):
        finished.check_free(resume=False, force=False)
    finished.check_free(resume=True, force=False)
    finished.check_free(resume=False, force=True)


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        Run(folder).check_free(resume=False, force=False)
        with pytest.raises(RunFolderError, match="no run to resume"):
            Run(folder).check_free(resume=True, force=False)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file; name a folder"):
        Run(tmp_path / "file").check_free(resume=False, force=False)
    with pytest.raises(RunFolderError, match=r"file is a file; name a folder"):
        Claim(Run(tmp_path / "file" / "sub")).hold()


def test_force_removes_the_run_and_nothing_else(finished: Run) -> None:
    with claimed(finished, resume=False, force=True):
        finished.clear()
        left = sorted(path.name for path in finished.folder.iterdir())
        assert left == [".unflip-lock", ".unflip-review-lock", "notes.txt", "run.json"]


def test_force_leaves_what_somebody_put_into_the_folders_of_a_run(finished: Run) -> None:
    mine = ["checkpoints/my.pt", ".tmpnotes", ".tmp/inner", "data/table.csv", "embedded.npz"]
    for name in mine:
        (finished.folder / name).parent.mkdir(exist_ok=True)
        (finished.folder / name).write_text("mine")
    with claimed(finished, resume=False, force=True):
        finished.clear()
        assert [(finished.folder / name).read_text() for name in mine] == ["mine"] * len(mine)
        assert not (finished.checkpoints / "epoch-00001.safetensors").exists()
        with pytest.raises(RunFolderError, match=r"embedded\.npz: is in the way, and was not written by unflip"):
            finished.own("embedded.npz")


@pytest.mark.parametrize("name", ["label_issues.csv", "report.html"])
def test_force_removes_nothing_if_a_file_of_somebody_is_in_the_way(finished: Run, name: str) -> None:
    (finished.folder / name).parent.mkdir(exist_ok=True)
    (finished.folder / name).write_text("mine")
    refused = pytest.raises(RunFolderError, match="is in the way, and was not written by unflip; move it elsewhere")
    with refused, claimed(finished, resume=False, force=True):
        pass
    assert finished.is_finished
    assert (finished.checkpoints / "epoch-00001.safetensors").exists()
    assert (finished.folder / name).read_text() == "mine"


def test_a_folder_in_the_place_of_a_file_stays(finished: Run) -> None:
    (finished.folder / "metrics.jsonl").unlink()
    (finished.folder / "metrics.jsonl").mkdir()
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: is in the way, and was not written by unflip"):
        finished.check_free(resume=False, force=True)


def test_a_file_in_the_place_of_a_folder_is_named_whether_the_run_is_replaced_or_resumed(
    cli: Callable[..., Outcome], features: Path, tmp_path: Path
) -> None:
    run = quick_train(features, tmp_path / "run", method="standard", epochs=1)
    shutil.rmtree(run.checkpoints)
    run.checkpoints.write_text("mine")
    for how in (["--resume", "--epochs", "2"], ["--force", "--data", features, "--epochs", "1"]):
        done = cli("train", "--out", run.folder, *how, "--quiet")
        assert done.code == 2
        assert "checkpoints: is in the way, and was not written by unflip; move it elsewhere\n" in done.err
    assert run.checkpoints.read_text() == "mine"
    assert run.is_finished


def test_a_file_whose_name_begins_like_ours_is_not_ours(features: Path, tmp_path: Path) -> None:
    name = "checkpoints/epoch-00001 (copy).safetensors"
    run = quick_train(features, tmp_path / "run", method="standard", epochs=1)
    (run.folder / name).parent.mkdir(exist_ok=True)
    (run.folder / name).write_text("mine")
    quick_train(features, tmp_path / "run", method="standard", epochs=3, force=True)
    assert (run.folder / name).read_text() == "mine"


def test_what_cannot_be_removed_is_named_and_the_folder_still_holds_the_run(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name in ("epoch-00001.safetensors", "metrics.jsonl"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        plain(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    said = r"epoch-00001\.safetensors: Operation not permitted"
    for part in (said, said.replace("epoch-00001\\.safetensors", "metrics.jsonl")):
        with pytest.raises(RunFolderError, match=part), claimed(finished, resume=False, force=True):
            finished.clear()
        assert finished.is_finished
        assert finished.config_path.exists()
        plain(finished.checkpoints / "epoch-00001.safetensors", missing_ok=True)
    monkeypatch.undo()
    with claimed(finished, resume=False, force=True):
        finished.clear()
        assert not finished.is_finished
        assert not finished.config_path.exists()


def test_a_finished_run_without_its_configuration_is_not_replaced_without_force(finished: Run) -> None:
    finished.config_path.unlink()
    with pytest.raises(RunFolderError, match="already contains a run"):
        finished.check_free(resume=False, force=False)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["labels.csv", ".hidden", "run.json", "folder/inner"])
def test_a_folder_with_files_of_somebody_else_is_refused(tmp_path: Path, name: str, force: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    with pytest.raises(RunFolderError, match=f"not ours, such as {name.partition(chr(47))[0]}; name a new"):
        Run(tmp_path).check_free(resume=False, force=force)


def test_a_run_is_not_resumed_and_replaced_at_once(finished: Run) -> None:
    with pytest.raises(ConfigError, match="--resume and --force cannot be combined"):
        finished.check_free(resume=True, force=True)


def test_what_a_run_reads_is_not_replaced_by_it(finished: Run) -> None:
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: is an input of the run that would replace it"):
        finished.check_free(resume=False, force=True, inputs=[finished.folder / "metrics.jsonl"])
    (finished.folder.parent / "link").symlink_to(finished.folder)
    for spelled in (
        finished.folder.parent / "link" / "metrics.jsonl",
        finished.folder / ".." / "run" / "metrics.jsonl",
    ):
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl: is an input of the run that would replace it"):
            finished.check_free(resume=False, force=True, inputs=[spelled])
    finished.check_free(resume=False, force=True, inputs=[finished.folder.parent])  # data around the run is not the run
    (finished.folder / "embedded.npz").touch()
    finished.check_free(resume=False, force=True, inputs=[finished.folder / "embedded.npz"])


def test_resuming_removes_only_what_a_kill_left_half_written(finished: Run) -> None:
    before = {path.name for path in finished.folder.iterdir()}
    for folder in (finished.folder, finished.checkpoints):
        (folder / ".unflip-partial-abc123").mkdir()
        (folder / ".unflip-partial-abc123" / ".tmpWEX9u6").write_text("half")
    (finished.folder / ".gitignore").write_text("mine")
    with claimed(finished, resume=True, force=False):
        assert {path.name for path in finished.folder.iterdir()} == before | {
            ".unflip-lock",
            ".unflip-review-lock",
            ".gitignore",
        }
        assert [path.name for path in finished.checkpoints.iterdir()] == ["epoch-00001.safetensors"]


def test_a_second_claim_is_refused_until_the_first_ends(finished: Run) -> None:
    refused = pytest.raises(RunFolderError, match=r"run: another process is using this run; wait until")
    with claimed(finished, resume=True, force=False):
        for force in (True, False):
            with refused, claimed(finished, resume=not force, force=force):
                pass
        assert finished.is_finished  # the refused --force removed nothing
    with claimed(finished, resume=True, force=False):
        pass


def test_a_claim_that_had_to_wait_for_nothing_still_finds_a_run_that_came_meanwhile(finished: Run) -> None:
    with pytest.raises(RunFolderError, match="already contains a run"), claimed(finished, resume=False, force=False):
        pass


def test_results_and_metrics_are_read(finished: Run) -> None:
    assert finished.is_finished
    assert finished.result == {"method": "plc", "epochs": 1}
    assert finished.metrics == [{"epoch": 1}]
    finished.write_metrics([{"epoch": 1}, {"epoch": 2, "loss": {"a": 0.1}}])
    assert finished.metrics == [{"epoch": 1}, {"epoch": 2, "loss": {"a": 0.1}}]


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(RunFolderError, match=r"no run\.json; is this the folder of a finished run"):
        run.result  # noqa: B018
    run.begin()
    assert not run.is_finished
    with pytest.raises(RunFolderError, match=r"no result\.json; is this the folder of a finished run"):
        run.result  # noqa: B018
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"result\.json: not a readable JSON object"):
        run.result  # noqa: B018


def test_features_are_kept_in_half_precision_and_mapped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.begin()
    before = run.hidden_features
    assert before is None
    run.write_features(torch.tensor([[1.0, 1e9], [-1e9, 0.25]]))
    features = run.hidden_features
    assert features is not None
    assert features.dtype == np.float16
    assert features.tolist() == [[1.0, 65504.0], [-65504.0, 0.25]]
    assert torch.from_numpy(features).shape == (2, 2)  # torch warns of an array that cannot be written
    features[0, 0] = 7.0
    again = run.hidden_features
    assert again is not None
    assert again[0, 0] == 1.0


def test_features_that_are_too_large_are_left_out_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.begin()
    run.write_features(torch.zeros(2, 3))
    monkeypatch.setattr(module, "MAX_FEATURES_GB", 1e-9)
    with pytest.warns(UnflipWarning, match=r"features.npy would take 0\.0 GB, more than 1e-09: not stored"):
        run.write_features(torch.zeros(2, 3))
    assert run.hidden_features is None


def test_every_run_keeps_the_features_of_its_model_and_knows_its_pictures(features: Path, tmp_path: Path) -> None:
    run = quick_train(features, tmp_path / "run", method="standard", epochs=3)
    model = load_model(run.folder / "model.safetensors")
    inputs = torch.from_numpy(np.load(features)["train"])
    network = model.build().networks[0]
    assert model.standardization is not None
    expected = network.encode((inputs - model.standardization.mean) / model.standardization.std)
    torch.testing.assert_close(torch.from_numpy(run.hidden_features).float(), expected, rtol=2e-3, atol=2e-3)
    assert run.pictures() is None
    assert run.config.common.method == "standard"
    digits = quick_train(Path("digits"), tmp_path / "digits", method="standard", epochs=1)
    pictures, of_digits = digits.pictures(), digits.hidden_features
    assert pictures is not None
    assert of_digits is not None
    assert len(pictures) == 1347 == len(of_digits)
    with pytest.raises(InputError, match="No such file or folder: elsewhere"):
        digits.pictures("elsewhere")


def test_pictures_are_found_from_another_folder_than_that_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in range(2):
        for i in range(6):
            write_picture(tmp_path / "here" / "photos" / str(label) / f"{i}.png", label, (12, 12))
    monkeypatch.chdir(tmp_path / "here")
    run = quick_train(Path("photos"), tmp_path / "run", method="standard", epochs=1)
    monkeypatch.chdir(tmp_path)
    found, named = run.pictures(), run.pictures("here/photos")
    assert found is not None
    assert named is not None
    assert len(found) == 12
    assert found.thumbnail(3, 20) == named.thumbnail(3, 20)


def test_gaussians_come_back_from_their_file_and_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    features = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    fitted = fit_gaussians(features, torch.arange(90) % 2, 3).with_disturbance(0.2)
    run = Run(tmp_path)
    run.begin()
    before = run.gaussians
    assert before is None
    run.write_gaussians(fitted)
    found = run.gaussians
    assert found is not None
    assert found.disturbance == 0.2
    assert torch.equal(found.present, fitted.present)
    one, other = (each.sample(3, torch.Generator().manual_seed(0))[0] for each in (fitted, found))
    assert torch.equal(one, other)
    (tmp_path / "gaussians.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(RunFolderError, match=r"gaussians\.safetensors: not a readable file"):
        _ = run.gaussians


@pytest.mark.parametrize("marker", [None, {"format": 99, "unflip": "9.0"}])
def test_a_run_in_another_format_or_without_its_marker_is_refused_in_one_line(
    features: Path, tmp_path: Path, marker: dict[str, Any] | None, cli: Callable[..., Outcome]
) -> None:
    run = quick_train(features, tmp_path / "run", method="standard", epochs=1)
    path = run.folder / "run.json"
    if marker is None:
        path.unlink()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | marker))
    said = "run format 99, this version of unflip reads 4; train again"
    if marker is None:
        said = f"{run.folder}: no run.json; is this the folder of a finished run?"
    for arguments in (
        ["report", run.folder],
        ["predict", run.folder, "--data", features],
        ["export", run.folder, "--out", tmp_path / "labels.csv"],
        ["review", run.folder, "--no-browser"],
        ["train", "--out", run.folder, "--resume"],
    ):
        done = cli(*arguments)
        assert done.code == 2, arguments
        assert said in done.err
        assert done.err.count("\n") == 1
    if marker is None:  # we cannot know which files were a run's, so nothing is replaced
        with pytest.raises(RunFolderError, match="holds files that are not ours, such as checkpoints"):
            quick_train(features, run.folder, method="standard", epochs=1, force=True)
        return
    quick_train(features, run.folder, method="standard", epochs=1, force=True)
    assert json.loads(path.read_text())["format"] == module.FORMAT


@pytest.mark.parametrize("content", ["", "[]", '{"form": 2}'])
def test_a_marker_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    run = Run(tmp_path)
    run.begin()
    run.write_config("epochs = 1\n")
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"run\.json: not a readable run marker"):
        _ = run.metrics


READERS: dict[str, Callable[[Run], Any]] = {
    "result.json": lambda run: run.class_names,
    "config.toml": lambda run: run.config,
    "labels.parquet": lambda run: run.labels(),
}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"{}"])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_one_line_that_names_it(finished: Run, name: str, content: bytes) -> None:
    (finished.folder / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=re.escape(str(finished.folder / name))) as caught:
        READERS[name](finished)
    assert "\n" not in str(caught.value)


def test_the_table_of_skipped_images_survives_commas(finished: Run) -> None:
    finished.write_skipped([Skipped("train", "a,b.jpg", "not an image")])
    with (finished.folder / "skipped.csv").open() as file:
        assert [*csv.reader(file)] == [["part", "id", "reason"], ["train", "a,b.jpg", "not an image"]]
