"""The end of a run: score every example with the selected model and write everything to the run folder."""

import numpy as np
import torch

from unflip.compute.passes import scan
from unflip.data.dataset import Dataset
from unflip.data.files.arrays import write_array
from unflip.files import write_json
from unflip.runs import layout
from unflip.runs.config import RunConfig
from unflip.runs.folder import Run
from unflip.runs.labels import label_table
from unflip.training.building import make_model
from unflip.training.evaluation import Truth, full_report
from unflip.training.outcome import conclude
from unflip.training.result import make_result
from unflip.training.state import RunState
from unflip.training.trainer import Trainer


def write_results(
    run: Run, config: RunConfig, dataset: Dataset, trainer: Trainer, state: RunState, truth: Truth
) -> None:
    """Score every example with the selected model, correct the validation labels, and write the results.

    Args:
        run: the run folder; only the first process writes to it.
        config: the run's configuration.
        dataset: the data it learnt from.
        trainer: the trainer after the last epoch.
        state: the metrics of the epochs, and which one was selected.
        truth: clean labels and test sets, for evaluation only.
    """
    processes, epochs = trainer.processes, config.common.epochs
    gaussians, last_features = trainer.method.gaussians(), None
    if gaussians is not None and state.best.epoch != epochs:  # they belong to the last epoch's features
        rows = torch.arange(len(trainer.labels), device=processes.device)
        last_features = scan(trainer.networks[0], trainer.source, rows, processes).features
    outcome, features = conclude(trainer, state.best, epochs, clean_val=dataset.clean_val)
    tests = {name: full_report(outcome.model, test, processes) for name, test in truth.tests.items()}
    if not processes.is_first:
        return
    if gaussians is not None:
        run.write_gaussians(gaussians)
    run.write_features(features, last_features)
    del features, last_features  # the table takes memory, too
    table = label_table(
        trainer.labels, outcome.assessment,
        splits=dataset.splits(), ids=dataset.ids, class_names=dataset.class_names,
    )  # fmt: skip
    run.write_labels(table, trainer.labels.history())
    if outcome.noise is not None:
        write_array(run.own(layout.TRANSITION), outcome.noise.matrix.numpy().astype(np.float32))
    make_model(config, dataset, state.best).save(run.own(layout.MODEL))
    result = make_result(config, dataset, state, truth=truth, trainer=trainer, outcome=outcome, tests=tests)
    write_json(run.own(layout.RESULT), result)
