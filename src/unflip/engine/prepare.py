"""What a run needs: its data (load, encode, corrupt, scale, split), posteriors for pmd noise, trainer and model."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Shards
from unflip.data.corrupt import corrupt_labels, given_posterior, needs_posterior
from unflip.data.dataset import Dataset
from unflip.data.images import IMAGENET
from unflip.data.labeling import label_data, settle_scale
from unflip.data.loaders import load_raw
from unflip.data.options import IN_SAMPLE, NoiseOptions
from unflip.data.sources import Source, Standardization
from unflip.data.split import split
from unflip.encoders.table import encode_raw
from unflip.engine.checkpoints import BestEpoch
from unflip.engine.distributed import Distributed
from unflip.engine.evaluation import check_selection
from unflip.engine.inference import forward
from unflip.engine.trainer import Trainer
from unflip.errors import InputError
from unflip.methods import find_method
from unflip.methods.base import EpochOutputs, LabelStore, Standard, TrainContext
from unflip.nn import networks
from unflip.nn.backbone import PretrainedOptions
from unflip.nn.base import Network, build_network, initial_seed
from unflip.nn.mlp import MLPOptions
from unflip.options import Options
from unflip.progress import Reporter, make_reporter
from unflip.runs.config import RunConfig
from unflip.runs.model_file import Model
from unflip.runs.options import OptimizerOptions
from unflip.seeding import derive, generator

FOLDS = 5
EPOCHS = 10  # per fold; the released generator trains one network for 25 epochs
PosteriorEstimator = Callable[[Source, Tensor, int, str], Tensor]
"""(inputs, clean labels, number of classes, CROSS_FIT or IN_SAMPLE) -> class probabilities (n, k)."""


def prepare_data(
    config: RunConfig, processes: Distributed, raw: Dataset | None = None, *, quiet: bool = True
) -> Dataset:
    """Load, encode, corrupt, scale and split the data of a run.

    Args:
        config: the run's configuration.
        processes: the device on which posteriors for pmd noise are estimated.
        raw: the output of a loader, if the data is loaded already.
        quiet: show no progress.
    """
    common, track = config.common, make_reporter(quiet or not processes.is_first).track
    raw = load_raw(common.data, config.parts) if raw is None else raw
    normalization = _network_normalization(config, raw)
    if raw.holds_images and normalization is not None:
        raw = replace(raw, normalization=normalization)
    raw = encode_raw(raw, common.data, track)
    data = label_data(raw, common.data, track, normalization).joined()  # validation labels are corrupted, too
    if common.noise.recipe is not None:
        estimate = posterior_fit(common.seed, processes, quiet=quiet)
        data = corrupt_labels(data, common.noise, find_posterior(data, common.noise, estimate), common.seed)
    if common.data.standardize == "auto":
        data = settle_scale(data)  # from the noisy labels: it must not depend on clean ones
    dataset = split(data, common.data.val_fraction, common.seed)
    check_selection(
        common.select,
        has_val=bool(dataset.is_val.any()),
        has_truth=dataset.clean is not None or dataset.clean_val,
        has_test=bool(dataset.tests),
    )
    return dataset


def _network_normalization(config: RunConfig, raw: Dataset) -> Standardization | None:
    """Return the normalization that the network's pretrained weights need; None if the data determines it.

    Arrays of images must be bytes for such weights, unless ``data.standardize`` is off.
    """
    common, options = config.common, config.network_options
    constants = networks.load(common.network).normalization
    own = None if constants is None else Standardization(*(torch.full((1, 1, 1), value) for value in constants))
    if raw.holds_images:
        return own
    if not isinstance(options, PretrainedOptions) or not options.pretrained or common.data.standardize == "off":
        return None
    arrays = {name: part.inputs for name, part in raw.parts().items() if isinstance(part.inputs, np.ndarray | Shards)}
    if "train" not in arrays or arrays["train"].ndim != 4:
        return None
    for name, array in arrays.items():
        if array.dtype != np.uint8:
            raise InputError(
                f"{common.data.path}, '{name}': type {array.dtype}, and {common.network} needs images of type uint8; "
                "if they are normalized already, --set data.standardize=off"
            )
    if own is not None or arrays["train"].shape[1] == 3:
        return own or IMAGENET
    return Standardization(*(value.mean().view(1, 1, 1) for value in (IMAGENET.mean, IMAGENET.std)))


def find_posterior(data: Dataset, noise: NoiseOptions, estimate: PosteriorEstimator) -> Tensor | None:
    """Return the posteriors (n, k) that a noise recipe needs, read or estimated; None if it needs none."""
    if not needs_posterior(noise):
        return None
    given = given_posterior(noise, data)
    return estimate(data.source, data.truth, data.num_classes, noise.posterior) if given is None else given


def make_model(config: RunConfig, dataset: Dataset, best: BestEpoch) -> Model:
    """Return the model of the selected epoch, with everything needed to rebuild it and to prepare its inputs."""
    return Model(
        network=config.common.network,
        options=config.network_options.model_dump(mode="json"),
        input_shape=dataset.source.shape,
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        standardization=dataset.standardization,
        state=best.state,
        frame=dataset.frame,
        encoding=dataset.encoding,
    )


def make_trainer(config: RunConfig, dataset: Dataset, processes: Distributed, reporter: Reporter) -> Trainer:
    """Build a run's method and networks, and the trainer that trains them.

    Args:
        config: the run's configuration.
        dataset: the prepared data.
        processes: the device and the processes of the run.
        reporter: receives every step.
    """
    common, device = config.common, processes.device
    reviewed = None if dataset.reviewed is None else dataset.reviewed.to(device)
    train = dataset.trains.nonzero()[:, 0].to(device)
    context = TrainContext(
        num_classes=dataset.num_classes,
        train=train,
        epochs=common.epochs,
        seed=common.seed,
        batch_size=common.optimizer.batch_size,
        lr_factor=lambda progress: common.optimizer.lr_factor(progress, common.epochs),
        device=device,
        has_val=bool(dataset.is_val.any()),
        of_rows=len(dataset.source.shape) == 1,
        groups=None if dataset.same is None else dataset.same.to(device)[train],
    )
    spec = find_method(common.method)

    def build(position: int) -> Network:
        shape, seed = dataset.source.shape, initial_seed(common.seed, position)
        return build_network(common.network, config.network_options, shape, dataset.num_classes, seed)

    return Trainer(
        spec.build(config.parts, context),
        spec.build_networks(config.parts, context, build),
        dataset.source.to(device),
        LabelStore(dataset.given.to(device), dataset.num_classes, reviewed),
        common.optimizer,
        processes,
        reporter,
        dataset.is_val.nonzero()[:, 0].to(device),
    )


class Recorded(Standard):
    """Cross-entropy that keeps the probabilities of the training passes."""

    records_probs = True

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Keep the probabilities of the last epoch."""
        self.last_probs = observed.probs
        return {}


@dataclass(frozen=True)
class PosteriorFit:
    """Estimates posteriors with an MLP; see :meth:`__call__`."""

    seed: int
    processes: Distributed
    reporter: Reporter
    network: MLPOptions = field(default_factory=MLPOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    epochs: int = EPOCHS

    def __call__(self, source: Source, clean: Tensor, num_classes: int, kind: str) -> Tensor:
        """Return the class probabilities (n, k) of all examples.

        Args:
            source: inputs of the n examples.
            clean: their true classes (n,).
            num_classes: the number of classes k.
            kind: ``cross-fit``: each of five folds is predicted by a network trained on the other four, then one
                temperature is fitted to the clean labels (Guo et al. 2017). ``in-sample``, as in the released
                generator: the probabilities of the training passes in the last epoch of one network.
        """
        source, clean = source.to(self.processes.device), clean.to(self.processes.device)
        rows = torch.arange(len(clean), device=clean.device)
        if kind == IN_SAMPLE:
            return self._train(source, clean, num_classes, rows, "in-sample posterior").last_probs.float().cpu()
        fold = torch.randperm(len(clean), generator=generator(self.seed, "folds")).to(clean.device) % FOLDS
        logits = torch.zeros(len(clean), num_classes, device=clean.device)
        for number in range(FOLDS):
            held_out, title = rows[fold == number], f"posterior, fold {number + 1} of {FOLDS}"
            method = self._train(source, clean, num_classes, rows[fold != number], title, number)
            logits[held_out] = forward(method.networks[0], source, held_out, self.processes).logits
        return (logits.double() / temperature(logits, clean)).softmax(1).float().cpu()

    def _train(
        self, source: Source, labels: Tensor, num_classes: int, rows: Tensor, title: str, number: int = 0
    ) -> Recorded:
        """Train on the examples at ``rows``; the seed depends on the ``number`` of the fold."""
        seed = derive(self.seed, "posterior", number)
        context = TrainContext(
            num_classes=num_classes,
            train=rows,
            epochs=self.epochs,
            seed=seed,
            batch_size=self.optimizer.batch_size,
            lr_factor=lambda progress: self.optimizer.lr_factor(progress, self.epochs),
            device=self.processes.device,
        )
        method = Recorded(Options(), context)
        network = build_network("mlp", self.network, source.shape, num_classes, initial_seed(seed, 0))
        store = LabelStore(labels, num_classes)
        trainer = Trainer(method, [network], source, store, self.optimizer, self.processes, self.reporter)
        with self.reporter:
            self.reporter.start(title, self.epochs, 1)
            for line in trainer.fit():
                self.reporter.epoch(line)
        return method


def posterior_fit(seed: int, processes: Distributed, *, quiet: bool) -> PosteriorFit:
    """Return the estimator of posteriors; always in float32, so that the noise does not depend on the run's options."""
    if processes.precision != "float32":
        processes = Distributed(processes.device.type)
    reporter = make_reporter(quiet or not processes.is_first)
    return PosteriorFit(seed, processes, reporter)


def temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T > 0 that minimizes the cross-entropy of ``softmax(logits / T)``, within [0.01, 100].

    The cross-entropy is convex in b = 1 / T with derivative ``mean(sum_j p_j z_j - z_y)``. Its root is found by
    bisection on log b.

    Args:
        logits: of n examples (n, k).
        labels: their true classes (n,).
    """
    logits = logits.double()
    own = logits.gather(1, labels[:, None])[:, 0]
    low, high = -2.0, 2.0  # log10 b
    for _ in range(40):
        middle = (low + high) / 2
        slope = float(((logits * 10**middle).softmax(1).mul(logits).sum(1) - own).mean())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(10 ** -((low + high) / 2))
