"""Are near-duplicates found? Copies are made on purpose, and looked for.

    UNFLIP_DATA=FOLDER python pages/duplicates_table.py docs/results/duplicates.jsonl --page docs/results/duplicates.md

FOLDER holds trashnet/ (TrashNet, one folder per class), cifar-10-batches-bin/ and banking77/train.csv. To all 2,527
photos of TrashNet, the first 3,000 training images of CIFAR-10 or all 10,003 questions of BANKING77 come 100 copies of
each kind, of examples drawn at random: pictures saved as JPEG of quality 50, of half the size, mirrored, cropped to
80 % of each side, brighter or darker by 30 %; texts in other case, without punctuation, with a typo in every 20
letters, with more spaces. CIFAR-10's copies are scaled back to 32 pixels. Both ways see the same
features: `unflip` as `unflip clean` does, and cleanlab's Datalab with its defaults (`near_duplicate`).

A line of the file is one data set, seed and way: `recall`, by kind the share of the copies that are found together with
their original; `pairs`, all that are found; `made`, those of a copy with its original or another copy of it; `own`,
those of two examples of the data set itself, which holds duplicates of its own; `precision`, `made` over all that
hold a copy, without those of a copy and an example that equals its original; `ranking`, the average precision of the
examples' scores, where those that have a copy, or are one, should come first; `seconds`. Runs that are in the file are
not run again.
"""

import argparse
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import marked

Array = np.ndarray[Any, Any]
NAMES = {
    "trashnet": "TrashNet, 2,527 photos",
    "cifar10": "CIFAR-10, 3,000 images",
    "banking77": "BANKING77, 10,003 texts",
}
WAYS = {"unflip": "unflip", "datalab": "Datalab"}
SEEDS = (0, 1, 2)
COPIES = 100
CIFAR = 3000
PICTURES = ("JPEG 50", "half size", "mirrored", "cropped", "brightness")
TEXTS = ("case", "punctuation", "typos", "spaces")


class Examples(NamedTuple):
    """A data set and copies of its examples, as features and in their original form."""

    data: Any
    """RawData with the copies as a test set."""
    came: Mapping[str, Any]
    sources: Array
    """Which example each copy was made of."""
    kinds: Sequence[str]


def change_picture(image: Any, kind: str, random: np.random.Generator) -> Any:
    """Return a copy of a picture."""
    from PIL import Image, ImageEnhance, ImageOps

    width, height = image.size
    if kind == "JPEG 50":
        content = BytesIO()
        image.save(content, "JPEG", quality=50)
        return Image.open(BytesIO(content.getvalue())).convert("RGB")
    if kind == "half size":
        return image.resize((width // 2, height // 2), Image.Resampling.BICUBIC)
    if kind == "mirrored":
        return ImageOps.mirror(image)
    if kind == "cropped":
        wide, tall = round(0.8 * width), round(0.8 * height)
        left, top = int(random.integers(width - wide + 1)), int(random.integers(height - tall + 1))
        return image.crop((left, top, left + wide, top + tall))
    return ImageEnhance.Brightness(image).enhance(float(random.choice([0.7, 1.3])))


def change_text(text: str, kind: str, random: np.random.Generator) -> str:
    """Return a copy of a text."""
    if kind == "case":
        return text.upper() if random.random() < 0.5 else text.lower()
    if kind == "punctuation":
        return re.sub(r"[^\w\s]", "", text) + str(random.choice(["", "!", "..."]))
    if kind == "spaces":
        return re.sub(r" ", lambda _: " " * int(random.integers(1, 4)), text) + " "
    letters = list(text)
    for _ in range(max(1, len(letters) // 20)):
        place = int(random.integers(max(1, len(letters) - 1)))
        what = random.integers(3)
        if what == 0:
            letters[place : place + 2] = letters[place : place + 2][::-1]
        elif what == 1:
            del letters[place]
        else:
            letters.insert(place, letters[place])
    return "".join(letters)


def pictures(name: str, seed: int, work: Path) -> Examples:
    """Embed the pictures of a data set, once, and copies of some."""
    from PIL import Image

    from unflip.api.embed import embed

    folder = Path(os.environ["UNFLIP_DATA"])
    if name == "cifar10":
        raw = np.fromfile(folder / "cifar-10-batches-bin" / "data_batch_1.bin", np.uint8).reshape(-1, 3073)[:CIFAR]
        folder = work / name
        if not folder.exists():
            for row, image in enumerate(raw):
                path = folder / str(image[0]) / f"{row:05}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image[1:].reshape(3, 32, 32).transpose(1, 2, 0)).save(path)
    else:
        folder = folder / name
    base = embed(folder, work / f"{name}.npz", quiet=True)
    ids = [str(one) for one in base.features.train.ids]  # type: ignore[union-attr]
    random, made = np.random.default_rng(seed), work / f"{name}-{seed}"
    sources, kinds = {}, {}
    for kind in PICTURES:
        for source in random.permutation(len(ids))[:COPIES].tolist():
            image = Image.open(folder / ids[source]).convert("RGB")
            copy = change_picture(image, kind, random)
            copy = copy.resize(image.size, Image.Resampling.BICUBIC) if name == "cifar10" else copy
            called = f"{ids[source].partition('/')[0]}/{kind.replace(' ', '')}-{source}.png"
            (made / called).parent.mkdir(parents=True, exist_ok=True)
            if not (made / called).exists():  # the other way has made it
                copy.save(made / called)
            sources[called], kinds[called] = source, kind
    copies = embed(made, work / f"{name}-{seed}.npz", quiet=True)
    order = [str(one) for one in copies.features.train.ids]  # type: ignore[union-attr]
    data = replace(base.features, tests={"copies": copies.features.train})
    came = {"train": base.examples["train"], "copies": copies.examples["train"]}
    return Examples(data, came, np.array([sources[one] for one in order]), [kinds[one] for one in order])


def texts(name: str, seed: int, work: Path) -> Examples:
    """Encode the texts of a data set, and copies of some."""
    import pyarrow as pa
    import pyarrow.csv

    from unflip.data.columns import Table
    from unflip.data.dataset import Dataset, Split
    from unflip.data.options import DataOptions
    from unflip.encoders.table import encode_raw

    table = pa.csv.read_csv(
        Path(os.environ["UNFLIP_DATA"]) / "text" / name / "train.csv",
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
    )
    found, random = table["text"].to_pylist(), np.random.default_rng(seed)
    sources, kinds, made = [], [], []
    for kind in TEXTS:
        for source in random.permutation(len(found))[:COPIES].tolist():
            made.append(change_text(found[source], kind, random))
            sources.append(source)
            kinds.append(kind)
    parts = [Split(Table(pa.table({"text": some})), None) for some in (found, made)]
    raw = Dataset(parts[0], tests={"copies": parts[1]})
    data = encode_raw(raw, DataOptions(path=name, text_column=("text",)))
    return Examples(data, {"train": parts[0].inputs, "copies": parts[1].inputs}, np.array(sources), kinds)


def by_unflip(examples: Examples) -> tuple[Array, Array]:
    """Return the pairs that are found (p, 2), and a score per example (n,)."""
    from unflip.data.arrays import Shards
    from unflip.issues.duplicates import score_pairs

    parts = {"train": examples.data.train, **examples.data.tests}
    count = sum(len(part.inputs) for part in parts.values())
    features, before = Shards([part.inputs for part in parts.values()]), [examples.came[name] for name in parts]
    rows, scores, least = score_pairs(features, np.arange(count), examples.data.encoding, before)
    best = np.zeros(count)
    np.maximum.at(best, rows.ravel(), np.repeat(scores, 2))
    return rows[scores >= least], best


def by_datalab(examples: Examples) -> tuple[Array, Array]:
    """Return the same by cleanlab's Datalab: each example with those of its `near_duplicate_sets`."""
    from cleanlab import Datalab

    parts = [examples.data.train, *examples.data.tests.values()]
    features = np.concatenate([np.asarray(part.inputs) for part in parts]).astype(np.float32)
    lab = Datalab(data={"row": list(range(len(features)))}, verbosity=0)
    lab.find_issues(features=features, issue_types={"near_duplicate": {}})
    issues = lab.get_issues("near_duplicate")
    sets = [np.asarray(one, np.int64) for one in issues["near_duplicate_sets"]]
    rows = np.repeat(np.arange(len(sets)), [len(one) for one in sets])
    pairs = np.sort(np.stack([rows, np.concatenate([*sets, np.empty(0, np.int64)])], 1), axis=1)
    return np.unique(pairs, axis=0), 1 - issues["near_duplicate_score"].to_numpy()


def measure(name: str, seed: int, way: str, work: Path) -> dict[str, Any]:
    """Return a line of the file."""
    from sklearn.metrics import average_precision_score

    from unflip.data.split import identities

    examples = (texts if name == "banking77" else pictures)(name, seed, work)
    started = time.perf_counter()
    pairs, scores = (by_unflip if way == "unflip" else by_datalab)(examples)
    seconds = time.perf_counter() - started
    count = len(examples.data.train.inputs)
    origin = np.concatenate([np.arange(count), examples.sources])
    has_copy = np.isin(origin, examples.sources)
    same = np.unique(identities(examples.data.train), return_inverse=True)[1][origin]
    first, second = pairs.T
    made, held = origin[first] == origin[second], second >= count
    twins = ~made & held & (same[first] == same[second])
    found = set(second[made & (first < count)].tolist())
    recall = {
        kind: statistics.fmean(count + i in found for i, one in enumerate(examples.kinds) if one == kind)
        for kind in dict.fromkeys(examples.kinds)
    }
    return {
        "data": name,
        "seed": seed,
        "way": way,
        "recall": recall,
        "pairs": len(pairs),
        "made": int(made.sum()),
        "own": int((~held).sum()),
        "precision": float(made.sum() / max(1, (held & ~twins).sum())),
        "ranking": float(average_precision_score(has_copy, scores)),
        "seconds": round(seconds, 1),
    }


def tables(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table per kind of data: means over seeds, and how far seeds are apart."""
    found: list[str] = []
    for sets, kinds in ((("trashnet", "cifar10"), PICTURES), (("banking77",), TEXTS)):
        found += [
            f"| data | by | {' | '.join(kinds)} | precision | ranking | pairs of its own |",
            f"| --- | --- |{' --- |' * (len(kinds) + 3)}",
        ]
        for name in sets:
            for way, called in WAYS.items():
                some = [line for line in lines if (line["data"], line["way"]) == (name, way)]
                if not some:
                    continue
                cells = [_mean([line["recall"][kind] for line in some]) for kind in kinds]
                cells += [_mean([line[key] for line in some]) for key in ("precision", "ranking")]
                own = f"{statistics.fmean(line['own'] for line in some):,.0f}"
                found.append(f"| {NAMES[name]} | {called} | {' | '.join(cells)} | {own} |")
        found.append("")
    return found


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def fill(page: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with its tables filled from the results."""
    return marked.fill(page, "duplicates", lambda _: tables(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = (
        [json.loads(line) for line in options.results.read_text("utf-8").splitlines()]
        if options.results.exists()
        else []
    )
    done = {(line["data"], line["seed"], line["way"]) for line in lines}
    with tempfile.TemporaryDirectory() as work:
        for name in NAMES:
            for task in ((name, seed, way) for seed in SEEDS for way in WAYS):
                if task in done:
                    continue
                lines.append(measure(*task, Path(work)))
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    if options.page:
        options.page.write_text(fill(options.page.read_text("utf-8"), lines), "utf-8")


if __name__ == "__main__":
    main()
