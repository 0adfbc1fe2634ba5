"""check: score the given labels of new data by the model of a finished run; nothing is trained."""

import os
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unflip.api.apply import keys_of, memory_for
from unflip.api.predict import NewData, Prediction, predict_part, read_new
from unflip.api.result import Result
from unflip.api.save import write_scored
from unflip.data.arrays import Array
from unflip.data.labels import missing_labels
from unflip.data.rewrite import class_numbers
from unflip.encoders.table import example_texts
from unflip.engine.evaluation import data_path
from unflip.errors import ConfigError, InputError, UnflipWarning
from unflip.methods.base import LabelStore
from unflip.methods.unflip.posterior import score_labels
from unflip.progress import Track, untracked
from unflip.review.review import finished_run
from unflip.runs import layout
from unflip.runs.folder import Claim, Run, as_run
from unflip.runs.labels import UNLABELED, Assessment, label_table

_LISTED = 20  # classes that an error lists


@dataclass(frozen=True)
class CheckResult(Result):
    """The result of a check: scored labels, lists of issues and a report, as for any run, and the limit.

    Attributes:
        limit: the maximum fraction of wrong labels; None without a limit.
    """

    limit: float | None = None

    @property
    def wrong(self) -> float:
        """The estimated fraction of wrong labels."""
        return self.label_summary.noise_rate or 0.0

    @property
    def passed(self) -> bool:
        """Whether the fraction of wrong labels is within the limit."""
        return self.limit is None or self.wrong <= self.limit


def check(
    run: str | Path | Run,
    data: Any,
    out: str | Path | None = None,
    *,
    max_wrong: float | str | None = None,
    baseline: str | Path | None = None,
    label_column: str | None = None,
    skip_broken: bool = False,
    weights: str | Path | None = None,
    device: str = "auto",
    force: bool = False,
    track: Track = untracked,
) -> CheckResult:
    """Score the given labels of new or held-out data with the model of a run.

    Args:
        run: a finished run, or its folder.
        data: labeled data of the same kind as in training: a path, a data frame, or a pair of examples and labels. A
            split ``test`` is not used.
        out: the folder for the scores, the list of label issues and the report; by default a new temporary folder.
        max_wrong: the maximum fraction of wrong labels, such as 0.02 or ``"2%"``.
        baseline: another run or check, whose fraction of wrong labels is added to ``max_wrong``.
        label_column: the label column; by default that of the run.
        skip_broken: skip images that cannot be read.
        weights: the weights file of the backbone, if it has moved.
        device: ``auto`` (a GPU if available), ``cpu``, ``cuda`` or ``mps``.
        force: replace an earlier check in ``out``.
        track: progress callback.
    """
    trained = finished_run(Path(run)) if isinstance(run, str | Path) else run
    limit = None if max_wrong is None else parse_fraction(max_wrong)
    if baseline is not None:
        if limit is None:
            raise ConfigError("--baseline needs --max-wrong: by how much the baseline may be exceeded")
        limit += finished_run(Path(baseline)).label_summary.noise_rate or 0.0
    done, memory = as_run(out), memory_for(trained, data, label_column)
    column = None if memory else label_column or trained.own_data().label_column
    inputs = [trained.folder, *(Path(path) for path in (data, baseline) if isinstance(path, str | Path))]
    with Claim(done, force=force, inputs=inputs) as claim, claim.located(memory or data) as path:
        new = read_new(trained, str(path), label_column=column, skip_broken=skip_broken, weights=weights)
        parts = [name for name, part in new.raw.parts().items() if name in ("train", "val") and len(part.inputs)]
        if not parts:
            raise InputError(f"data {path}: no examples besides test sets; name the folder or file of one")
        predictions = [predict_part(new, part, device=device, track=track) for part in parts]
        scored = _score(trained, new, parts, predictions)
        claim.hold()
        done.clear()
        done.begin()
        _write(done, trained, new, predictions, *scored)
    return CheckResult(done.folder, memory, limit=limit)


def parse_fraction(value: float | str) -> float:
    """Return a fraction, which may be given in percent.

    >>> parse_fraction("2%"), parse_fraction("0.02"), parse_fraction(0)
    (0.02, 0.02, 0.0)
    """
    text = str(value).strip()
    try:
        fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise ConfigError(f"--max-wrong {value}: must be a fraction from 0 to 1, or such as 2%")
    return fraction


def _score(trained: Run, new: NewData, parts: list[str], predictions: list[Prediction]) -> tuple[Any, Any]:
    """Return the label table of new data, and the equally likely numbers (q,) of wrong labels.

    Examples without a label get a suggestion, but have no quality.
    """
    names, probs = trained.class_names, torch.cat([prediction.probs for prediction in predictions])
    labels = []
    for prediction in predictions:
        numbers = class_numbers(prediction.given, len(prediction.probs), names, new.raw.class_names)
        wrong = numbers < 0
        if prediction.given is not None:
            wrong &= ~missing_labels(prediction.given, trained.config.common.data.unlabeled)
        if wrong.any():
            row = int(wrong.argmax())
            label = "none" if prediction.given is None else f"'{prediction.given[row]}'"
            known = ", ".join(names[:_LISTED])
            raise InputError(f"{new.what}, row {row}: label {label} is no class of the run, which are {known}")
        labels.append(torch.from_numpy(numbers))
    given, ids = torch.cat(labels), [name for prediction in predictions for name in prediction.ids]
    splits = np.repeat(parts, [len(part) for part in labels])
    splits = np.where(given.numpy() < 0, UNLABELED, splits).tolist()
    labeled = given >= 0
    if not bool(labeled.any()):
        raise InputError(f"{new.what}: no example has a label")
    best, own_odds, errors = score_labels(probs[labeled], given[labeled])
    suggested, log_odds = probs.argmax(1), torch.full_like(probs[:, 0], torch.nan, dtype=own_odds.dtype)
    suggested[labeled], log_odds[labeled] = best, own_odds
    keys = keys_of(new.raw, names)
    digests = None if keys.digests is None or len(keys.digests) != len(ids) else [*keys.digests]
    seen = _seen(trained, new, ids, digests)
    if seen.any():
        text = f"the run was trained on {int(seen.sum()):,} of {len(seen):,} examples: their scores are in-sample"
        warnings.warn(f"{new.what}: {text}", UnflipWarning, stacklevel=3)
    columns = torch.stack([given, given, suggested], 1).clamp(min=0)
    top2_probs, top2 = probs.topk(2)
    by_label = probs.gather(1, columns)
    fold, unseen = torch.full_like(given, -1), torch.from_numpy(~seen)
    assessment = Assessment(by_label, by_label, None, top2, top2_probs, log_odds, suggested, unseen, fold)
    store, named = LabelStore(given, len(names)), None if keys.ids is None else ids
    table = label_table(store, assessment, splits=splits, ids=named, digests=digests, class_names=names)
    return table, errors


def _seen(trained: Run, new: NewData, ids: list[str], digests: list[str] | None) -> Array:
    """Return a mask (n,) of the examples that the run was trained on: by content, or for image files by path."""
    known = trained.labels(["id", "digest"])
    if digests is not None:
        return np.isin(digests, [digest or "" for digest in known["digest"].to_pylist()])

    def paths(data: str, names: list[str]) -> list[str]:
        root = data if os.path.isdir(data) else os.path.dirname(data)  # noqa: PTH112, PTH120
        return [os.path.abspath(os.path.join(root, name)) for name in names]  # noqa: PTH100, PTH118

    return np.isin(paths(new.options.path, ids), paths(trained.own_data().path, known["id"].to_pylist()))


def _write(run: Run, trained: Run, new: NewData, predictions: list[Prediction], table: Any, errors: Any) -> None:
    """Write the files of a run, with the model and the configuration of the trained one."""
    config, raw, path = trained.config, new.raw, new.options.path
    unused = dict.fromkeys(("labels", "reviewed", "limit", "annotations")) | {"annotator_columns": ()}
    data = config.common.data.model_copy(update=unused | {"path": data_path(path)})
    run.write_config(replace(config, common=config.common.model_copy(update={"data": data})).to_toml())
    shutil.copyfile(trained.folder / layout.MODEL, run.own(layout.MODEL))
    skipped = tuple(image for prediction in predictions for image in prediction.skipped)
    if skipped:
        run.write_skipped(skipped)
    about = trained.result | {"skipped": len(skipped), "checked_with": str(trained.folder.absolute())}
    write_scored(run, raw, path, table, errors, about, example_texts(raw, new.model.encoding))
