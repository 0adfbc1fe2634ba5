"""Recipes carried out: rates, overlay, provenance, reproducibility, refusals."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import unflip.noise
from unflip.compute import generator
from unflip.errors import ConfigError, InputError
from unflip.noise.corrupt import ClassRelations, NoisyLabels, corrupt
from unflip.noise.recipe import parse
from unflip.noise.transition import CIFAR100_SUPERCLASSES, NAMED_MAPS, symmetric

N, K = 20_000, 10
POSTERIOR = (8 * torch.randn(N, K, generator=generator(0, "posterior"))).softmax(dim=1)
CLEAN = POSTERIOR.argmax(dim=1)


def run(recipe: str, clean: Tensor = CLEAN, *, num_classes: int = K, seed: int = 0, **options: Any) -> NoisyLabels:
    return corrupt(parse(recipe), clean, num_classes=num_classes, seed=seed, **options)


def test_hybrid_lays_class_noise_over_the_pmd_labels() -> None:
    pmd_only = run("pmd1:0.35", posterior=POSTERIOR)
    hybrid = run("pmd1:0.35 + sym:0.3", posterior=POSTERIOR)
    over = run("sym:0.3", base_labels=pmd_only.labels)
    changed = float((hybrid.labels != pmd_only.labels).double().mean())
    assert changed == pytest.approx(0.3, abs=4.5 * (0.3 * 0.7 / N) ** 0.5)
    # A wrong label is put right by sym with probability 0.3 / (k - 1).
    expected = 0.65 * 0.3 + 0.35 * (1 - 0.3 / (K - 1))
    for noisy in (hybrid, over):
        assert noisy.provenance["noise_rate"] == pytest.approx(expected, abs=0.015)


def test_provenance_tells_all_and_is_json() -> None:
    noisy = run("pmd2:0.35 + asym:0.2", seed=7, posterior=POSTERIOR, relations=ClassRelations(class_map={3: 5, 5: 3}))
    told = noisy.provenance
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert (told["recipe"], told["seed"]) == ("pmd2:0.35 + asym:0.2", 7)
    assert (told["num_examples"], told["num_classes"]) == (N, K)
    wrong = noisy.labels != CLEAN
    assert told["noise_rate"] == pytest.approx(float(wrong.double().mean()), abs=1e-6)
    pmd_step, asym_step = told["steps"]
    assert (pmd_step["step"], pmd_step["asked"]) == ("pmd2:0.35", 0.35)
    assert pmd_step["expected"] == pytest.approx(0.35, abs=1e-3)
    assert pmd_step["realized"] == pmd_step["noise_rate"] == pytest.approx(0.35, abs=5e-3)
    assert pmd_step["factor"] > 0
    assert asym_step["class_map"] == {"3": 5, "5": 3}
    assert asym_step["realized"] == pytest.approx(0.2, abs=0.03)  # of classes 3 and 5 only
    assert asym_step["noise_rate"] == told["noise_rate"]


@pytest.mark.parametrize("recipe", ["pmd1:0.35", "pmd2:0.5", "pmd3:0.7", "sym:0.4", "pair:0.3", "pmd1:0.35 + sym:0.3"])
def test_same_seed_same_labels(recipe: str) -> None:
    first, again, other = (run(recipe, seed=seed, posterior=POSTERIOR) for seed in (0, 0, 1))
    assert torch.equal(first.labels, again.labels)
    assert first.provenance == again.provenance
    assert not torch.equal(first.labels, other.labels)


def test_inputs_stay_as_they_were() -> None:
    clean, posterior = CLEAN.clone(), POSTERIOR.clone()
    run("pmd1:0.35 + sym:0.3", clean, posterior=posterior)
    assert torch.equal(clean, CLEAN)
    assert torch.equal(posterior, POSTERIOR)


def test_asym_takes_the_map_or_else_pairs_within_superclasses() -> None:
    mapped = run("asym:0.4", relations=ClassRelations(class_map=NAMED_MAPS["cifar10"]))
    assert set(CLEAN[mapped.labels != CLEAN].tolist()) == set(NAMED_MAPS["cifar10"])

    clean = torch.arange(100).repeat(50)
    relations = ClassRelations(superclasses=CIFAR100_SUPERCLASSES)
    superclass = torch.tensor(CIFAR100_SUPERCLASSES)
    for recipe, num_moved in (("asym:0.4", 40), ("asym-pairs:0.4", 40), ("asym-cycle:0.4", 100)):
        noisy = run(recipe, clean, num_classes=100, relations=relations)
        assert torch.equal(superclass[noisy.labels], superclass[clean])
        assert len(noisy.provenance["steps"][0]["class_map"]) == num_moved
        assert noisy.provenance["steps"][0]["realized"] == pytest.approx(0.4, abs=0.06)


def test_matrix_step_takes_the_given_matrix() -> None:
    noisy = run("matrix", relations=ClassRelations(matrix=symmetric(K, 0.25)))
    assert noisy.provenance["steps"][0]["asked"] is None
    assert noisy.provenance["noise_rate"] == pytest.approx(0.25, abs=4.5 * (0.25 * 0.75 / N) ** 0.5)


def test_two_classes() -> None:
    posterior = (4 * torch.randn(N, 2, generator=generator(2))).softmax(dim=1)
    clean = posterior.argmax(dim=1)
    for recipe in ("pmd1:0.35", "pmd2:0.45", "pmd3:0.4 + sym:0.1"):
        noisy = run(recipe, clean, num_classes=2, posterior=posterior)
        step = noisy.provenance["steps"][0]
        assert step["realized"] == pytest.approx(step["asked"], abs=5e-3)


def test_pmd_is_refused_on_labels_that_are_noisy_already() -> None:
    noisy = run("sym:0.3").labels
    with pytest.raises(ConfigError, match=r"pmd1:0\.35 redraws every label"):
        run("pmd1:0.35", posterior=POSTERIOR, base_labels=noisy)
    run("pmd1:0.35", posterior=POSTERIOR, base_labels=CLEAN.clone())


@pytest.mark.parametrize(
    ("recipe", "needs", "flag"),
    [
        ("pmd1:0.35", "posteriors", ""),
        ("asym:0.3", "a class map or superclasses", "--class-map FILE.json"),
        ("asym-pairs:0.3", "superclasses", "--class-map cifar100"),
        ("asym-cycle:0.3", "superclasses", "--class-map cifar100"),
        ("matrix", "a transition matrix", "--matrix FILE.npy"),
    ],
)
def test_a_step_says_what_it_lacks_and_which_option_gives_it(recipe: str, needs: str, flag: str) -> None:
    with pytest.raises(ConfigError) as error:
        run(recipe)
    key = flag.removeprefix("--").replace("-", "_").replace(" ", "=")
    hint = f"; corrupt takes {flag}, train takes --set noise.{key}" if flag else ""
    assert str(error.value) == f"the noise step {recipe} needs {needs}; none given{hint}"


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="9999 labels for 20000 examples"):
        run("sym:0.3", base_labels=CLEAN[:9999])
    with pytest.raises(InputError, match="superclasses of 100 classes; the data have 10"):
        run("asym-cycle:0.3", relations=ClassRelations(superclasses=CIFAR100_SUPERCLASSES))
    with pytest.raises(InputError, match="transition matrix is for 3 classes; the data have 10"):
        run("matrix", relations=ClassRelations(matrix=symmetric(3, 0.2)))
    with pytest.raises(InputError, match=r"posterior has shape \(20000, 10\); expected \(20000, 12\)"):
        run("pmd1:0.3", num_classes=12, posterior=POSTERIOR)


def test_labels_are_corrupted_in_one_line() -> None:
    posterior = (2 * torch.randn(500, 4, generator=torch.Generator().manual_seed(0))).softmax(1)
    clean = posterior.argmax(1)
    noisy = unflip.noise.corrupt_labels(clean, "pmd:I:0.35", posterior=posterior, seed=3)
    assert noisy.equal(corrupt(parse("pmd1:0.35"), clean, num_classes=4, seed=3, posterior=posterior).labels)
    assert float((noisy != clean).double().mean()) == pytest.approx(0.35, abs=0.03)
    assert unflip.noise.corrupt_labels(clean, "sym:0.2").equal(
        corrupt(parse("sym:0.2"), clean, num_classes=4, seed=0).labels
    )


def test_another_name_is_not_part_of_noise() -> None:
    with pytest.raises(AttributeError, match="no attribute 'corupt'"):
        unflip.noise.corupt  # noqa: B018
