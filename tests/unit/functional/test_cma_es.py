"""The evolution strategy: its constants, one generation by hand, its invariances, and that it finds minima."""

from __future__ import annotations

import math

import cma
import numpy as np
import pytest
import torch

from tta_bench.functional.cma_es import SearchState, default_population, evolve, initial_search, rates, sample


def noise(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def minimise(function, start, generations):
    search, n, rng = initial_search(start), len(start), torch.Generator().manual_seed(0)
    for _ in range(generations):
        points = sample(search, torch.randn(default_population(n), n, dtype=torch.float64, generator=rng))
        search = evolve(search, points, function(points), default_population(n))
    return search


def test_constants_are_those_of_package_cma():
    r = rates(2304, 27)  # printed by cma 4.5.0
    assert len(r.weights) == 13
    torch.testing.assert_close(r.weights[:2].tolist(), [0.22449398567896664, 0.16553074472173968], rtol=1e-12, atol=0)
    assert r.weights.sum().item() == pytest.approx(1)
    assert r.effective == pytest.approx(7.824762623358721, rel=1e-12)
    assert r.path == pytest.approx(0.0017345686232984713, rel=1e-12)
    assert r.rank_one == pytest.approx(3.7633486578352094e-07, rel=1e-12)
    assert r.rank_mu == pytest.approx(2.3328234202196045e-06, rel=1e-12)
    assert r.step == pytest.approx((7.824762623358721 + 2) / (2304 + 7.824762623358721 + 3), rel=1e-12)
    assert r.damping == 1 + r.step


def state_of(strategy, covariance):
    """The state of package ``cma``; its path of the step size is seen through a symmetric root, not Cholesky's."""
    values, vectors = torch.linalg.eigh(covariance)
    path = vectors * values.sqrt() @ vectors.T @ torch.tensor(getattr(strategy.adapt_sigma, "ps", np.zeros(strategy.N)))
    return SearchState(
        mean=torch.tensor(strategy.mean),
        step_size=torch.tensor(strategy.sigma, dtype=torch.float64),
        covariance=torch.tensor(strategy.sm.C),
        path_step=torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), path[:, None], upper=False)[:, 0],
        path_covariance=torch.tensor(strategy.pc),
        generation=torch.tensor(strategy.countiter, dtype=torch.float64),
    )


@pytest.mark.parametrize(("n", "population"), [(6, 6), (20, 12), (96, 27)])
def test_each_generation_is_that_of_package_cma(n, population):
    options = {"popsize": population, "CMA_active": False, "updatecovwait": 0, "seed": 1, "verbose": -9}
    strategy, scales = cma.CMAEvolutionStrategy(np.ones(n), 0.3, options), 10 ** np.linspace(0, 2, n)
    best, step_sizes = np.full(n, 9.0), []
    for generation in range(25):
        points = np.stack([*strategy.ask(), best])  # as FOA does, it is told of a point that it did not draw
        values = (scales * (points - 3 if generation < 20 else points + 30) ** 2).sum(axis=1)
        covariance = torch.tensor(strategy.sm.C)
        search = state_of(strategy, covariance)
        strategy.tell(list(points), list(values))
        after = evolve(search, torch.tensor(points), torch.tensor(values), population)
        torch.testing.assert_close(tuple(after), tuple(state_of(strategy, covariance)), rtol=1e-9, atol=1e-9)
        best = points[values.argmin()]
        step_sizes.append(float(after.step_size))
    assert min(step_sizes) < 0.3 < max(step_sizes)


@pytest.mark.parametrize(("scale", "calm"), [(1.0, True), (2.2, True), (2.4, False)])
def test_one_generation_by_hand(scale, calm):
    z = scale * torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-1.0, -1.0]]).double()
    search = initial_search(torch.tensor([1.0, -2.0]), step_size=0.5)
    after = evolve(search, search.mean + 0.5 * z, torch.tensor([3.0, 1.0, 2.0, 4.0]), population=4)

    first = math.log(2.5) / (math.log(2.5) + math.log(2.5 / 2))
    second, mu = 1 - first, 1 / (first**2 + (1 - first) ** 2)
    move = first * z[1] + second * z[2]
    cs, cc, c1 = (mu + 2) / (mu + 5), (4 + mu / 2) / (6 + mu), 2 / (3.3**2 + mu)
    cmu = 2 * (0.25 + mu + 1 / mu - 2) / (16 + mu)
    path_step = math.sqrt(cs * (2 - cs) * mu) * move
    path = calm * math.sqrt(cc * (2 - cc) * mu) * move
    expected = math.sqrt(math.pi / 2)
    grown = 0.5 * math.exp(cs / (1 + cs) * (path_step.norm().item() / expected - 1))
    rank_mu = first * z[1].outer(z[1]) + second * z[2].outer(z[2])
    kept = 1 - cmu - (c1 if calm else c1 * (1 - cc * (2 - cc)))
    covariance = kept * torch.eye(2).double() + c1 * path.outer(path) + cmu * rank_mu
    torch.testing.assert_close(after.mean, search.mean + 0.5 * move)
    torch.testing.assert_close(after.path_step, path_step)
    torch.testing.assert_close(after.step_size.item(), grown)
    torch.testing.assert_close(after.path_covariance, path)
    torch.testing.assert_close(after.covariance, covariance)
    assert after.generation == 1


def test_points_have_the_covariance_of_the_distribution():
    factor = noise(5, 5)
    search = initial_search(noise(5, seed=1), 0.3)._replace(covariance=factor @ factor.T)
    deviations = (sample(search, torch.eye(5).double()) - search.mean) / 0.3
    torch.testing.assert_close(deviations.T @ deviations, search.covariance)


def test_only_the_order_of_the_values_matters():
    search, values = initial_search(torch.zeros(4)), noise(8)
    points = sample(search, noise(8, 4, seed=1))
    for a, b in zip(evolve(search, points, values, 8), evolve(search, points, values.exp() - 7, 8), strict=True):
        assert torch.equal(a, b)


def test_a_search_in_other_coordinates_takes_the_same_way():
    map_ = torch.linalg.cholesky(torch.cov(noise(6, 20, seed=3)))
    plain = initial_search(torch.zeros(6))
    mapped = plain._replace(covariance=map_ @ map_.T)
    for seed in range(5):
        z = noise(9, 6, seed=seed)
        points = sample(plain, z)
        values = (points - 1).square().sum(dim=1)
        plain, mapped = evolve(plain, points, values, 9), evolve(mapped, sample(mapped, z), values, 9)
    expected = SearchState(
        mean=map_ @ plain.mean,
        step_size=plain.step_size,
        covariance=map_ @ plain.covariance @ map_.T,
        path_step=mapped.path_step,  # in coordinates of its own
        path_covariance=map_ @ plain.path_covariance,
        generation=plain.generation,
    )
    torch.testing.assert_close(tuple(mapped), tuple(expected))


def test_a_foreign_point_counts_as_if_it_lay_no_farther_out_than_the_distribution_reaches():
    search = initial_search(torch.zeros(9), 0.5)
    points = torch.cat([sample(search, noise(6, 9)), torch.full((1, 9), 100.0).double()])
    values = torch.arange(7.0).flip(0)  # the foreign point is best
    reach = 0.5 * (3 + 18 / 11)
    pulled = torch.cat([points[:-1], torch.full((1, 9), reach / 3).double()])
    torch.testing.assert_close(tuple(evolve(search, points, values, 6)), tuple(evolve(search, pulled, values, 6)))
    near = evolve(search, torch.cat([points[:-1], 0.1 * torch.ones(1, 9).double()]), values, 6)
    assert near.mean.norm() < evolve(search, pulled, values, 6).mean.norm()


def test_finds_the_minimum_of_a_sphere():
    search = minimise(lambda x: (x - 3).square().sum(dim=1), torch.zeros(10), 250)
    torch.testing.assert_close(search.mean, torch.full((10,), 3.0).double(), rtol=0, atol=1e-6)
    assert search.step_size < 1e-5


def test_learns_the_shape_of_an_ellipsoid():
    scales = 10 ** torch.linspace(0, 6, 8, dtype=torch.float64)
    search = minimise(lambda x: (scales * x.square()).sum(dim=1), torch.ones(8), 500)
    assert (scales * search.mean.square()).sum() < 1e-10
    relative = search.covariance.diagonal() * scales
    assert relative.max() < 3 * relative.min()  # the inverse Hessian, up to a factor, over six orders of magnitude


def test_values_without_meaning_leave_the_path_a_standard_normal_vector():
    search, rng, lengths = initial_search(torch.zeros(20)), torch.Generator().manual_seed(0), []
    for _ in range(1000):
        points = sample(search, torch.randn(12, 20, dtype=torch.float64, generator=rng))
        search = evolve(search, points, torch.rand(12, generator=rng), 12)
        lengths.append(search.path_step.norm())
    expected = 4.416605124547244
    assert torch.stack(lengths).mean().item() == pytest.approx(expected, rel=0.05)
