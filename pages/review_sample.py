"""A review of a random sample, simulated: how often its interval covers, and how many labels are right afterwards.

    UNFLIP_DATA=FOLDER python pages/review_sample.py docs/results/review-sample.jsonl --page docs/results/noise-rate.md

`UnflipClassifier` with its defaults is fitted once per data set and noise, seed 0 (data and noise as in
`noise_rate_table.py`). A reviewer who always knows the truth then looks at the first labels of the order `sample`, of
which there are 200, one for each seed. As `unflip review --summary` does, the share of wrong labels is estimated from
the decisions. A label that is more likely wrong than right under the quality calibrated to them is changed to its most
likely other class by the model.

- `count`, `given`: number of labels, and the fraction that is right
- by number of decisions, as means over the reviews: `covered`, whether the 95 % interval holds the true share of wrong
  labels; `width` of the interval; `error`, the absolute error of the estimate; `right`, the fraction of labels that are
  right in the end, reviewed ones included. At 0 decisions only `right`

A line of the file is one fit; lines in the file are not computed again. --page fills the table of that page.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import marked
from noise_rate_table import load, make_noisy

CELLS = [
    (data, noise)
    for data, noises in {
        "digits": ("sym:0.05", "pmd1:0.1"),
        "cifar10, 2,000": ("sym:0.05", "pmd1:0.35"),
        "cifar10, 10,000": ("sym:0.01", "pmd1:0.35"),
        "cifar100, 10,000": ("pmd1:0.35",),
    }.items()
    for noise in noises
]
DECISIONS = (0, 25, 50, 100, 200)
REVIEWS = 200


def run(data: str, noise: str) -> dict[str, Any]:
    """Fit a model, and review its labels."""
    import torch

    from unflip import UnflipClassifier
    from unflip.stats.odds import calibrate
    from unflip.stats.sampling import draw_sample, fit_review, inclusion_weights

    inputs, clean = load(data)
    given = make_noisy(data, noise, 0)
    model = UnflipClassifier(random_state=0).fit(inputs, given)
    log_odds, wrong = model.label_log_odds_, given != clean
    others = model.predict_proba(inputs)
    others[np.arange(len(given)), np.searchsorted(model.classes_, given)] = 0
    changed = model.label_issues_
    other = np.where(changed, model.labels_, model.classes_[others.argmax(1)])
    line: dict[str, Any] = {"data": data, "noise": noise, "count": len(given), "given": float(1 - wrong.mean())}
    line["0"] = {"right": float((model.labels_ == clean).mean())}
    samples = [draw_sample(log_odds, given, seed) for seed in range(REVIEWS)]
    for count in DECISIONS[1:]:
        reviews = []
        for sample in samples:
            decided = np.isin(np.arange(len(given)), sample.order[:count])
            weights, rest = inclusion_weights(sample, decided, ~decided & False), ~decided & ~np.isnan(log_odds)
            slope, rates = fit_review(log_odds[rest], log_odds[decided], wrong[decided], weights[decided])
            low, mean, high = (
                (wrong[decided].sum() + rate * rest.sum()) / len(sample.order)
                for rate in (rates[0], rates.mean(), rates[-1])
            )
            some = np.sort(log_odds[rest])[:: max(1, rest.sum() // 1_000)]  # enough for a shift, and fast
            scaling = calibrate(torch.from_numpy(some), slope, torch.from_numpy(rates))
            is_wrong = scaling.apply(torch.tensor(log_odds)).numpy() < 0
            labels = np.where(decided, clean, np.where(is_wrong, other, given))
            true = wrong[sample.order].mean()
            reviews.append((low <= true <= high, high - low, abs(mean - true), (labels == clean).mean()))
        means = (float(value) for value in np.mean(reviews, 0))
        line[str(count)] = dict(zip(("covered", "width", "error", "right"), means, strict=True))
    return line


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each data set and noise."""
    some = (25, 100, 200)
    rights = " | ".join(f"right, {count}" for count in DECISIONS)
    covered = " | ".join(f"covered, {count}" for count in some)
    yield f"| data | noise | wrong | {covered} | width, 100 | error, 100 | right, given | {rights} |"
    yield "| --- " * (6 + len(some) + len(DECISIONS)) + "|"
    for line in results:
        cells = [line["data"], line["noise"], f"{100 * (1 - line['given']):.1f}"]
        cells += [f"{100 * line[str(count)]['covered']:.0f}" for count in some]
        cells += [f"{100 * line['100'][key]:.1f}" for key in ("width", "error")]
        cells += [f"{100 * line['given']:.1f}", *(f"{100 * line[str(count)]['right']:.2f}" for count in DECISIONS)]
        yield f"| {' | '.join(cells)} |"


def fill(page: str, results: list[dict[str, Any]]) -> str:
    return marked.fill(page, "review sample", lambda _: table(results))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = options.results.read_text("utf-8").splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in lines]
    done = {(line["data"], line["noise"]) for line in results}
    for cell in CELLS:
        if cell not in done:
            results.append(run(*cell))
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(results[-1], flush=True)
    if options.page:
        options.page.write_text(fill(options.page.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main()
