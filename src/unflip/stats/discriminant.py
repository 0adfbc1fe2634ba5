"""Linear discriminant: class probabilities from features alone, for Gaussian classes that share one covariance."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from unflip.errors import ConfigError
from unflip.stats.rows import NOT_FINITE, NotFiniteError, evenly_spaced, storage_dtype

Fetch = Callable[[Tensor], Tensor]
"""Returns rows, such as features (b, d), at given positions (b,); so they need not be in memory at once."""

SHRINKS = (0.03, 0.1, 0.3, 0.6, 1.0)
"""Candidates for how far the covariance is shrunk."""
FLOOR = -30.0
"""The least log-probability that a view is believed."""
NOBODY = 1e-3
"""A class with fewer members than this has none."""
MOST_LOST = 0.99
"""Share of the covariance in one direction that examples may take with them."""
_ROWS = 4096  # features at once; they fit in the cache
_ENOUGH, _PER_DIMENSION = 8192, 16  # examples that a covariance is estimated from
_LEAST_LOG = -1e4
_TRIED = 4096  # examples that a shrinkage is chosen by
_SCALES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
_FEW = 64  # members up to which a group is left out together with others, whatever the number of features


@dataclass(frozen=True)
class Discriminant:
    """Linear discriminant analysis: class c has N(μ_c, Σ), with the same Σ for all classes, and prior n_c / n.

    Attributes:
        whiten: (d, d), A with AᵀA = Σ⁻¹.
        origin: (d,), A μ for the mean μ of all features, from which all is measured to avoid rounding errors.
        means: (k, d), m_c = A (μ_c - μ); meaningless for a class without members.
        counts: (k,), n_c; not whole numbers where members belong to several classes.
        shrink: s, how far the covariance was shrunk.
        used: how many examples the covariance was estimated from.
    """

    whiten: Tensor
    origin: Tensor
    means: Tensor
    counts: Tensor
    shrink: float
    used: int

    def log_posterior(self, features: Tensor) -> Tensor:
        """Return log P(c | h) (m, k) for new features (m, d): ``n_c exp(-D_c / 2)``, normalized.

        D_c = |A (h - μ_c)|² is the squared distance to class c. A class without members gets -inf.
        """
        return self._normalized(self.counts, self._distances(self._whitened(features)))

    def held_out_log_posterior(self, features: Tensor, members: Tensor, in_covariance: Tensor) -> Tensor:
        """Return log P(c | h) (m, k) of examples that the fit used, each as if it had been left out.

        ``members`` (m, k) is the share t_c to which an example belongs to each class. Without it a class has
        r_c = n_c - t_c members, and its mean is n_c / r_c times as far from h. The covariance loses
        ``(1 - s) κ / n u uᵀ`` with u = h - Σ_c t_c μ_c and κ = Σ_c t_c n_c / r_c, if the example is ``in_covariance``
        (m,); by the formula of Sherman and Morrison (1950), with z = A u, w_c = A (h - μ_c) and a = (1 - s) κ / n,

            D_c = (n_c / r_c)² (|w_c|² + a (w_c·z)² / (1 - a |z|²))

        For examples of one class this is exact but for the trace in Σ; for others κ u uᵀ leaves out what the class
        means alone add. It matters: with 1,000 examples of 500 features, half of all labels drawn at random would
        otherwise be found right.
        """
        white = self._whitened(features)
        distances = self._distances(white)
        others = (self.counts - members).clamp_(min=0)
        growth = self.counts / others.clamp(min=NOBODY)
        if bool(in_covariance.all()):
            distances += self._lost(white, members, growth)
        else:  # of many examples few are
            some = in_covariance.nonzero()[:, 0]
            distances[some] += self._lost(white[some], members[some], growth[some])
        return self._normalized(others, distances.mul_(growth.square_()))

    def held_out_groups(self, features: Tensor, members: Tensor, in_covariance: Tensor) -> Tensor:
        """Return log P(c | h) (b, m, k) of b groups of m examples, each as if its whole group had been left out.

        Exact as :meth:`held_out_log_posterior` is; see :func:`distances_without` for the formula. A group of one, or
        of equal examples of one class, gives what that gives.
        """
        white = self._whitened(features.flatten(0, 1)).view(features.shape)
        distances = distances_without(white, members, in_covariance, self.means, self.counts, self._lost_each)
        return self._normalized((self.counts - members.sum(1, keepdim=True)).clamp_(min=0), distances)

    def without(self, blocks: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
        """Return what says log P(c | h) (m, k) of features (m, d), one large group left out.

        It comes in blocks of features, shares and whether the covariance was estimated from them.
        """
        counts = self.counts.clone()

        def whitened() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            for features, members, in_covariance in blocks:
                counts.sub_(members.sum(0))
                yield self._whitened(features), members, in_covariance

        means, again = refitted_without(whitened(), self.means, self.counts, self._lost_each)
        means = means @ again

        def say(features: Tensor) -> Tensor:
            moved = self._whitened(features).double() @ again
            return self._normalized(counts.clamp(min=0), torch.cdist(moved, means).square().float())

        return say

    @property
    def _lost_each(self) -> float:
        """The weight of an example in the covariance."""
        return (1 - self.shrink) / self.used

    def _lost(self, white: Tensor, members: Tensor, growth: Tensor) -> Tensor:
        """Return what distances (m, k) gain because the covariance loses an example."""
        own = white - members @ self.means
        lost = self._lost_each * (members * growth).sum(1, keepdim=True)
        lost = torch.minimum(lost, MOST_LOST / own.square().sum(1, keepdim=True).clamp(min=1e-30))
        along = (white * own).sum(1, keepdim=True) - own @ self.means.T  # w_c·z
        return lost * along.square_() / (1 - lost * own.square().sum(1, keepdim=True))

    def _whitened(self, features: Tensor) -> Tensor:
        return torch.addmm(-self.origin, features.detach().float(), self.whiten.T)

    def _distances(self, white: Tensor) -> Tensor:
        """Return D (m, k)."""
        squares = torch.addmm(self.means.square().sum(1), white, self.means.T, alpha=-2)
        return squares.add_(white.square().sum(1, keepdim=True)).clamp_(min=0)

    def _normalized(self, counts: Tensor, distances: Tensor) -> Tensor:
        sizes = counts.clamp(min=NOBODY).log().masked_fill(counts < NOBODY, -torch.inf)
        return (sizes - distances / 2).log_softmax(-1)


def fit_discriminant(
    fetch: Fetch,
    members: Tensor,
    num_classes: int,
    *,
    shrink: float | Sequence[float] = 0.1,
    given: Tensor | None = None,
    groups: Tensor | None = None,
) -> Discriminant:
    """Fit class means and the pooled covariance W of n features h_i (d,) about them, shrunk towards a multiple of I.

    With t_ic the share to which example i belongs to class c, ``n_c = sum_i t_ic``, ``μ_c = sum_i t_ic h_i / n_c``,
    ``W = sum_i sum_c t_ic (h_i - μ_c) (h_i - μ_c)ᵀ / n`` and ``Σ = (1 - s) W + s (tr W / d) I`` with s = ``shrink``
    (Friedman 1989, regularized discriminant analysis). Features that do not vary at all get Σ = I. W is estimated from
    evenly spaced examples where there are more than 8,192, or 16 per dimension if that is more.

    Of several ``shrink`` the one is taken under which the ``given`` labels are likeliest, each example left out of its
    class; as Gaussians are too sure of themselves, each is compared at its best temperature.

    Args:
        fetch: returns features by position.
        members: classes (n,), or shares (n, k) that add up to 1.
        num_classes: k.
        shrink: s, or candidates for it.
        given: labels (n,) to choose among candidates by.
        groups: (n,); examples of one number are left out together.
    """
    shrinks = (shrink,) if isinstance(shrink, float | int) else tuple(shrink)
    if not all(0 < value <= 1 for value in shrinks):
        raise ConfigError(f"shrink must be above 0 and at most 1, not {shrink}")
    counts, means = _means(fetch, members, num_classes)
    mean = counts @ means / counts.sum()
    means = means - mean
    d = means.shape[1]
    picked = _picked(members, d)
    pooled = means.new_zeros(d, d)
    for rows in picked.split(_ROWS):
        features, shares = fetch(rows).detach().float() - mean, shares_of(members[rows], num_classes)
        cross = (shares @ means).T @ features
        pooled += features.T @ features - cross - cross.T + means.T @ (shares.sum(0)[:, None] * means)
    pooled = (pooled + pooled.T) / (2 * len(picked))
    if not bool(pooled.isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    values, vectors = torch.linalg.eigh(pooled.double().cpu())  # accelerators are slow at small matrices
    values = values.clamp(min=0)
    scale = float(values.mean())
    found = []
    for value in shrinks:
        variances = (1 - value) * values + value * scale if scale > 0 else torch.ones_like(values)
        whiten = (vectors / variances.sqrt()).T.to(means)
        fitted = Discriminant(whiten, whiten @ mean, means @ whiten.T, counts, float(value), len(picked))
        surprise = 0.0
        if len(shrinks) > 1:
            assert given is not None
            tried = picked[evenly_spaced(len(picked), _TRIED, picked.device)]
            surprise = least_surprise(held_out_log_posterior(fitted, fetch, members, groups, tried), given[tried])
        found.append((surprise, fitted))
    return min(found, key=lambda pair: pair[0])[1]


def shares_of(members: Tensor, num_classes: int) -> Tensor:
    """Return to what share each example belongs to each class (n, k); ``members`` may be their classes (n,)."""
    return (one_hot(members, num_classes) if members.ndim == 1 else members).float()


def held_out(discriminant: Discriminant, fetch: Fetch, members: Tensor, groups: Tensor | None = None) -> Fetch:
    """Return what says log P(c | h) (b, k) of examples that the fit used, each left out with its group, by position.

    Who asks about many examples with groups asks in the order of :func:`by_group`, or groups are fetched repeatedly.
    """
    num_classes, d = discriminant.means.shape
    in_covariance = torch.zeros(len(members), dtype=torch.bool, device=members.device)
    in_covariance[_picked(members, d)] = True

    def taken(rows: Tensor) -> tuple[Tensor, Tensor]:
        return shares_of(members[rows], num_classes), in_covariance[rows]

    def alone(rows: Tensor) -> Tensor:
        return discriminant.held_out_log_posterior(fetch(rows), *taken(rows))

    if groups is None:
        return alone
    order, sizes = groups.argsort(stable=True), groups.bincount()
    starts = sizes.cumsum(0) - sizes
    rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)).to(order) - starts[groups[order]])

    def say(rows: Tensor) -> Tensor:
        own = groups[rows]
        single = sizes[own] == 1
        result = torch.empty(len(rows), num_classes, device=rows.device)
        if bool(single.any()):
            result[single] = alone(rows[single])
        for part in _of_one_size(own[~single].unique(), sizes, max(d, _FEW)):
            size = int(sizes[part[0]])
            asked = torch.isin(own, part).nonzero()[:, 0]
            if size > max(d, _FEW):
                all_of_it = order[starts[part[0]] :][:size].split(_ROWS)
                left = discriminant.without((fetch(some), *taken(some)) for some in all_of_it)
                result[asked] = left(fetch(rows[asked]))
            else:
                together = order[starts[part][:, None] + torch.arange(size, device=rows.device)]  # (b, m)
                parts = (fetch(together.view(-1)), *taken(together.view(-1)))
                found = discriminant.held_out_groups(*(each.view(*together.shape, *each.shape[1:]) for each in parts))
                result[asked] = found[torch.searchsorted(part, own[asked]), rank[rows[asked]]]
        return result

    return say


def by_group(count: int, groups: Tensor | None, device: torch.device) -> Tensor:
    """Return the positions of all examples (n,), members of a group one after another."""
    return torch.arange(count, device=device) if groups is None else groups.argsort(stable=True)


def _of_one_size(numbers: Tensor, sizes: Tensor, most: int) -> Iterator[Tensor]:
    """Yield sorted numbers of groups, all of one size: with about 4,096 members in all, or one above ``most``."""
    for size in sizes[numbers].unique().tolist():
        yield from numbers[sizes[numbers] == size].split(max(1, _ROWS // size) if size <= most else 1)


def held_out_log_posterior(
    discriminant: Discriminant, fetch: Fetch, members: Tensor, groups: Tensor | None = None, rows: Tensor | None = None
) -> Tensor:
    """Return what :func:`held_out` says at ``rows`` or of all examples (m, k), in half precision if that is large."""
    rows = torch.arange(len(members), device=members.device) if rows is None else rows
    say, num_classes = held_out(discriminant, fetch, members, groups), len(discriminant.means)
    result = torch.empty(len(rows), num_classes, dtype=storage_dtype(len(rows) * num_classes), device=members.device)
    for places in by_group(len(rows), None if groups is None else groups[rows], rows.device).split(_ROWS):
        result[places] = say(rows[places]).to(result)
    return result


def _picked(members: Tensor, d: int) -> Tensor:
    """Return the positions of the examples that the covariance is estimated from."""
    return evenly_spaced(len(members), max(_ENOUGH, _PER_DIMENSION * d), members.device)


def least_surprise(log_probs: Tensor, labels: Tensor) -> float:
    """Return the mean negative log-likelihood of ``labels`` (m,) under ``softmax(b log p)`` at the best b of a few."""
    log_probs = log_probs.clamp(min=_LEAST_LOG)  # -inf for a class without others
    return min(float(nll_loss((scale * log_probs).log_softmax(1), labels)) for scale in _SCALES)


def _means(fetch: Fetch, members: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    counts: Tensor | None = None
    for rows in torch.arange(len(members), device=members.device).split(_ROWS):
        features, shares = fetch(rows).detach().float(), shares_of(members[rows], num_classes)
        if counts is None:
            counts, totals = features.new_zeros(num_classes), features.new_zeros(num_classes, features.shape[1])
        counts += shares.sum(0)
        totals += shares.T @ features
    assert counts is not None
    means = totals / counts.clamp(min=NOBODY)[:, None]
    if not bool(means.isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    return counts, means


def distances_without(
    white: Tensor, shares: Tensor, in_covariance: Tensor, means: Tensor, counts: Tensor, lost: float
) -> Tensor:
    """Return the squared distances (b, m, k) of b groups of m examples from the classes without their own group.

    Taking a group of examples h_j with shares t_jc out of :func:`fit_discriminant` leaves ``r_c = n_c - sum_j t_jc``
    members and the mean ``μ'_c = (n_c μ_c - sum_j t_jc h_j) / r_c``. The scatter of a class about its own mean loses
    ``sum_j t_jc (h_j - μ_c) (h_j - μ_c)ᵀ + r_c (μ'_c - μ_c) (μ'_c - μ_c)ᵀ`` (Chan, Golub and LeVeque 1983, the other
    way round). With u_j = h_j - Σ_c t_jc μ_c in place of h_j - μ_c, which is the same for an example of one class, all
    classes together lose

        U (I + Σ_c t_c t_cᵀ / r_c) Uᵀ        U = (u_1, ..., u_m),  t_c = (t_1c, ..., t_mc)

    which is exact for examples of one class each; for others it leaves out what the class means alone add. Means and
    features are whitened, Σ = I, so that the new Σ' is I - a U (...) Uᵀ with a = (1 - s) / n: the trace in Σ stays.
    Members that the covariance was not estimated from have u = 0. A class that the group leaves without members has no
    mean any more, so its term 1 / r_c is omitted.

    By the formula of Woodbury (1950), with the factor F Fᵀ = U (...) Uᵀ and the eigenvectors V and values λ of FᵀF,

        D_c = |v|² + a Σ_e (V_eᵀ Fᵀ v)² / (1 - a λ_e)        v = h - μ'_c

    which takes (m, m) products of the members instead of their means (k, d).

    Args:
        white: whitened features (b, m, d).
        shares: t (b, m, k).
        in_covariance: which of them the covariance was estimated from (b, m).
        means: whitened (k, d).
        counts: n_c (k,).
        lost: a.
    """
    white, shares, means, counts = white.double(), shares.double(), means.double(), counts.double()
    others = (counts - shares.sum(1, keepdim=True)).clamp(min=NOBODY)  # r_c (b, 1, k)
    along = white @ means.T
    sums = white @ white.mT @ shares  # h_j · sum_l t_lc h_l
    to_means = (counts * along - sums) / others
    norms = counts.square() * means.square().sum(1) - 2 * counts * (shares * along).sum(1) + (shares * sums).sum(1)
    squares = white.square().sum(2, keepdim=True) - 2 * to_means + norms[:, None] / others.square()  # |v|²

    own = (white - shares @ means) * in_covariance[..., None]
    within = shares * in_covariance[..., None]
    weights = torch.eye(white.shape[1]).to(white) + within / others.where(others > NOBODY, torch.inf) @ within.mT
    factor = torch.linalg.cholesky(weights).mT @ own  # Fᵀ (b, m, d)
    values, vectors = torch.linalg.eigh(factor @ factor.mT)
    taken = (MOST_LOST / values.clamp(min=1e-30)).clamp(max=lost)
    stretch = (taken / (1 - taken * values)).sqrt()[..., None] * (vectors.mT @ factor)
    here = stretch @ white.mT  # (b, e, m)
    there = (counts * (stretch @ means.T) - here @ shares) / others
    gained = here.square().sum(1)[..., None] + there.square().sum(1, keepdim=True) - 2 * here.mT @ there
    found: Tensor = (squares + gained).clamp(min=0).float()
    return found


def refitted_without(
    blocks: Iterable[tuple[Tensor, Tensor, Tensor]], means: Tensor, counts: Tensor, lost: float
) -> tuple[Tensor, Tensor]:
    """Return the means (k, d) without one large group, and what whitens once more (d, d), by sums over its members.

    The blocks hold what :func:`distances_without` takes, of some members each: (m, d), (m, k) and (m,).
    """
    means, counts = means.double(), counts.double()
    total, scatter = torch.zeros_like(counts), means.new_zeros(means.shape[1], means.shape[1])
    sums, moved = torch.zeros_like(means), torch.zeros_like(means)
    for white, shares, in_covariance in blocks:
        white, shares = white.double(), shares.double()
        own = (white - shares @ means) * in_covariance[:, None]
        total += shares.sum(0)
        sums += shares.T @ white
        moved += shares.T @ own
        scatter += own.T @ own
    others = (counts - total).clamp(min=NOBODY)[:, None]
    values, vectors = torch.linalg.eigh(scatter + (moved / others.where(others > NOBODY, torch.inf)).T @ moved)
    kept = (1 - lost * values).clamp(min=1 - MOST_LOST)
    return (counts[:, None] * means - sums) / others, vectors / kept.sqrt()
