"""An `mddc` epoch of preact_resnet8 against a bare loop over pre-augmented tensors and one pass without gradient.

And the evaluation of a test set against the forward passes alone over tensors that are ready, in batches of the better
of two sizes. Both at most 1.10 times as long. And the network's steps in the two memory layouts. Processor time, since
the clock also shows who else is on the machine.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limits import Limits
from unflip.data.dataset import Split
from unflip.data.images import ImageSource, byte_normalization
from unflip.engine.distributed import Distributed
from unflip.engine.evaluation import Truth, accuracies
from unflip.engine.trainer import Trainer, lr_factor
from unflip.methods import find_method
from unflip.methods.base import LabelStore, TrainContext
from unflip.nn.base import Ensemble, Network, build_network
from unflip.nn.residual import PreAct8Options
from unflip.progress import Reporter
from unflip.runs.config import RunConfig

LIMIT = 1.10  # an epoch of mddc by the bare loop and pass, and an evaluation by its forward passes: at most
EXAMPLES, CLASSES, BATCH, PAIRS = 5120, 10, 128, 7
CPU = torch.device("cpu")


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def build() -> Network:
    return build_network("preact_resnet8", PreAct8Options(), (3, 32, 32), CLASSES, seed=0)


def make_trainer(source: ImageSource, labels: Tensor) -> Trainer:
    layer = {"method": "mddc", "network": "preact_resnet8", "data": {"path": "-"}, "plc": {"warmup": 1}}
    config = RunConfig.resolve([layer])
    optimizer = config.common.optimizer
    context = TrainContext(
        CLASSES, torch.arange(EXAMPLES), PAIRS + 1, 0, BATCH, partial(lr_factor, optimizer, epochs=PAIRS + 1), CPU
    )
    method = find_method("mddc").build(config.parts, context)
    return Trainer(method, [build()], source, LabelStore(labels, CLASSES), optimizer, Distributed("cpu"), Reporter())


def bare_epoch(network: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> None:
    network.train()
    for indices in torch.randperm(EXAMPLES).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs[indices]), labels[indices]).backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        for batch in inputs.split(1024):
            network(batch)


def compare_epochs(limits: Limits, source: ImageSource, labels: Tensor) -> None:
    trainer = make_trainer(source, labels)
    network = build()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    inputs = source.view(torch.arange(EXAMPLES), torch.Generator())
    pairs = []
    for epoch in range(1, PAIRS + 2):  # one after the other, so that both see the same machine
        ours = seconds(lambda: trainer.train_epoch(epoch))  # noqa: B023 - called at once
        pairs.append((ours, seconds(lambda: bare_epoch(network, optimizer, inputs, labels))))
    ours, theirs = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    ratio = statistics.median(a / b for a, b in pairs[1:])
    print(f"epoch of mddc {ours:.2f} s, bare loop and pass {theirs:.2f} s")
    limits.at_most("epoch of mddc by bare loop and pass", ratio, LIMIT)


def compare_evaluations(limits: Limits, source: ImageSource, labels: Tensor) -> None:
    network, processes = build().eval(), Distributed("cpu")
    model = Ensemble([network])
    truth = Truth(None, {"test": Split(labels[:0].numpy(), labels.numpy(), opened=source)})
    inputs = source.fetch(torch.arange(EXAMPLES))

    @torch.no_grad()
    def forward(size: int) -> None:
        for batch in inputs.split(size):
            network(batch)

    pairs = []
    for _ in range(PAIRS + 1):
        ours = seconds(lambda: accuracies(model, truth, processes))
        pairs.append((ours, min(seconds(partial(forward, size)) for size in (BATCH, 1024))))
    ours, theirs = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    print(f"evaluation of {EXAMPLES} images {ours:.2f} s, forward passes {theirs:.2f} s")
    limits.at_most("evaluation by forward passes", statistics.median(a / b for a, b in pairs[1:]), LIMIT)


def compare_layouts(source: ImageSource, labels: Tensor) -> None:
    inputs, labels = source.fetch(torch.arange(BATCH)), labels[:BATCH]
    layouts = {"default": torch.contiguous_format, "channels-last": torch.channels_last}
    times: dict[str, list[float]] = {name: [] for name in layouts}
    networks: dict[str, Network] = {
        name: cast("Any", build()).to(memory_format=layout)  # torch declares no such argument, but takes it
        for name, layout in layouts.items()
    }

    def step(network: nn.Module) -> None:
        F.cross_entropy(network(inputs), labels).backward()

    for network in networks.values():
        step(network)
    for _ in range(20):
        for name, network in networks.items():
            times[name].append(seconds(lambda: step(network)))  # noqa: B023 - called at once
    default, last = (statistics.median(times[name]) for name in layouts)
    print(
        f"a step of {BATCH}: default layout {default * 1e3:.1f} ms, channels-last {last * 1e3:.1f} ms, "
        f"ratio {last / default:.2f}"
    )


def main() -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, EXAMPLES)
    colors = random.integers(60, 196, (CLASSES, 3, 1, 1))
    images = (colors[labels] + random.integers(-60, 60, (EXAMPLES, 3, 32, 32))).astype(np.uint8)
    source = ImageSource(images, byte_normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))
    wrong = random.random(EXAMPLES) < 0.35
    given = torch.from_numpy(np.where(wrong, random.integers(0, CLASSES, EXAMPLES), labels))
    compare_layouts(source, given)
    limits = Limits()
    compare_epochs(limits, source, given)
    compare_evaluations(limits, source, given)
    limits.finish()


if __name__ == "__main__":
    main()
