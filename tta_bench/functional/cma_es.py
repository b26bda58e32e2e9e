"""CMA-ES: minimises a function using only the ranks of its values at random points."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class SearchState(NamedTuple):
    """A normal distribution N(mean, step_size^2 covariance) in n dimensions and the paths of its mean, in float64."""

    mean: Tensor  # (n,)
    step_size: Tensor  # ()
    covariance: Tensor  # (n, n)
    path_step: Tensor  # (n,), in coordinates in which the distribution is a sphere
    path_covariance: Tensor  # (n,)
    generation: Tensor  # ()


class Rates(NamedTuple):
    """Constants of the search, from the number of dimensions and the size of a population."""

    weights: Tensor  # (mu,) of the best points, in order; they sum to one
    effective: float  # variance-effective number of selected points
    step: float  # weight of the new move in path_step
    damping: float  # of the step size
    path: float  # weight of the new move in path_covariance
    rank_one: float  # weight of path_covariance in the covariance
    rank_mu: float  # weight of the selected points in the covariance


def initial_search(mean: Tensor, step_size: float = 1.0) -> SearchState:
    """Create an isotropic distribution of standard deviation ``step_size`` around ``mean`` (n,)."""
    mean, n = mean.double(), len(mean)
    nothing, eye = torch.zeros_like(mean), torch.eye(n, dtype=torch.float64, device=mean.device)
    return SearchState(mean, mean.new_tensor(step_size), eye, nothing, nothing, mean.new_zeros(()))


def default_population(n: int) -> int:
    """Default number of points per generation in n dimensions.

    Example:
        >>> default_population(3 * 768)
        27
    """
    return 4 + int(3 * math.log(n))


def rates(n: int, population: int) -> Rates:
    """The default constants for n dimensions and ``population`` >= 4 points per generation.

    Source: Hansen, arXiv:1604.00772, Table 1, without the negative weights; ``step`` is as in the Python package
    ``cma``, whose denominator has 3 where the table has 5.
    """
    ranks = torch.arange(1, population // 2 + 1, dtype=torch.float64)
    weights = math.log((population + 1) / 2) - ranks.log()
    weights /= weights.sum()
    mu = 1 / float(weights.square().sum())
    step = (mu + 2) / (n + mu + 3)
    rank_one = 2 / ((n + 1.3) ** 2 + mu)
    return Rates(
        weights=weights,
        effective=mu,
        step=step,
        damping=1 + 2 * max(0.0, math.sqrt((mu - 1) / (n + 1)) - 1) + step,
        path=(4 + mu / n) / (n + 4 + 2 * mu / n),
        rank_one=rank_one,
        rank_mu=min(1 - rank_one, 2 * (1 / 4 + mu + 1 / mu - 2) / ((n + 2) ** 2 + mu)),
    )


def sample(search: SearchState, noise: Tensor) -> Tensor:
    """Transform standard normal ``noise`` to points of the distribution, both (population, n)."""
    return search.mean + search.step_size * noise @ torch.linalg.cholesky(search.covariance).T


def evolve(search: SearchState, points: Tensor, values: Tensor, population: int) -> SearchState:
    """Move the distribution towards the smallest values. Only their order matters.

    Args:
        search: The distribution from which the points were drawn.
        points: (population + M, n); the last M may come from elsewhere, and their distance from the mean is limited
            to the reach of the distribution.
        values: (population + M,), to be minimised.
        population: Number of points drawn by ``sample``, at least 4.

    Returns:
        The distribution of the next generation.

    Source: Hansen, arXiv:1604.00772, Fig. 6, with a Cholesky factor for the square root of the covariance (Krause
    et al., NeurIPS 2016); foreign points: Hansen, arXiv:1110.4181. The condition for stalling the path of the
    covariance is that of the Python package ``cma``.
    """
    n, r = len(search.mean), rates(len(search.mean), population)
    factor = torch.linalg.cholesky(search.covariance)
    deviations = (points - search.mean) / search.step_size
    spheric = torch.linalg.solve_triangular(factor, deviations.T, upper=False).T
    length = torch.linalg.vector_norm(spheric, dim=1)
    length[:population] = 0  # these are never limited
    shrink = ((math.sqrt(n) + 2 * n / (n + 2)) / length).clamp(max=1)[:, None]
    best = values.argsort(stable=True)[: len(r.weights)]
    weights = r.weights.to(points.device)
    selected = (deviations * shrink)[best]
    move = weights @ selected

    path_step = _follow(search.path_step, weights @ (spheric * shrink)[best], r.step, r.effective)
    expected = math.sqrt(2) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))  # length of a normal vector
    relative = torch.linalg.vector_norm(path_step) / expected
    started = 1 - (1 - r.step) ** (2 * (search.generation + 1))  # the path's variance if selection is random
    calm = (path_step.square().mean() / started < 2 + 4 / (n + 1)).to(points.dtype)  # or the step size grows first

    path = _follow(search.path_covariance, calm * move, r.path, r.effective)
    kept = 1 - r.rank_one * (1 - (1 - calm) * r.path * (2 - r.path)) - r.rank_mu
    rank_mu = selected.T @ (weights[:, None] * selected)
    return SearchState(
        mean=search.mean + search.step_size * move,
        step_size=search.step_size * ((relative - 1) * r.step / r.damping).exp(),
        covariance=kept * search.covariance + r.rank_one * path.outer(path) + r.rank_mu * rank_mu,
        path_step=path_step,
        path_covariance=path,
        generation=search.generation + 1,
    )


def _follow(path: Tensor, move: Tensor, share: float, effective: float) -> Tensor:
    """Add a move to a path so that, under random selection, the path stays a standard normal vector."""
    return (1 - share) * path + math.sqrt(share * (2 - share) * effective) * move
