"""From a configuration to what a run needs: its data (load, encode, corrupt, scale, split), trainer and model."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unflip.data.arrays import Shards
from unflip.data.corrupt import corrupt_labels, given_posterior, needs_posterior
from unflip.data.dataset import Dataset
from unflip.data.images import IMAGENET
from unflip.data.labeling import label_data, settle_scale
from unflip.data.loaders import load_raw
from unflip.data.options import NoiseOptions
from unflip.data.sources import Standardization
from unflip.data.split import split
from unflip.encoders.table import encode_raw
from unflip.engine.checkpoints import BestEpoch
from unflip.engine.distributed import Distributed
from unflip.engine.evaluation import check_selection
from unflip.engine.posterior import PosteriorEstimator, posterior_fit
from unflip.engine.trainer import Trainer
from unflip.errors import InputError
from unflip.methods import find_method
from unflip.methods.base import TrainContext
from unflip.methods.labels import LabelStore
from unflip.nn import networks
from unflip.nn.backbone import PretrainedOptions
from unflip.nn.base import Network, build_network, initial_seed
from unflip.progress import Reporter, make_reporter
from unflip.runs.config import RunConfig
from unflip.runs.model_file import Model


def prepare_data(
    config: RunConfig, processes: Distributed, raw: Dataset | None = None, *, quiet: bool = True
) -> Dataset:
    """Return the data of a run, with noise if the configuration asks for it, split and checked.

    Args:
        config: the run's configuration.
        processes: where the posteriors are estimated that pmd noise may need.
        raw: the output of a loader, if the data was read already.
        quiet: show no progress.
    """
    common, track = config.common, make_reporter(quiet or not processes.is_first).track
    raw = load_raw(common.data, config.parts) if raw is None else raw
    wanted = _network_normalization(config, raw)
    if raw.holds_images and wanted is not None:
        raw = replace(raw, normalization=wanted)
    raw = encode_raw(raw, common.data, track)
    data = label_data(raw, common.data, track, wanted).joined()  # noise goes on the labels that validate, too
    if common.noise.recipe is not None:
        estimate = posterior_fit(common.seed, processes, quiet=quiet)
        data = corrupt_labels(data, common.noise, find_posterior(data, common.noise, estimate), common.seed)
    if common.data.standardize == "auto":
        data = settle_scale(data)  # after noise was added: no clean label may have a say
    dataset = split(data, common.data.val_fraction, common.seed)
    check_selection(
        common.select,
        has_val=bool(dataset.is_val.any()),
        has_truth=dataset.clean is not None or dataset.clean_val,
        has_test=bool(dataset.tests),
    )
    return dataset


def _network_normalization(config: RunConfig, raw: Dataset) -> Standardization | None:
    """Return how the network wants its images, whatever the data; None if that is for the data to say.

    A network with weights wants arrays of images as bytes, unless `data.standardize` is off.
    """
    common, options = config.common, config.network_options
    wanted = networks.load(common.network).normalization
    own = None if wanted is None else Standardization(*(torch.full((1, 1, 1), value) for value in wanted))
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
                f"{common.data.path}, '{name}': type {array.dtype}; {common.network} learned from images of bytes and "
                "normalizes them itself: give type uint8, or if these are normalized as its weights want it, "
                "--set data.standardize=off"
            )
    if own is not None or arrays["train"].shape[1] == 3:
        return own or IMAGENET
    return Standardization(*(value.mean().view(1, 1, 1) for value in (IMAGENET.mean, IMAGENET.std)))


def find_posterior(data: Dataset, noise: NoiseOptions, estimate: PosteriorEstimator) -> Tensor | None:
    """Return the class probabilities (n, k) that a noise recipe needs, read or estimated; None if it needs none."""
    if not needs_posterior(noise):
        return None
    given = given_posterior(noise, data)
    return estimate(data.source, data.truth, data.num_classes, noise.posterior) if given is None else given


def make_model(config: RunConfig, dataset: Dataset, best: BestEpoch) -> Model:
    """Return the selected networks with everything needed to rebuild them and prepare their inputs."""
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


def make_trainer(
    config: RunConfig,
    dataset: Dataset,
    processes: Distributed,
    reporter: Reporter,
) -> Trainer:
    """Build a run's method and networks, and the trainer that trains them.

    Args:
        config: the run's configuration.
        dataset: the data to learn from.
        processes: the device, and the other processes of the run.
        reporter: receives every step.
    """
    common, device = config.common, processes.device
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
    recipe = find_method(common.method)

    def build(position: int) -> Network:
        shape, seed = dataset.source.shape, initial_seed(common.seed, position)
        return build_network(common.network, config.network_options, shape, dataset.num_classes, seed)

    return Trainer(
        recipe.build(config.parts, context),
        recipe.build_networks(config.parts, context, build),
        dataset.source.to(device),
        LabelStore(
            dataset.given.to(device),
            dataset.num_classes,
            None if dataset.reviewed is None else dataset.reviewed.to(device),
        ),
        common.optimizer,
        processes,
        reporter,
        dataset.is_val.nonzero()[:, 0].to(device),
    )
