"""Build a run's trainer, and the model that the run saves."""

from typing import TypeVar

from unflip.compute.processes import Processes
from unflip.data.dataset import Dataset
from unflip.labels.store import LabelStore
from unflip.methods.base import Setting
from unflip.methods.recipes import find_recipe
from unflip.nn.base import Network, build_network, initial_seed
from unflip.progress import Reporter
from unflip.runs.config import RunConfig
from unflip.runs.model_file import Model
from unflip.training.state import BestEpoch
from unflip.training.trainer import Trainer

_Trainer = TypeVar("_Trainer", bound=Trainer)


def make_model(config: RunConfig, dataset: Dataset, best: BestEpoch) -> Model:
    """Return the selected networks with everything needed to rebuild them and prepare their inputs."""
    return Model(
        network=config.common.network,
        options=config.network_options.model_dump(mode="json"),
        input_shape=dataset.source.shape,
        num_classes=dataset.num_classes,
        class_names=dataset.class_names,
        standardisation=dataset.standardisation,
        state=best.state,
        frame=dataset.frame,
        encoding=dataset.encoding,
    )


def make_trainer(
    config: RunConfig,
    dataset: Dataset,
    processes: Processes,
    reporter: Reporter,
    kind: type[_Trainer],
    lr_scale: float = 1.0,
) -> _Trainer:
    """Build a run's method and networks, and the trainer that trains them.

    Args:
        config: the run's configuration.
        dataset: the data to learn from.
        processes: the device, and the other processes of the run.
        reporter: receives every step.
        kind: the class of trainer to build.
        lr_scale: a factor on the learning rate.
    """
    common, device = config.common, processes.device
    train = dataset.trains.nonzero()[:, 0].to(device)
    setting = Setting(
        num_classes=dataset.num_classes,
        train=train,
        epochs=common.epochs,
        seed=common.seed,
        batch_size=common.optimizer.batch_size,
        lr_factor=lambda progress: lr_scale * common.optimizer.lr_factor(progress, common.epochs),
        device=device,
        has_val=bool(dataset.is_val.any()),
        of_rows=len(dataset.source.shape) == 1,
        groups=None if dataset.groups is None else dataset.groups.to(device)[train],
    )
    recipe = find_recipe(common.method)

    def build(position: int) -> Network:
        shape, seed = dataset.source.shape, initial_seed(common.seed, position)
        return build_network(common.network, config.network_options, shape, dataset.num_classes, seed)

    return kind(
        recipe.build(config.parts, setting),
        recipe.assemble(config.parts, setting, build),
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
