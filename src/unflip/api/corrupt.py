"""corrupt: make noisy labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from unflip.api.options import CORRUPT, option_tree
from unflip.data.arrays import write_array
from unflip.data.corrupt import corrupt_labels, needs_posterior
from unflip.data.dataset import Dataset
from unflip.data.labeling import label_data
from unflip.data.labels import are_misleading, whole_number
from unflip.data.loaders import check_used, load_raw
from unflip.encoders.table import encode_raw
from unflip.engine.distributed import Distributed
from unflip.engine.posterior import find_posterior
from unflip.errors import ConfigError
from unflip.files import write_json
from unflip.noise.recipe import parse
from unflip.runs.config import check_section
from unflip.runs.labels import write_table
from unflip.runs.layout import check_output
from unflip.runs.options import Common, Execution


@dataclass(frozen=True)
class CorruptResult:
    """The files with the noisy labels and with the record of how they were made, and the share of wrong labels."""

    labels: Path
    record: Path
    noise_rate: float


def corrupt(
    data: str | Path,
    noise: str,
    out: str | Path,
    *,
    save_posterior: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
    **options: Any,
) -> CorruptResult:
    """Add label noise by a recipe, and write the noisy labels with a record of how they were made (.json).

    Args:
        data: feature arrays with clean ``train_labels``, images, or the name of a built-in data set.
        noise: the recipe, such as ``pmd1:0.35 + sym:0.30``; docs/noise.md lists all steps.
        out: the .npy or .csv file for the labels. The record is written next to it.
        save_posterior: an .npy file for the class probabilities that a pmd step used.
        seed: random seed.
        force: overwrite existing files.
        options: see ``unflip.api.options.CORRUPT`` and ``unflip corrupt --help``.
    """
    recipe, out = parse(noise), Path(out)
    record = out.with_suffix(".json")
    files = (options.get(name) for name in ("labels", "posterior", "class_map", "matrix"))
    inputs = [data, *(file for file in files if file is not None)]
    check_output(out, (".npy", ".csv"), force=force, inputs=inputs)
    check_output(record, force=force, inputs=inputs, option="next to --out:")
    if save_posterior is not None:
        check_output(Path(save_posterior), (".npy",), force=force, inputs=inputs, option="--save-posterior")
    tree = option_tree(CORRUPT, {"seed": seed, **options})
    execution = check_section(Execution, tree.pop("execution", {}))
    typed, needed = tree.get("data", {}), tree.get("noise", {})
    given = tree | {"data": {"path": str(data), **typed}, "noise": {"recipe": str(recipe), **needed}}
    common = check_section(Common, given)
    data_options, noise_options = common.data, common.noise
    check_used(data_options, typed)
    if save_posterior is not None and not needs_posterior(noise_options):
        raise ConfigError(f"--save-posterior: the recipe {noise} has no pmd step")
    processes = Distributed(execution.device, threads=execution.threads)
    before = label_data(encode_raw(load_raw(data_options), data_options), data_options)
    posterior = find_posterior(before, noise_options, common.seed, processes, quiet=execution.quiet)
    after = corrupt_labels(before, noise_options, posterior, common.seed)
    assert after.noise_record is not None
    if save_posterior and posterior is not None:
        write_array(Path(save_posterior), posterior.numpy())
    write_json(record, after.noise_record | ({"classes": after.class_names} if after.class_names else {}))
    _write_labels(out, after)  # last, so that labels always have a record
    return CorruptResult(out, record, after.noise_record["noise_rate"])


def _write_labels(out: Path, data: Dataset) -> None:
    numbers, names = data.given.numpy().astype(np.min_scalar_type(data.num_classes - 1)), data.class_names or ()
    if out.suffix.lower() == ".csv":
        write_table(out, pa.table({"label": [names[number] for number in numbers] if names else numbers}))
    elif names and all(name == str(whole_number(name)) for name in names):
        write_array(out, np.array([int(name) for name in names])[numbers])
    else:
        write_array(out, np.array(names)[numbers] if are_misleading(names) else numbers)
