"""cleanlab on the rows of features_table.py: the same features, network, seeds and training examples.

    UNFLIP_DATA=FOLDER python bench/cleanlab_table.py OUT.jsonl --rows all --seeds 0,1,2

For each run: out-of-fold probabilities by 5-fold cross-validation with `standard`, `find_label_issues`, the issues
pruned, `standard` again on the rest. `test` is the test accuracy of the last epoch, `labels` the accuracy of the
training labels once the issues are set to the arg max, `auroc` how well cleanlab's label quality score tells right
given labels from wrong ones. All with cleanlab's defaults. Runs that are in OUT.jsonl already are not run again.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import features_table

FOLDS = 5


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import torch
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    import unflip
    from unflip.data.dataset import DataOptions, open_dataset
    from unflip.data.noisy import NoiseOptions

    torch.set_num_threads(1)
    data, labels, noise = features_table.files(task["row"])
    options = DataOptions(path=str(data), labels=str(labels), take=features_table.TAKE)
    dataset = open_dataset(
        options, task["seed"], NoiseOptions(recipe=noise)
    )  # the split and noise of features_table.py
    assert dataset.clean is not None
    train = ~dataset.is_val.numpy()
    given, clean = dataset.given.numpy()[train], dataset.clean.numpy()[train]
    arrays = np.load(data)
    inputs = arrays["train"][: features_table.TAKE][train]
    started = time.perf_counter()

    def fit(folder: Path, rows: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> unflip.Run:
        np.savez(folder / "data.npz", train=inputs[rows], train_labels=given[rows], test=test, test_labels=test_labels)
        return unflip.train(
            folder / "data.npz", folder / "run", method="standard", preset="features", seed=task["seed"],
            select="last", settings={"data.val_fraction": 0.0, "data.classes": dataset.num_classes},
            force=True, device="cpu", threads=1,
        )  # fmt: skip

    probs = np.zeros((len(given), dataset.num_classes), np.float32)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=task["seed"])
        for rows, held_out in folds.split(inputs, given):
            run = fit(folder, rows, inputs[held_out], clean[held_out])
            probs[held_out] = unflip.predict(run, folder / "data.npz", part="test", device="cpu").probs.numpy()
        issues = find_label_issues(given, probs, n_jobs=1)
        result = fit(folder, (~issues).nonzero()[0], arrays["test"], arrays["test_labels"]).result
    corrected = np.where(issues, probs.argmax(1), given)
    return task | {
        "test": result["test_accuracy"]["last"],
        "labels": float((corrected == clean).mean()),
        "auroc": float(roc_auc_score(given == clean, get_label_quality_scores(given, probs))),
        "issues": float(issues.mean()),
        "seconds": time.perf_counter() - started,
    }


if __name__ == "__main__":
    features_table.main(run_one, methods="cleanlab", figures="test,labels,auroc")
