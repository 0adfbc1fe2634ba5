"""Linear discriminant: class probabilities from features alone, for Gaussian classes that share one covariance.

An example that the fit used can be scored as if it, or its whole group, had been left out (leave-one-group-out).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from unflip.stats.gaussians import NOT_FINITE, NotFiniteError

Fetch = Callable[[Tensor], Tensor]
"""Returns rows, such as features (b, d), at given positions (b,); so they need not be in memory at once."""

SHRINKS = (0.03, 0.1, 0.3, 0.6, 1.0)
"""Candidates for the shrinkage of the covariance."""
MIN_LOG_PROB = -30.0
"""Lower log-probabilities of a view are clipped."""
MIN_COUNT = 1e-3
"""A class with a smaller total membership has no examples."""
MAX_REMOVED = 0.99
"""Upper limit on the fraction of the variance in any direction that left-out examples can remove."""
BLOCK_ROWS = 4096
"""Features that are processed at once; they fit in the cache."""
_BLOCK_VALUES = 2**22  # of log-probabilities, that are computed at once
COVARIANCE_ROWS, ROWS_PER_DIM = 8192, 16
"""Examples that a covariance is estimated from."""
SMALL_GROUP = 64
"""Groups up to this size are left out in batches, whatever the number of features."""
_SHRINK_ROWS = 4096  # examples that choose the shrinkage
_SCALES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)


@dataclass(frozen=True)
class Discriminant:
    """Linear discriminant analysis: class c has N(μ_c, Σ), with the same Σ for all classes, and prior n_c / n.

    Attributes:
        whiten: (d, d), A with AᵀA = Σ⁻¹.
        origin: (d,), A μ for the mean μ of all features; whitened features are relative to it, against rounding errors.
        means: (k, d), m_c = A (μ_c - μ); undefined for a class without examples.
        counts: (k,), n_c; fractional if memberships are.
        shrink: s, the shrinkage of the covariance.
        used: number of examples that the covariance was estimated from.
    """

    whiten: Tensor
    origin: Tensor
    means: Tensor
    counts: Tensor
    shrink: float
    used: int

    def log_posterior(self, features: Tensor) -> Tensor:
        """Return log P(c | h) (m, k) for new features (m, d): ``n_c exp(-D_c / 2)``, normalized.

        D_c = |A (h - μ_c)|² is the squared distance to class c. A class without examples gets -inf.
        """
        return self._normalize(self.counts, self._distances(self._whiten(features)))

    def leave_one_out_log_posterior(self, features: Tensor, memberships: Tensor, in_covariance: Tensor) -> Tensor:
        """Return log P(c | h) (m, k) of examples that the fit used, leaving each out in turn.

        ``memberships`` (m, k) holds t_c, the fraction of an example that belongs to each class. Without the example a
        class has r_c = n_c - t_c left, and its mean is n_c / r_c times as far from h. The covariance loses
        ``(1 - s) κ / n u uᵀ`` with u = h - Σ_c t_c μ_c and κ = Σ_c t_c n_c / r_c, if the example is ``in_covariance``
        (m,); by the formula of Sherman and Morrison (1950), with z = A u, w_c = A (h - μ_c) and a = (1 - s) κ / n,

            D_c = (n_c / r_c)² (|w_c|² + a (w_c·z)² / (1 - a |z|²))

        For examples of one class this is exact but for the trace in Σ; for others κ u uᵀ omits what the class means
        alone add. The correction matters: with 1,000 examples of 500 features, half of all random labels would
        otherwise be predicted.
        """
        white = self._whiten(features)
        distances = self._distances(white)
        others = (self.counts - memberships).clamp_(min=0)
        growth = self.counts / others.clamp(min=MIN_COUNT)
        some = in_covariance.nonzero()[:, 0]  # of many examples few are
        distances[some] += self._removed(white[some], memberships[some], growth[some])
        return self._normalize(others, distances.mul_(growth.square_()))

    def leave_group_out_log_posterior(self, features: Tensor, memberships: Tensor, in_covariance: Tensor) -> Tensor:
        """Return log P(c | h) (b, m, k) of b groups of m examples that the fit used, leaving each group out in turn.

        As exact as :meth:`leave_one_out_log_posterior`; see :func:`leave_group_out_distances` for the formula. A group
        of one, or of equal examples of one class, gives the same result.
        """
        white = self._whiten(features.flatten(0, 1)).view(features.shape)
        weight = self._example_weight
        distances = leave_group_out_distances(white, memberships, in_covariance, self.means, self.counts, weight)
        return self._normalize((self.counts - memberships.sum(1, keepdim=True)).clamp_(min=0), distances)

    def without(self, blocks: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
        """Return a function from features (m, d) to log P(c | h) (m, k) with one large group left out.

        The group comes in blocks of features, memberships and whether the covariance was estimated from them. The
        formulas are those of :func:`leave_group_out_distances`, by sums over the group; features are whitened again.
        """
        means, counts, left = self.means.double(), self.counts.double(), self.counts.clone()
        total, scatter = torch.zeros_like(counts), means.new_zeros(means.shape[1], means.shape[1])
        sums, moved = torch.zeros_like(means), torch.zeros_like(means)
        for features, memberships, in_covariance in blocks:
            white, shares = self._whiten(features).double(), memberships.double()
            own = (white - shares @ means) * in_covariance[:, None]
            left -= memberships.sum(0)
            total += shares.sum(0)
            sums += shares.T @ white
            moved += shares.T @ own
            scatter += own.T @ own
        others = (counts - total).clamp(min=MIN_COUNT)[:, None]
        values, vectors = torch.linalg.eigh(scatter + (moved / others.where(others > MIN_COUNT, torch.inf)).T @ moved)
        whiten = vectors / (1 - self._example_weight * values).clamp(min=1 - MAX_REMOVED).sqrt()
        means = (counts[:, None] * means - sums) / others @ whiten

        def log_posterior(features: Tensor) -> Tensor:
            white = self._whiten(features).double() @ whiten
            return self._normalize(left.clamp(min=0), torch.cdist(white, means).square().float())

        return log_posterior

    @property
    def _example_weight(self) -> float:
        """The weight of an example in the covariance."""
        return (1 - self.shrink) / self.used

    def _removed(self, white: Tensor, memberships: Tensor, growth: Tensor) -> Tensor:
        """Return the increase of squared distances (m, k) when the covariance loses the example."""
        own = white - memberships @ self.means
        weight = self._example_weight * (memberships * growth).sum(1, keepdim=True)
        weight = torch.minimum(weight, MAX_REMOVED / own.square().sum(1, keepdim=True).clamp(min=1e-30))
        along = (white * own).sum(1, keepdim=True) - own @ self.means.T  # w_c·z
        return weight * along.square_() / (1 - weight * own.square().sum(1, keepdim=True))

    def _whiten(self, features: Tensor) -> Tensor:
        return torch.addmm(-self.origin, features.detach().float(), self.whiten.T)

    def _distances(self, white: Tensor) -> Tensor:
        """Return D (m, k)."""
        squares = torch.addmm(self.means.square().sum(1), white, self.means.T, alpha=-2)
        return squares.add_(white.square().sum(1, keepdim=True)).clamp_(min=0)

    def _normalize(self, counts: Tensor, distances: Tensor) -> Tensor:
        log_counts = counts.clamp(min=MIN_COUNT).log().masked_fill(counts < MIN_COUNT, -torch.inf)
        return (log_counts - distances / 2).log_softmax(-1)


def fit_discriminant(
    fetch: Fetch,
    memberships: Tensor,
    num_classes: int,
    *,
    shrink: float | Sequence[float] = 0.1,
    given: Tensor | None = None,
    groups: Tensor | None = None,
) -> Discriminant:
    """Fit class means and the pooled covariance W of n features h_i (d,) about them, shrunk towards a multiple of I.

    With t_ic the membership of example i in class c, ``n_c = sum_i t_ic``, ``μ_c = sum_i t_ic h_i / n_c``,
    ``W = sum_i sum_c t_ic (h_i - μ_c) (h_i - μ_c)ᵀ / n`` and ``Σ = (1 - s) W + s (tr W / d) I`` with s = ``shrink``
    (Friedman 1989, regularized discriminant analysis). Features that do not vary at all get Σ = I. W is estimated from
    evenly spaced examples if there are more than 8,192, or 16 per dimension if that is more.

    Of several ``shrink`` values, the one with the highest leave-one-group-out likelihood of the ``given`` labels is
    taken; as Gaussians are overconfident, each is compared at its best temperature.

    Args:
        fetch: returns features by position.
        memberships: classes (n,), or memberships (n, k) that sum to 1.
        num_classes: k.
        shrink: s, above 0 and at most 1, or candidates for it.
        given: labels (n,) that choose among candidates.
        groups: (n,), the group number of each example; groups are left out as a whole.
    """
    shrinks = (shrink,) if isinstance(shrink, float | int) else tuple(shrink)
    counts, means = _fit_means(fetch, memberships, num_classes)
    mean = counts @ means / counts.sum()
    means = means - mean
    d = means.shape[1]
    used = _covariance_rows(memberships, d)
    pooled = means.new_zeros(d, d)
    for rows in used.split(BLOCK_ROWS):
        features, shares = fetch(rows).detach().float() - mean, to_memberships(memberships[rows], num_classes)
        cross = (shares @ means).T @ features
        pooled += features.T @ features - cross - cross.T + means.T @ (shares.sum(0)[:, None] * means)
    pooled = (pooled + pooled.T) / (2 * len(used))
    if not bool(pooled.isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    values, vectors = torch.linalg.eigh(pooled.double().cpu())  # accelerators are slow at small matrices
    values = values.clamp(min=0)
    scale = float(values.mean())
    candidates = []
    for value in shrinks:
        variances = (1 - value) * values + value * scale if scale > 0 else torch.ones_like(values)
        whiten = (vectors / variances.sqrt()).T.to(means)
        candidates.append(Discriminant(whiten, whiten @ mean, means @ whiten.T, counts, float(value), len(used)))
    if len(candidates) == 1:
        return candidates[0]
    assert given is not None
    rows = used[evenly_spaced(len(used), _SHRINK_ROWS, used.device)]
    views = (leave_group_out_log_posterior(each, fetch, memberships, groups, rows) for each in candidates)
    losses = [tempered_nll(view, given[rows]) for view in views]
    return candidates[losses.index(min(losses))]


def to_memberships(memberships: Tensor, num_classes: int) -> Tensor:
    """Return the membership of each example in each class (n, k), from memberships or from classes (n,)."""
    return (one_hot(memberships, num_classes) if memberships.ndim == 1 else memberships).float()


def leave_group_out(
    discriminant: Discriminant, fetch: Fetch, memberships: Tensor, groups: Tensor | None = None
) -> Fetch:
    """Return a function from positions (b,) to log P(c | h) (b, k) of examples that the fit used, without their groups.

    Call it in the order of :func:`group_order`: otherwise groups are fetched repeatedly.

    Args:
        discriminant: the fit.
        fetch: returns features by position, as for :func:`fit_discriminant`; so are the others.
        memberships: classes (n,) or memberships (n, k).
        groups: (n,); by default every example is a group of its own.
    """
    num_classes, d = discriminant.means.shape
    in_covariance = torch.zeros(len(memberships), dtype=torch.bool, device=memberships.device)
    in_covariance[_covariance_rows(memberships, d)] = True

    def load(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return fetch(rows), to_memberships(memberships[rows], num_classes), in_covariance[rows]

    def leave_one_out(rows: Tensor) -> Tensor:
        return discriminant.leave_one_out_log_posterior(*load(rows))

    if groups is None:
        return leave_one_out
    max_batched = max(d, SMALL_GROUP)
    order, sizes = groups.argsort(stable=True), groups.bincount()
    starts = sizes.cumsum(0) - sizes
    rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)).to(order) - starts[groups[order]])

    def log_posterior(rows: Tensor) -> Tensor:
        own = groups[rows]
        single = sizes[own] == 1
        result = torch.empty(len(rows), num_classes, device=rows.device)
        if bool(single.any()):
            result[single] = leave_one_out(rows[single])
        for batch in _batches_of_one_size(own[~single].unique(), sizes, max_batched):
            size = int(sizes[batch[0]])
            places = torch.isin(own, batch).nonzero()[:, 0]
            if size > max_batched:
                group = order[starts[batch[0]] :][:size].split(BLOCK_ROWS)
                result[places] = discriminant.without(map(load, group))(fetch(rows[places]))
            else:
                together = order[starts[batch][:, None] + torch.arange(size, device=rows.device)]  # (b, m)
                parts = (part.view(*together.shape, *part.shape[1:]) for part in load(together.view(-1)))
                log_probs = discriminant.leave_group_out_log_posterior(*parts)
                result[places] = log_probs[torch.searchsorted(batch, own[places]), rank[rows[places]]]
        return result

    return log_posterior


def leave_group_out_log_posterior(
    discriminant: Discriminant,
    fetch: Fetch,
    memberships: Tensor,
    groups: Tensor | None = None,
    rows: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return log P(c | h) (m, k) of examples at ``rows``, all by default, without their groups, in ``out`` if given.

    The other arguments are those of :func:`leave_group_out`.
    """
    rows = torch.arange(len(memberships), device=memberships.device) if rows is None else rows
    log_posterior = leave_group_out(discriminant, fetch, memberships, groups)
    if out is None:
        out = torch.empty(len(rows), len(discriminant.means), device=memberships.device)
    size = max(1, min(BLOCK_ROWS, _BLOCK_VALUES // len(discriminant.means)))
    for places in group_order(len(rows), None if groups is None else groups[rows], rows.device).split(size):
        out[places] = log_posterior(rows[places]).to(out)
    return out


def group_order(count: int, groups: Tensor | None, device: torch.device) -> Tensor:
    """Return the positions of all examples (n,) such that those of a group are adjacent."""
    return torch.arange(count, device=device) if groups is None else groups.argsort(stable=True)


def _batches_of_one_size(numbers: Tensor, sizes: Tensor, max_batched: int) -> Iterator[Tensor]:
    """Yield sorted numbers of groups of one size: about 4,096 examples in all, or one group above ``max_batched``."""
    for size in sizes[numbers].unique().tolist():
        yield from numbers[sizes[numbers] == size].split(max(1, BLOCK_ROWS // size) if size <= max_batched else 1)


def _covariance_rows(memberships: Tensor, d: int) -> Tensor:
    """Return the positions of the examples that the covariance is estimated from."""
    return evenly_spaced(len(memberships), max(COVARIANCE_ROWS, ROWS_PER_DIM * d), memberships.device)


def evenly_spaced(count: int, limit: int, device: torch.device) -> Tensor:
    """Return ``limit`` evenly spaced positions below ``count`` on ``device``, or all of them.

    >>> evenly_spaced(10, 4, torch.device("cpu"))
    tensor([0, 3, 6, 9])
    """
    if count <= limit:
        return torch.arange(count, device=device)
    return torch.linspace(0, count - 1, limit, dtype=torch.float64).long().to(device)


def tempered_nll(log_probs: Tensor, labels: Tensor) -> float:
    """Return the mean negative log-likelihood of ``labels`` (m,) under ``softmax(b log p)`` at the best b of a grid."""
    log_probs = log_probs.clamp(min=-1e4)  # -inf for a class without other examples
    return min(float(nll_loss((scale * log_probs).log_softmax(1), labels)) for scale in _SCALES)


def _fit_means(fetch: Fetch, memberships: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    counts, totals = torch.zeros(()), torch.zeros(())
    for rows in torch.arange(len(memberships), device=memberships.device).split(BLOCK_ROWS):
        features, shares = fetch(rows).detach().float(), to_memberships(memberships[rows], num_classes)
        counts = counts.to(features) + shares.sum(0)
        totals = totals.to(features) + shares.T @ features
    means = totals / counts.clamp(min=MIN_COUNT)[:, None]
    if not bool(means.isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    return counts, means


def leave_group_out_distances(
    white: Tensor, memberships: Tensor, in_covariance: Tensor, means: Tensor, counts: Tensor, weight: float
) -> Tensor:
    """Return the squared distances (b, m, k) of b groups of m examples from the classes, leaving each group out.

    Removing a group of examples h_j with memberships t_jc from the fit leaves ``r_c = n_c - sum_j t_jc`` examples and
    the mean ``μ'_c = (n_c μ_c - sum_j t_jc h_j) / r_c``. The scatter of a class about its own mean loses
    ``sum_j t_jc (h_j - μ_c) (h_j - μ_c)ᵀ + r_c (μ'_c - μ_c) (μ'_c - μ_c)ᵀ`` (Chan, Golub and LeVeque 1983, the other
    way round). With u_j = h_j - Σ_c t_jc μ_c in place of h_j - μ_c, which is the same for an example of one class, all
    classes together lose

        U (I + Σ_c t_c t_cᵀ / r_c) Uᵀ        U = (u_1, ..., u_m),  t_c = (t_1c, ..., t_mc)

    which is exact for examples of one class each; for others it omits what the class means alone add. Means and
    features are whitened, Σ = I, so that the new Σ' is I - a U (...) Uᵀ with a = (1 - s) / n: the trace in Σ stays.
    Examples that the covariance was not estimated from have u = 0. A class without other examples has no mean, so its
    term 1 / r_c is omitted.

    By the formula of Woodbury (1950), with the factor F Fᵀ = U (...) Uᵀ and the eigenvectors V and values λ of FᵀF,

        D_c = |v|² + a Σ_e (V_eᵀ Fᵀ v)² / (1 - a λ_e)        v = h - μ'_c

    which takes (m, m) products of the examples instead of new means (k, d).

    Args:
        white: whitened features (b, m, d).
        memberships: t (b, m, k).
        in_covariance: which of them the covariance was estimated from (b, m).
        means: whitened (k, d).
        counts: n_c (k,).
        weight: a, that of an example in the covariance.
    """
    white, shares, means, counts = (part.double() for part in (white, memberships, means, counts))
    others = (counts - shares.sum(1, keepdim=True)).clamp(min=MIN_COUNT)  # r_c (b, 1, k)
    along = white @ means.T
    sums = white @ white.mT @ shares  # h_j · sum_l t_lc h_l
    to_means = (counts * along - sums) / others
    norms = counts.square() * means.square().sum(1) - 2 * counts * (shares * along).sum(1) + (shares * sums).sum(1)
    squares = white.square().sum(2, keepdim=True) - 2 * to_means + norms[:, None] / others.square()  # |v|²

    own = (white - shares @ means) * in_covariance[..., None]
    within = shares * in_covariance[..., None]
    weights = torch.eye(white.shape[1]).to(white) + within / others.where(others > MIN_COUNT, torch.inf) @ within.mT
    factor = torch.linalg.cholesky(weights).mT @ own  # Fᵀ (b, m, d)
    values, vectors = torch.linalg.eigh(factor @ factor.mT)
    removed = (MAX_REMOVED / values.clamp(min=1e-30)).clamp(max=weight)
    stretch = (removed / (1 - removed * values)).sqrt()[..., None] * (vectors.mT @ factor)
    here = stretch @ white.mT  # (b, e, m)
    there = (counts * (stretch @ means.T) - here @ shares) / others
    gained = here.square().sum(1)[..., None] + there.square().sum(1, keepdim=True) - 2 * here.mT @ there
    distances: Tensor = (squares + gained).clamp(min=0).float()
    return distances
