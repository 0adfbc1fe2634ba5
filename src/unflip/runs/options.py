"""Options of every run. Nothing heavy is imported."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from unflip.data.options import DataOptions, NoiseOptions
from unflip.options import Options

SelectionRule = Literal["noisy-val", "last", "clean-val", "best-test"]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]


class OptimizerOptions(Options):
    """Stochastic gradient descent and its learning rate schedule."""

    batch_size: int = Field(128, ge=2)
    """Number of examples per step, in total over all processes."""
    lr: float = Field(0.01, gt=0.0)
    """Initial learning rate."""
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    """Momentum of SGD."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""
    weight_decay: float = Field(5e-4, ge=0.0)
    """L2 penalty on all weights."""
    schedule: Literal["milestones", "cosine"] = "milestones"
    """Learning rate schedule: steps at `milestones`, or a cosine decay to 0 after one epoch of warm-up from
    `lr` / 10."""
    milestones: tuple[PositiveInt, ...] = (40, 80)
    """Epochs after which the learning rate is multiplied by `gamma`."""
    gamma: float = Field(0.5, gt=0.0, le=1.0)
    """Factor by which the learning rate is multiplied at each milestone."""


class Common(Options):
    """Options of every run, whatever its method and network."""

    method: str = "unflip"
    """Training method: see `unflip list methods`."""
    network: str = "mlp"
    """Network: see `unflip list networks`."""
    epochs: int = Field(30, gt=0, le=99_999)
    """Passes over the data; methods and presets may have another default."""
    seed: Seed = 0
    """Random seed."""
    select: SelectionRule = "noisy-val"
    """Which epoch's model to keep; clean-val and best-test use clean labels."""
    precision: PrecisionName = "auto"
    """Precision of training passes; auto is bfloat16 on GPUs that support it, and float32 otherwise."""
    data: DataOptions
    noise: NoiseOptions = NoiseOptions()
    optimizer: OptimizerOptions = OptimizerOptions()


class Execution(Options):
    """Compute options. Not part of the configuration: a resumed run may use others."""

    device: str = "auto"
    """Device: auto (a GPU if available), cpu, cuda or mps."""
    threads: PositiveInt | None = None
    """CPU threads; by default all cores."""
    quiet: bool | None = None
    """Print errors only. By default Python shows progress in notebooks, and nothing elsewhere."""
    checkpoint_minutes: float = Field(10.0, ge=0.0)
    """Minutes between checkpoints within an epoch; 0 saves at every step."""
    keep_checkpoints: PositiveInt = 2
    """Number of checkpoints to keep."""
