"""A run in memory: arrays in, model and labels out, without folder and checkpoints."""

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from unflip.compute.passes import predict_probs
from unflip.compute.processes import Processes
from unflip.data.raw import RawData
from unflip.noise.transition import NoiseProfile
from unflip.progress import Reporter
from unflip.runs.config import RunConfig
from unflip.runs.labels import label_table
from unflip.runs.model_file import Model
from unflip.training.building import make_model, make_trainer
from unflip.training.divergence import finite
from unflip.training.evaluation import accuracy
from unflip.training.outcome import conclude
from unflip.training.posterior import posterior_fit
from unflip.training.preparation import prepare_data
from unflip.training.state import BestEpoch
from unflip.training.trainer import Trainer


class MemoryRun(NamedTuple):
    """The results of a run in memory."""

    model: Model
    labels: pa.Table
    """The same table as ``labels.parquet``."""
    noise: NoiseProfile | None
    """The estimated noise of the given labels, if there is an estimate."""


def train_in_memory(config: RunConfig, raw: RawData, processes: Processes, reviewed: Tensor | None = None) -> MemoryRun:
    """Train to the end and return the results; the selection rule is ``last`` or ``noisy-val``.

    ``reviewed`` (n,) are labels decided by people, -1 for the others.
    """
    config.check()
    common = config.common
    dataset = prepare_data(config, posterior_fit(common.seed, processes, quiet=True), raw)
    dataset = replace(dataset, reviewed=reviewed)
    trainer = make_trainer(config, dataset, processes, Reporter(), Trainer)
    best, val = BestEpoch(), trainer.val_rows
    with torch.random.fork_rng(devices=[]):  # layers draw from torch's global generator; leave the caller's unchanged
        for epoch in range(1, common.epochs + 1):
            line = trainer.run_epoch(epoch)
            if common.select == "noisy-val":
                with finite(f"at the end of epoch {epoch}"):
                    probs = predict_probs(trainer.method.model(), trainer.source, processes, val)
                line["val_accuracy"] = accuracy(probs, trainer.labels.initial[val])
            best.consider(common.select, line, trainer.method.model())
    outcome, _ = conclude(trainer, best, common.epochs, clean_val=False)
    table = label_table(trainer.labels, outcome.assessment, splits=dataset.splits())
    return MemoryRun(make_model(config, dataset, best), table, outcome.noise)
