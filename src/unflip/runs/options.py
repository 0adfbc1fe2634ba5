"""Options that every run has, and how it is carried out. Nothing heavy is imported."""

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationInfo, field_validator

from unflip.data.options import DataOptions, NoiseOptions
from unflip.options import Options

SelectionRule = Literal["noisy-val", "last", "clean-val", "best-test"]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]


class OptimizerOptions(Options):
    """Stochastic gradient descent and its schedule."""

    batch_size: int = Field(128, ge=2)
    """Examples per step, over all processes together."""
    lr: float = Field(0.01, gt=0.0)
    """Learning rate at the start."""
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    nesterov: bool = False
    weight_decay: float = Field(5e-4, ge=0.0)
    schedule: Literal["milestones", "cosine"] = "milestones"
    """How the learning rate falls: at `milestones`, or along half a cosine to 0 after a first epoch in which it climbs
    from a tenth."""
    milestones: tuple[PositiveInt, ...] = (40, 80)
    """After each of these epochs the learning rate is multiplied by `gamma`."""
    gamma: float = Field(0.5, gt=0.0, le=1.0)
    lr_warmup: NonNegativeInt = 0
    """Epochs over which the learning rate climbs in equal steps to its first value; not with `cosine`."""

    @field_validator("nesterov")
    @classmethod
    def _needs_momentum(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and info.data.get("momentum") == 0:
            raise ValueError("false where optimizer.momentum is 0; raise it, or leave this out")
        return nesterov

    def lr_factor(self, progress: float, epochs: int) -> float:
        """Return the factor on the learning rate after ``progress`` of ``epochs`` epochs."""
        if self.schedule == "cosine":
            return min(1.0, 0.1 + progress) * (1 + math.cos(math.pi * progress / epochs)) / 2
        epoch = math.floor(progress) + 1
        ramp = min(1.0, epoch / (self.lr_warmup + 1))
        return ramp * self.gamma ** sum(epoch > milestone for milestone in self.milestones)


class Common(Options):
    """What every run has, whatever its method and network."""

    method: str = "unflip"
    """How to learn: see `unflip list methods`."""
    network: str = "mlp"
    """What learns: see `unflip list networks`."""
    epochs: int = Field(30, gt=0, le=99_999)
    """Passes over the data."""
    seed: Seed = 0
    """Random seed."""
    select: SelectionRule = "noisy-val"
    """Which epoch's model is kept: noisy-val, last, or (these use the truth) clean-val, best-test."""
    precision: PrecisionName = "auto"
    """Precision of training passes; auto is bfloat16 on a GPU that has it, else float32. All else is float32."""
    data: DataOptions
    noise: NoiseOptions = NoiseOptions()
    optimizer: OptimizerOptions = OptimizerOptions()


class Execution(Options):
    """How a run is carried out. Not part of its configuration: a resumed run may do it another way."""

    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda or mps."""
    threads: PositiveInt | None = None
    """Processor threads; by default all cores."""
    quiet: bool = True
    """Print nothing but errors."""
    checkpoint_minutes: float = Field(10.0, ge=0.0)
    """Minutes between checkpoints within an epoch; 0 saves after every step."""
    keep_checkpoints: PositiveInt = 2
    """How many checkpoints are kept; the older ones serve if the newest is damaged."""
