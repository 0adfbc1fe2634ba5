"""SL: symmetric cross-entropy (Wang et al. 2019)."""

from pydantic import Field
from torch import Tensor

from unflip.methods.base import Method
from unflip.methods.losses import symmetric_cross_entropy
from unflip.options import Options


class SLOptions(Options):
    """Weights of the two terms; the defaults are those for CIFAR-10."""

    alpha: float = Field(0.1, ge=0.0)
    """Weight of cross-entropy: 0.1 for CIFAR-10, 6 for CIFAR-100, 10 for WebVision."""
    beta: float = Field(1.0, ge=0.0)
    """Weight of reverse cross-entropy: 1, or 0.1 for CIFAR-100."""
    log_zero: float = Field(-4.0, lt=0.0)
    """A, the value used for log 0: -4 in the paper, -9.21 in its released code."""


class SL(Method):
    """The loss is ``alpha CE + beta RCE`` instead of cross-entropy (equation 8 of the paper).

    Reverse cross-entropy, ``RCE = -sum_c p_c log q_c`` with the label as q, swaps prediction and label. If log 0 is
    replaced by A, RCE is ``-A (1 - p_y)``. It is bounded, so a wrong label has less influence than under cross-entropy.
    On its own, RCE learns slowly, so it is added to cross-entropy.

    This is the shortest example of a method: options and one hook.
    """

    Options = SLOptions
    options: SLOptions

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return each example's symmetric cross-entropy."""
        return symmetric_cross_entropy(logits, labels, self.options.alpha, self.options.beta, self.options.log_zero)
