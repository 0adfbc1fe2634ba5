"""cleanlab on the settings of the grids features/cifar10 and features/cifar100: same split, noise, network, seeds.

    UNFLIP_DATA=FOLDER python pages/cleanlab_results.py docs/results/cleanlab.jsonl

For each setting and seed: out-of-fold probabilities by 5-fold cross-validation with `standard`, `find_label_issues`,
the issues pruned, `standard` again on the rest. Lines are written as `unflip paper sweep` writes them, so
`unflip paper table` reads them: test accuracy is that of the last epoch, `label_accuracy.current` the share of training
labels that are right once the issues are set to the most probable class, `quality_auroc` how well cleanlab's label
quality score tells right given labels from wrong ones. All with cleanlab's defaults. What is in the file is not run
again.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from features_trials import run_missing

FOLDS = 5
GRIDS = ("features/cifar10", "features/cifar100")


@cache
def settings() -> dict[str, Any]:
    """Return the grids' points for `standard`, by the names of cleanlab's cells."""
    from unflip.reproduce.grid import read_grid

    points = [point for name in GRIDS for point in read_grid(name) if point.axes["method"] == "standard"]
    return {"cleanlab " + " ".join(str(p.axes[axis]) for axis in ("data", "noise", "seed")): p for p in points}


class Prepared(NamedTuple):
    """The data of a setting, as `standard` has it, without the held-out tenth."""

    inputs: np.ndarray[Any, Any]
    given: np.ndarray[Any, Any]
    clean: np.ndarray[Any, Any]
    test: np.ndarray[Any, Any]
    test_labels: np.ndarray[Any, Any]
    num_classes: int


def prepare(point: Any) -> Prepared:
    """Return the training examples of a setting with noisy and clean labels, and the test examples."""
    from unflip.data.corrupt import corrupt_labels
    from unflip.data.labeling import label_data
    from unflip.data.loaders import load_raw
    from unflip.data.split import split

    config, root = point.configure().common, Path(os.environ["UNFLIP_DATA"])
    assert config.data.labels is not None
    data = root / config.data.path
    options = config.data.model_copy(update={"path": str(data), "labels": str(root / config.data.labels)})
    labeled = label_data(load_raw(options), options)
    if config.noise.recipe is not None:  # symmetric or asymmetric in these grids, which takes no posterior
        labeled = corrupt_labels(labeled, config.noise, None, config.seed)
    dataset = split(labeled, options.val_fraction, config.seed)
    assert dataset.clean is not None
    train = ~dataset.is_val.numpy()
    given, clean = dataset.given.numpy()[train], dataset.clean.numpy()[train]
    arrays = np.load(data)
    inputs = arrays["train"][: config.data.limit][train]
    return Prepared(inputs, given, clean, arrays["test"], arrays["test_labels"], dataset.num_classes)


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import torch
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    import unflip

    torch.set_num_threads(1)
    point = settings()[task["cell"]]
    config = point.configure().common
    inputs, given, clean, test_inputs, test_labels, num_classes = prepare(point)
    started = time.perf_counter()

    def fit(folder: Path, rows: np.ndarray, test: np.ndarray, test_labels: np.ndarray) -> unflip.Run:
        np.savez(folder / "data.npz", train=inputs[rows], train_labels=given[rows], test=test, test_labels=test_labels)
        return unflip.train(
            folder / "data.npz", folder / "run", method="standard", preset="features", seed=config.seed,
            select="last", settings={"data.val_fraction": 0.0, "data.classes": num_classes},
            force=True, device="cpu", threads=1,
        )  # fmt: skip

    probs = np.zeros((len(given), num_classes), np.float32)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=config.seed)
        for rows, held_out in folds.split(inputs, given):
            run = fit(folder, rows, inputs[held_out], clean[held_out])
            probs[held_out] = unflip.predict(run, folder / "data.npz", part="test", device="cpu").probs.numpy()
        issues = find_label_issues(given, probs, n_jobs=1)
        result = fit(folder, (~issues).nonzero()[0], test_inputs, test_labels).result
    corrected = np.where(issues, probs.argmax(1), given)
    return task | {
        "axes": {**point.axes, "method": "cleanlab"},
        "method": "cleanlab",
        "seed": config.seed,
        "network": config.network,
        "selection": config.select,
        "protocol": result["protocol"],
        "epochs": config.epochs,
        "test_accuracy": result["test_accuracy"] | {"best": None},
        "label_accuracy": {"given": float((given == clean).mean()), "current": float((corrected == clean).mean())},
        "quality_auroc": float(roc_auc_score(given == clean, get_label_quality_scores(given, probs))),
        "issues": float(issues.mean()),
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    run_missing(arguments.out, [{"cell": cell} for cell in settings()], run_one, arguments.jobs)


if __name__ == "__main__":
    main()
