"""A run in memory: arrays in, model and labels out, no folder and no checkpoint."""

from typing import NamedTuple

import pyarrow as pa
import torch

from unflip.data.dataset import Dataset
from unflip.noise.transition import Realised
from unflip.training.config import RunConfig
from unflip.training.evaluation import accuracy
from unflip.training.model_file import Model
from unflip.training.outcome import Best, conclude
from unflip.training.passes import predict_probs
from unflip.training.processes import Processes
from unflip.training.progress import Reporter
from unflip.training.session import make_model, make_trainer
from unflip.training.trainer import Trainer


class Remembered(NamedTuple):
    """What a run in memory leaves behind."""

    model: Model
    labels: pa.Table
    """As in ``labels.parquet``."""
    noise: Realised | None
    """What is believed of the given labels."""


def train_in_memory(config: RunConfig, dataset: Dataset, processes: Processes) -> Remembered:
    """Train to the end and return what came out; the selection rule is ``last`` or ``noisy-val``."""
    common = config.common
    trainer = make_trainer(config, dataset, processes, Reporter(), Trainer)
    best, val = Best(), trainer.val_rows
    with torch.random.fork_rng(devices=[]):  # layers draw from torch's own generator; the caller's goes on as it was
        for epoch in range(1, common.epochs + 1):
            line = trainer.run_epoch(epoch)
            if common.select == "noisy-val":
                probs = predict_probs(trainer.networks, trainer.source, processes, val)
                line["val_accuracy"] = accuracy(probs, trainer.labels.given[val])
            best.consider(common.select, line, trainer.networks)
    outcome = conclude(trainer, best, common.epochs, clean_val=False)
    table = trainer.labels.table(outcome.probs, outcome.votes, splits=dataset.splits())
    return Remembered(make_model(config, dataset, best), table, outcome.noise)
