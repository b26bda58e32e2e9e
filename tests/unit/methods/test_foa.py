"""FOA's formulas and branches, in numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch

from tta_bench.functional import batch_statistics, softmax_entropy
from tta_bench.functional.cma_es import sample
from tta_bench.functional.randomness import spawn
from tta_bench.methods import FOA
from tta_bench.testing import batches, ready, toy_backbone, toy_cnn, toy_data
from tta_bench.types import SourceNeed

IMAGES = batches(1)[0]


def method(**settings):
    return ready(lambda: FOA(toy_backbone(), **{"population": 6, "num_source": 32, **settings}))


def layers_of(built, images, prompt=None):
    with torch.no_grad():
        tokens = None if prompt is None else prompt.view(-1, 32).float()
        return built.backbone.encode_layers(built.backbone.embed(images), tokens)


def prompts_of_next_batch(built):
    rng = torch.Generator()
    rng.set_state(built.rng.get_state())
    noise = torch.randn(6, 96, dtype=torch.float64, generator=spawn(rng, torch.device("cpu")))
    return [*sample(built.search(), noise), built.best_prompt]


def test_the_source_is_measured_in_all_layers():
    built = method()
    loader = toy_data().source_dataloader(SourceNeed.UNLABELED, batch_size=16)
    images = torch.cat(list(loader))[:32] / 255
    features, layers = layers_of(built, images)
    assert layers.shape == (32, 2, 32)
    stats = batch_statistics(layers)
    torch.testing.assert_close((built.source_mean, built.source_std), tuple(stats))
    torch.testing.assert_close(built.source_feature, features.mean(dim=0))
    torch.testing.assert_close(layers[:, -1], features)  # the last layer's are the features, with a [CLS] token


def test_fitness_adds_entropies_and_squared_distances_of_the_statistics():
    built = method(fitness_weight=0.4)
    features, layers = layers_of(built, IMAGES)
    built.source_mean, built.source_std = (s.clone() for s in batch_statistics(layers))
    entropies = softmax_entropy(built.backbone.classify(features)).sum().item()
    assert built.fitness(features, layers).item() == pytest.approx(entropies, rel=1e-5)
    built.source_mean[0, 3] += 5.0
    built.source_std[1, 7] += 2.0
    expected = entropies + 0.4 * 8 / 64 * (25 + 4)
    assert built.fitness(features, layers).item() == pytest.approx(expected, rel=1e-5)


def test_the_fittest_of_population_and_best_so_far_predicts_and_is_remembered():
    built = method()
    built.forward_and_adapt(IMAGES)
    prompts, shift = prompts_of_next_batch(built), built.source_feature - built.test_feature
    images = batches(2)[1]
    tried = [layers_of(built, images, prompt) for prompt in prompts]
    fitness = [built.fitness(*outputs).item() for outputs in tried]
    best = fitness.index(min(fitness))

    logits = built.forward_and_adapt(images)

    torch.testing.assert_close(logits, built.backbone.classify(tried[best][0] + shift).detach())
    torch.testing.assert_close(built.best_prompt, prompts[best])
    assert built.diagnostics()["fitness"] == pytest.approx(fitness[best], rel=1e-5)


def test_the_search_starts_at_zero_and_the_first_best_prompt_is_another():
    built = method()
    assert not built.search_mean.any()
    assert built.best_prompt.abs().min() > 0
    prompts = torch.stack(prompts_of_next_batch(built))
    assert torch.equal(prompts[-1], built.best_prompt)
    built.forward_and_adapt(IMAGES)
    assert built.search_generation == 1
    built.reset()
    assert not built.search_mean.any()


def test_the_first_batch_is_not_shifted_and_founds_the_running_mean():
    built = method(shift_momentum=0.75)
    means = []
    for t, images in enumerate(batches(2)):
        means.append(torch.stack([layers_of(built, images, p)[0].mean(dim=0) for p in prompts_of_next_batch(built)]))
        logits = built.forward_and_adapt(images)
        if t == 0:
            features, _ = layers_of(built, images, built.best_prompt)
            torch.testing.assert_close(logits, built.backbone.classify(features).detach())
            torch.testing.assert_close(built.test_feature, means[0].mean(dim=0))
    expected = 0.75 * means[0].mean(dim=0) + 0.25 * means[1].mean(dim=0)
    torch.testing.assert_close(built.test_feature, expected)


def test_shifting_moves_the_mean_feature_to_the_sources():
    built = method()
    features, _ = layers_of(built, IMAGES)
    built.test_feature = features.mean(dim=0)
    torch.testing.assert_close((features + built.shift()).mean(dim=0), built.source_feature)


def test_on_the_same_batch_the_best_prompt_never_gets_worse_and_the_search_improves_it():
    built, fitness = method(population=12), []
    for _ in range(15):
        built.forward_and_adapt(IMAGES)
        fitness.append(built.diagnostics()["fitness"])
    assert fitness == sorted(fitness, reverse=True)
    assert fitness[-1] < 0.9 * fitness[0]


def test_a_single_image_is_predicted_with_the_best_prompt_and_teaches_nothing():
    built = method()
    built.forward_and_adapt(IMAGES)
    before = {name: value.clone() for name, value in built.state_dict().items()}
    features, _ = layers_of(built, IMAGES[:1], built.best_prompt)
    expected = built.backbone.classify(features + built.source_feature - built.test_feature)
    torch.testing.assert_close(built.forward_and_adapt(IMAGES[:1]), expected.detach())
    assert all(torch.equal(value, before[name]) for name, value in built.state_dict().items())
    assert built.passes() == (1, 0)


def test_published_size():
    built = FOA(toy_backbone())
    built.configure_model()
    assert (built.hparams.population, built.extra_parameters(), built.trainable_parameters()) == (27, 3 * 32, 0)
    assert built.best_prompt.abs().max() <= (6 / (3 * 4**2 + 32)) ** 0.5
    assert built.search_step_size == 1.0


def test_what_is_missing_is_told():
    with pytest.raises(ValueError, match="needs a vision transformer"):
        FOA(toy_cnn()).configure_model()
    with pytest.raises(ValueError, match="FOA needs 300 source images but got 16: lower num_source"):
        FOA(toy_backbone()).fit_source(batches(2))
    with pytest.raises(RuntimeError, match="call fit_source"):
        FOA(toy_backbone())(IMAGES)
