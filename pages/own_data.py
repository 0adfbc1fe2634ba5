"""What the comparisons with cleanlab share: data sets, labels made wrong in six ways, tuned logistic regression."""

import os
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

SETS = ("digits", "breast cancer", "wine", "cifar10")
NOISES = ("pmd1:0.2", "pmd1:0.4", "sym:0.2", "sym:0.4", "asym:0.2", "asym:0.4")
CIFAR_EXAMPLES = 5_000  # the first so many of the frozen training features; all test features
ASYM = {"digits": {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}, "breast cancer": {0: 1}, "wine": {0: 1, 1: 2, 2: 0}}
"""Who is taken for whom: MNIST's map, malignant for benign, each cultivar for the next. CIFAR-10 has its own."""

STRENGTHS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Values of C tried for logistic regression."""


class Problem(NamedTuple):
    train: np.ndarray[Any, Any]
    clean: np.ndarray[Any, Any]
    test: np.ndarray[Any, Any]
    test_labels: np.ndarray[Any, Any]


def load(name: str, seed: int) -> Problem:
    """Return a data set; those of scikit-learn are split by ``seed``, stratified, three quarters to train."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    if name == "cifar10":
        arrays = np.load(Path(os.environ["UNFLIP_DATA"]) / "features" / "cifar10.npz")
        train, clean = (arrays[key][:CIFAR_EXAMPLES] for key in ("train", "train_labels"))
        return Problem(train.astype(np.float32), clean, arrays["test"].astype(np.float32), arrays["test_labels"])
    inputs, labels = getattr(datasets, f"load_{name.replace(' ', '_')}")(return_X_y=True)
    parts = train_test_split(inputs, labels, test_size=0.25, stratify=labels, random_state=seed)
    return Problem(parts[0], parts[2], parts[1], parts[3])


def make_noisy(name: str, problem: Problem, recipe: str, seed: int) -> np.ndarray[Any, Any]:
    """Return noisy labels; the posteriors of pmd noise are cross-fitted to the clean labels with the same network."""
    import torch
    from sklearn.model_selection import cross_val_predict

    from unflip import UnflipClassifier
    from unflip.noise.corrupt import ClassRelations, corrupt
    from unflip.noise.recipe import parse
    from unflip.noise.transition import NAMED_MAPS

    posterior = None
    if recipe.startswith("pmd"):
        network = UnflipClassifier("standard", random_state=seed)
        probs = cross_val_predict(network, problem.train, problem.clean, cv=5, method="predict_proba")
        posterior = torch.from_numpy(probs)
    relations = ClassRelations(class_map=ASYM.get(name, NAMED_MAPS["cifar10"]), superclasses=None, matrix=None)
    clean = torch.from_numpy(problem.clean.astype(np.int64))
    made = corrupt(
        parse(recipe), clean, num_classes=int(clean.max()) + 1, seed=seed, posterior=posterior, relations=relations
    )
    return made.labels.numpy()


def logistic_regression(strength: float, **options: Any) -> Any:
    """Return logistic regression on standardized columns with C = ``strength``."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, **options))


def out_of_fold(inputs: Any, given: Any, strength: float) -> Any:
    """Return out-of-fold probabilities by logistic regression."""
    from sklearn.model_selection import cross_val_predict

    model = logistic_regression(strength, max_iter=200, tol=1e-3)
    return cross_val_predict(model, inputs, given, cv=5, method="predict_proba")


def choose_strength(inputs: Any, given: Any) -> float:
    """Return the C of highest cross-validated likelihood of the given, noisy labels."""
    from sklearn.metrics import log_loss

    return min(STRENGTHS, key=lambda strength: log_loss(given, out_of_fold(inputs, given, strength)))
