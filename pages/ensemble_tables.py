"""Cross-fitted ensemble of `unflip`: unequal classes, an ablation, and other methods with as many networks.

    UNFLIP_DATA=FOLDER python pages/ensemble_tables.py docs/results/ensemble.jsonl --page docs/results/unflip.md

- `unequal`: CIFAR-10 features, class c keeps `4,500 ratio^(-c/9)` of the first 45,000 examples;
  `test` weights the classes as in training, `balanced` equally
- `ablation`: `unflip` without one of its parts at a time
- `members`: `plc` with four seeds and `dividemix` with two (four networks each) averaged, and the same with the class
  prior that `unflip` estimated; their labels are the majority vote of the corrected labels of the runs

Ablation and members use six settings, chosen in advance: ROWS. All with the preset `features`,
4,500 of 45,000 examples held out (unequal classes: a tenth), results of the last epoch. A line of the file is one run;
runs in the file are not repeated. --page fills the tables of that page.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import marked
from features_trials import TAKE, files, run_missing

ROWS = (
    "cifar10 1 0.35", "cifar10 2 0.70", "cifar10 1 0.35 + sym:0.30",
    "cifar100 1 0.35", "cifar100 3 0.70", "cifar100 1 0.35 + sym:0.60",
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "one member, in-sample": {"unflip.members": 1},
    "no mixup": {"unflip.mixup": 0.0},
    "no averaged weights": {"unflip.ema_decay": 0.0},
    "no stacking": {"unflip.view_weights": [1.0, 0.0]},
    "classes as they are": {"unflip.prior": "empirical"},
    "given labels as targets": {"unflip.soft_targets": False},
}
RATIOS = (3, 10, 30)
NOISES = ("sym:0.40", "asym:0.30", "pmd 0.35", "pmd 0.70")
FIGURES = {"test": "test", "balanced": "balanced test", "labels": "labels right"}


def unequal(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    import unflip

    kind, _, level = task["noise"].partition(" ")
    data, labels, _ = files(f"cifar10 1 {level or '0.35'}")
    with np.load(data) as content:
        arrays = {name: content[name] for name in ("train", "train_labels", "test", "test_labels")}
    clean = arrays["train_labels"][:TAKE].astype(np.int64)
    kept = np.concatenate([np.flatnonzero(clean == c)[: round(4500 * task["ratio"] ** (-c / 9))] for c in range(10)])
    kept.sort()
    np.savez(folder / "data.npz", **(arrays | {"train": arrays["train"][kept], "train_labels": clean[kept]}))
    np.save(folder / "given.npy", np.load(labels)[kept])
    by_classes = {} if level else {"noise": task["noise"]}
    settings = {"data.val_fraction": 0.1} | ({"noise.class_map": "cifar10"} if kind.startswith("asym") else {})
    run = unflip.train(
        folder / "data.npz", folder / "run", method=task["method"], preset="features", seed=task["seed"], select="last",
        device="cpu", threads=1, settings=settings, **({"labels": folder / "given.npy"} if level else by_classes),
    )  # fmt: skip
    by_class = run.result["tests"]["test"]["per_class"]
    shares = np.bincount(clean[kept], minlength=10) / len(kept)
    return {
        "test": float(shares @ by_class),
        "balanced": run.result["tests"]["test"]["balanced"],
        "labels": run.result["label_accuracy"]["current"],
        "auroc": run.result["score_auroc"],
        "inequality": run.metrics[-1].get("prior_trust"),
    }


def one(row: str, folder: Path, method: str, seed: int, settings: dict[str, Any]) -> Any:
    import unflip

    data, labels, noise = files(row)
    more: dict[str, Any] = {"noise": noise} if noise else {}
    return unflip.train(
        data, folder / f"{method}-{seed}", labels=labels, limit=TAKE, method=method, preset="features", seed=seed,
        select="last", device="cpu", threads=1, settings={"data.val_fraction": 0.1} | settings, **more,
    )  # fmt: skip


def ablation(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    run = one(task["row"], folder, "unflip", task["seed"], VARIANTS[task["variant"]])
    return {
        "test": run.result["test_accuracy"]["last"],
        "labels": run.result["label_accuracy"]["current"],
        "auroc": run.result["score_auroc"],
        "seconds": run.result["seconds"],
        "inequality": run.metrics[-1]["prior_trust"],
    }


def members(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Average several runs of a method on the same noisy labels; each has its own split, order and first weights."""
    import torch

    import unflip
    from unflip.methods.unflip.posterior import class_prior, fit_prior_offsets

    data, _, _ = files(task["row"])
    given = folder / "given.npy"
    ensemble = one(task["row"], folder, "unflip", task["seed"], {})
    np.save(given, ensemble.labels()["given_label"].to_numpy())
    prior_trust = ensemble.metrics[-1]["prior_trust"]
    probs, predictions = [], []
    for number in range({"plc": 4, "dividemix": 2}[task["method"]]):
        run = unflip.train(
            data, folder / str(number), labels=given, limit=TAKE, method=task["method"], preset="features",
            seed=10 * task["seed"] + number, select="last", device="cpu", threads=1,
        )  # fmt: skip
        probs.append(torch.as_tensor(unflip.predict(run, data, part="test", device="cpu").probs))
        predictions.append(run.labels()["current_label"].to_numpy())
    with np.load(data) as content:
        truth, clean = torch.from_numpy(content["test_labels"].astype(np.int64)), content["train_labels"][:TAKE]
    mean = torch.stack(probs).mean(0).clamp(min=1e-12).log()
    moved = mean + fit_prior_offsets(mean, (prior_trust * class_prior(mean).log()).softmax(0))
    counts = np.zeros((len(clean), mean.shape[1]))
    for current in predictions:
        counts[np.arange(len(clean)), current] += 1
    return {
        "single": float((probs[0].argmax(1) == truth).float().mean()),
        "averaged": float((mean.argmax(1) == truth).float().mean()),
        "moved": float((moved.argmax(1) == truth).float().mean()),
        "labels": float((counts.argmax(1) == clean).mean()),
    }


RUNS = {"unequal": unequal, "ablation": ablation, "members": members}


def run_one(task: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        return task | RUNS[task["experiment"]](task, Path(name))


def tasks(seed: int) -> Iterator[dict[str, Any]]:
    for ratio in RATIOS:
        for noise in NOISES:
            for method in ("plc", "unflip"):
                yield {"experiment": "unequal", "ratio": ratio, "noise": noise, "method": method, "seed": seed}
    for row in ROWS:
        for variant in VARIANTS:
            yield {"experiment": "ablation", "row": row, "variant": variant, "seed": seed}
        for method in ("plc", "dividemix"):
            yield {"experiment": "members", "row": row, "method": method, "seed": seed}


def mean(lines: list[dict[str, Any]], figure: str) -> str:
    values = [100 * line[figure] for line in lines]
    return f"{statistics.mean(values):.2f}" if values else ""


def select(lines: list[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    return [line for line in lines if values.items() <= line.items()]


def unequal_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield, for every ratio and noise, the results of plc and unflip, and the estimated prior trust."""
    yield "| ratio | noise | " + " | ".join(f"{title}: plc | unflip" for title in FIGURES.values()) + " | prior trust |"
    yield "| --- | --- |" + " --- |" * (2 * len(FIGURES) + 1)
    for ratio in RATIOS:
        for noise in NOISES:
            cells = []
            for figure in FIGURES:
                both = {
                    method: select(lines, experiment="unequal", ratio=ratio, noise=noise, method=method)
                    for method in ("plc", "unflip")
                }
                texts = [mean(both[method], figure) for method in both]
                best = max(texts)
                cells += [f"**{text}**" if text == best else text for text in texts]
            prior_trust = statistics.mean(line["inequality"] for line in both["unflip"])
            yield f"| {ratio} | {noise} | " + " | ".join(cells) + f" | {prior_trust:.2f} |"


def ablation_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "| test / labels right | " + " | ".join(map(title_of, ROWS)) + " | mean |"
    yield "| --- |" + " --- |" * (len(ROWS) + 1)
    for variant in VARIANTS:
        found = [select(lines, experiment="ablation", row=row, variant=variant) for row in ROWS]
        cells = [
            f"{mean(some, 'test')} / {mean(some, 'labels')}"
            for some in [*found, [line for some in found for line in some]]
        ]
        yield f"| {variant} | " + " | ".join(cells) + " |"


def members_table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "| test / labels right | " + " | ".join(map(title_of, ROWS)) + " | mean |"
    yield "| --- |" + " --- |" * (len(ROWS) + 1)
    whole = [select(lines, experiment="ablation", row=row, variant="whole") for row in ROWS]
    cells = [
        f"{mean(some, 'test')} / {mean(some, 'labels')}" for some in [*whole, [line for some in whole for line in some]]
    ]
    yield "| unflip | " + " | ".join(cells) + " |"
    for method, title in (("plc", "four plc"), ("dividemix", "two dividemix")):
        found = [select(lines, experiment="members", row=row, method=method) for row in ROWS]
        found.append([line for some in found for line in some])
        for figure, what in (("single", f"one {method}"), ("averaged", title), ("moved", f"{title}, same class sizes")):
            cells = [
                mean(some, figure) + (f" / {mean(some, 'labels')}" if figure != "single" else "") for some in found
            ]
            yield f"| {what} | " + " | ".join(cells) + " |"


def title_of(row: str) -> str:
    """Return the title of a row."""
    base, _, noise = row.partition(" + ")
    data, kind, level = base.split()
    kind, more = {"1": "I", "2": "II", "3": "III"}[kind], noise.replace("sym:0.", " + ").replace(" + ", " + ", 1)
    return f"{data.upper().replace('CIFAR', 'CIFAR-')} {kind} {level[2:]} %{f'{more} % sym.' if noise else ''}"


TABLES = {"unequal": unequal_table, "ablation": ablation_table, "members": members_table}


def fill(page: str, lines: list[dict[str, Any]]) -> str:
    """Return the page with its tables filled from the results."""
    return marked.fill(page, "ensemble", lambda name: TABLES[name](lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join(RUNS), help="of the experiments: unequal, ablation, members")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    wanted = [task for seed in arguments.seeds.split(",") for task in tasks(int(seed))]
    wanted = [task for task in wanted if task["experiment"] in arguments.only.split(",")]
    run_missing(arguments.out, wanted, run_one, arguments.jobs)
    lines = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    if arguments.page is None:
        for name in arguments.only.split(","):
            print("\n".join(TABLES[name](lines)))
        return
    arguments.page.write_text(fill(arguments.page.read_text("utf-8"), lines), "utf-8")


if __name__ == "__main__":
    main()
