"""What a finished run's model says of new inputs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from helpers import blobs, quick_train, write_npz
from unflip import predict
from unflip.api.predict import Prediction
from unflip.data.sources import ArraySource
from unflip.errors import InputError, RunFolderError
from unflip.nn.base import Ensemble
from unflip.runs.folder import Run
from unflip.runs.model_file import load_model


@pytest.fixture(scope="module")
def run(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return quick_train(features, tmp_path_factory.mktemp("run") / "run", epochs=6)


def test_the_test_set_is_predicted_unless_another_is_named(run: Run, features: Path) -> None:
    assert len(predict(run, features).probs) == 60
    assert len(predict(run.folder, features, part="train").probs) == 150
    assert len(predict(str(run.folder), str(features), part="test").probs) == 60


def test_probabilities_sum_to_one_and_the_label_is_their_largest(run: Run, features: Path) -> None:
    prediction = predict(run, features)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(60))
    table = prediction.table()
    assert table.column_names == ["id", "label", "probability", "p_0", "p_1", "p_2"]
    assert table["label"].to_pylist() == [str(label) for label in prediction.probs.argmax(1).tolist()]
    np.testing.assert_allclose(table["probability"].to_numpy(), prediction.probs.max(1).values)
    assert table["id"].to_pylist() == [str(i) for i in range(60)]


def test_the_probabilities_are_those_of_the_model_on_standardized_inputs(features: Path, tmp_path: Path) -> None:
    run = quick_train(features, tmp_path / "run", method="plc", epochs=6)
    (network,) = load_model(run.folder / "model.safetensors").build().networks
    content = np.load(features)
    train = content["train"].astype(np.float64)
    inputs = (content["test"] - train.mean(axis=0)) / train.std(axis=0)
    with torch.no_grad():
        expected = network(torch.from_numpy(inputs.astype(np.float32))).softmax(1)
    torch.testing.assert_close(predict(run, features, device="cpu").probs, expected, rtol=1e-4, atol=1e-5)


def test_a_committee_predicts_by_all_of_its_views(run: Run, features: Path) -> None:
    model = load_model(run.folder / "model.safetensors")
    ensemble, content = model.build(), np.load(features)
    assert len(ensemble.networks) == 8
    assert ensemble.gaussians is not None
    assert model.standardization is not None
    inputs = ArraySource(content["test"], model.standardization).fetch(torch.arange(60))
    probs = predict(run, features, device="cpu").probs
    torch.testing.assert_close(probs, ensemble.probs(inputs), rtol=1e-4, atol=1e-5)
    mean = Ensemble(ensemble.networks).probs(inputs)
    assert float((probs - mean).abs().max()) > 0.01


def test_new_inputs_are_standardized_as_the_training_examples_were(run: Run, features: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.load(features)["test"][:1])  # one row has no deviation of its own
    torch.testing.assert_close(predict(run, tmp_path / "one.npy").probs, predict(run, features).probs[:1])


def test_labels_are_not_needed(run: Run, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", train=blobs()["train"], test=blobs()["test"])
    assert len(predict(run, data).probs) == 60


def test_ids_of_the_training_examples_come_along(run: Run, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", train=blobs()["train"], train_ids=np.array([f"x{i}" for i in range(150)]))
    assert predict(run, data).ids[:2] == ["x0", "x1"]


@pytest.mark.parametrize(
    ("content", "part", "message"),
    [
        ({"train": np.ones((2, 5))}, None, r"examples of shape \(5,\); the model takes \(6,\)"),
        ({"train": np.full((2, 6), np.nan)}, None, "'train', row 0: nan among the features"),
        ({"train": np.ones((2, 6))}, "tset", "unknown part 'tset'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    run: Run, tmp_path: Path, content: dict[str, np.ndarray], part: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        predict(run, write_npz(tmp_path / "a.npz", **content), part=part)


def test_a_folder_without_a_model_is_refused(tmp_path: Path, features: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no run.json; is this the folder of a finished run\?"):
        predict(tmp_path, features)


def test_a_prediction_is_named_by_its_classes() -> None:
    prediction = Prediction(["a", "b"], one_hot(torch.tensor([1, 0])).float(), ["cat", "dog"])
    assert prediction.table().to_pylist() == [
        {"id": "a", "label": "dog", "probability": 1.0, "p_cat": 0.0, "p_dog": 1.0},
        {"id": "b", "label": "cat", "probability": 1.0, "p_cat": 1.0, "p_dog": 0.0},
    ]


@pytest.fixture(scope="module")
def of_table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("table")
    rows = [f"{i},{i % 3},{'ab'[i % 2]}" for i in range(40)]
    (folder / "t.csv").write_text("\n".join(["x,y,label", *rows]))
    return quick_train(folder / "t.csv", folder / "run", epochs=1)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("x,y,split\n1,2,test\n3,4,test\n", ["0", "1"]),
        ("x,y,split\n1,2,val\n3,4,val\n", ["0", "1"]),
        ("x,y,label\n1,2,\n3,4,\n", ["0", "1"]),
        ("x,y,label\n1,2,a\n3,4,\n", ["0", "1"]),
        ("x,y,label\n1,2,9\n3,4,\n", ["0", "1"]),
        ("x,y,label\n", []),
        ("x,y\n", []),
    ],
)
def test_rows_are_predicted_whatever_they_are_for_and_however_few(
    of_table: Run, tmp_path: Path, text: str, ids: list[str]
) -> None:
    (tmp_path / "new.csv").write_text(text)
    table = predict(of_table, tmp_path / "new.csv").table()
    assert table["id"].to_pylist() == ids
    assert table.column_names == ["id", "label", "probability", "p_a", "p_b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,word\n", r"new\.csv: column 'y', row 0: 'word' is not a number; correct or empty the cell$"),
        ("x\n1\n", r"new\.csv: .*unknown column 'y'; choose from: x"),
    ],
)
def test_what_cannot_be_predicted_is_told_without_options_that_there_are_not(
    of_table: Run, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        predict(of_table, tmp_path / "new.csv")


def test_a_test_set_alone_is_predicted(run: Run, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", test=blobs()["test"])
    assert len(predict(run, data).probs) == 60
