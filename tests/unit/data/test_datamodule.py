"""DataModules: from a schedule to batches of images."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import tta_bench as tta
from tta_bench.config.compose import compose_run, plain
from tta_bench.config.registry import DATASETS
from tta_bench.data import StreamDataModule, schedule_for
from tta_bench.datasets.classification.shapes_c import shapes_c
from tta_bench.datasets.corruptions import generate_frost_textures
from tta_bench.testing.toy import ToyDomains
from tta_bench.types import SourceNeed, StreamBatch


@pytest.fixture(scope="module")
def domains():
    return shapes_c(num_images=12, domains=["gaussian_noise", "clean"])


def module_for(domains, setting="cdc", **settings):
    return StreamDataModule(domains, schedule_for(domains, setting, batch_size=5, **settings), seed=3)


@pytest.mark.parametrize("setting", ["cdc", "mixed"])
def test_a_batch_is_a_step_of_the_schedule(domains, setting):
    module = module_for(domains, setting)
    batches = list(module.test_dataloader())
    assert len(batches) == len(module.schedule)
    for t, (batch, step) in enumerate(zip(batches, module.schedule, strict=True)):
        assert batch.step == t
        names = [module.schedule.domains[d] for d in step.domain_ids]
        np.testing.assert_array_equal(batch.domain_ids, step.domain_ids)
        np.testing.assert_array_equal(batch.labels, step.indices % 10)
        for image, name, index in zip(batch.images, names, step.indices, strict=True):
            np.testing.assert_array_equal(image.permute(1, 2, 0), domains.load(name, int(index)))


@pytest.mark.parametrize("setting", ["mixed", "blurred", "cdc"])
def test_a_label_is_that_of_its_own_domain(setting):
    class Unequal:
        """The labels of an index differ between domains; an image shows its domain and index."""

        domains = ("a", "b", "c")

        def labels(self, domain):
            return (np.arange(9) * 5 + 2 + self.domains.index(domain)) % 7

        def load(self, domain, index):
            return np.full((2, 2, 3), 50 * self.domains.index(domain) + index, np.uint8)

    data, seen = Unequal(), set()
    module = module_for(data, setting)
    for batch in module.test_dataloader():
        shown = batch.images[:, 0, 0, 0].tolist()
        names = [module.schedule.domains[i] for i in batch.domain_ids]
        assert names == [data.domains[level // 50] for level in shown]
        assert batch.labels.tolist() == [int(data.labels(data.domains[v // 50])[v % 50]) for v in shown]
        seen |= set(shown)
    assert len(seen) == 27


def test_loader_processes_do_not_change_the_stream(domains):
    schedule = schedule_for(domains, "cdc", batch_size=5)
    alone, helped = (list(StreamDataModule(domains, schedule, num_workers=n).test_dataloader()) for n in (0, 2))
    for a, b in zip(alone, helped, strict=True):
        assert isinstance(b, StreamBatch)
        assert a.step == b.step
        for x, y in zip(a[:3], b[:3], strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize(("shown", "workers", "made"), [("frost/3", 2, True), ("frost", 0, False), ("fog", 2, False)])
def test_frost_textures_are_made_once_before_the_loader_processes_start(shown, workers, made):
    generate_frost_textures.cache_clear()
    frosty = shapes_c(num_images=4, domains=["clean", shown])
    module = StreamDataModule(frosty, schedule_for(frosty, "csc", batch_size=4), num_workers=workers)
    frosty.describe()
    assert generate_frost_textures.cache_info().currsize == 0
    loader = iter(module.test_dataloader())
    assert generate_frost_textures.cache_info().currsize == made
    assert len(list(loader)) == 2


@pytest.mark.parametrize(
    ("device", "processors", "ranks", "given", "workers"),
    [("cpu", 16, 1, None, 0), ("cuda", 16, 1, None, 8), ("cuda", 12, 4, None, 3), ("cuda", 2, 4, None, 0),
     ("cuda", 16, 1, 0, 0), ("cpu", 16, 1, 2, 2)],
)  # fmt: skip
def test_loader_processes_are_taken_where_processors_are_free(
    domains, monkeypatch, device, processors, ranks, given, workers
):
    module = StreamDataModule(domains, schedule_for(domains, "csc"), num_workers=given)
    module.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)), world_size=ranks)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(processors)))
    loader = module.test_dataloader()
    assert (loader.num_workers, loader.pin_memory) == (workers, device == "cuda")


@pytest.mark.parametrize("sizes", [2, 3])
def test_images_of_several_sizes_name_the_remedy(sizes):
    class Unequal:
        domains = ("d",)

        def labels(self, domain):
            return np.arange(4)

        def load(self, domain, index):
            return np.zeros((8 + index % sizes, 8, 3), dtype=np.uint8)

    module = module_for(Unequal())
    with pytest.raises(ValueError, match=r"^images of 8x8 and 9x8 pixels in one stream: set dataset\.image_size$"):
        next(iter(module.test_dataloader()))


class TestSourceImages:
    def test_come_each_once_in_an_order_of_the_seed(self):
        domains = ToyDomains()  # 64 images of 4 classes
        batches = list(module_for(domains).source_dataloader(SourceNeed.LABELED, batch_size=21))
        assert [len(images) for images, _ in batches] == [21, 21, 21, 1]
        order = np.random.default_rng(3).permutation(64)
        np.testing.assert_array_equal(torch.cat([labels for _, labels in batches]), order % 4)
        images = torch.cat([images for images, _ in batches]).permute(0, 2, 3, 1)
        np.testing.assert_array_equal(images, [domains.source_images()[int(i)] for i in order])

    def test_are_the_same_with_and_without_labels(self, domains):
        module = module_for(domains)
        images = next(iter(module.source_dataloader(SourceNeed.UNLABELED)))
        labeled, _ = next(iter(module.source_dataloader(SourceNeed.LABELED)))
        assert torch.equal(images, labeled)
        assert images.dtype == torch.uint8

    def test_have_another_order_under_another_seed(self, domains):
        schedule = schedule_for(domains, "csc")
        first, second = (
            next(iter(StreamDataModule(domains, schedule, seed=s).source_dataloader(SourceNeed.UNLABELED)))
            for s in (0, 1)
        )
        assert not torch.equal(first, second)


def test_a_named_data_module_is_made_of_plain_arguments(tmp_path):
    module = tta.data.ShapesC(
        "cdc", batch_size=4, seed=2, setting_params={"delta": 0.2}, num_images=8, domains=["fog", "clean"], severity=2
    )
    domains = shapes_c(num_images=8, domains=["fog", "clean"], severity=2)
    assert module.schedule == schedule_for(domains, "cdc", batch_size=4, seed=2, delta=0.2)
    assert module.domains.severity == 2
    images = np.stack([domains.load("clean", i) for i in range(8)])
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(8))
    own = tta.data.CorruptedImages(
        "cdc", images=f"{tmp_path}/x.npz", batch_size=4, seed=2, setting_params={"delta": 0.2},
        domains=["fog", "clean"],
    )  # fmt: skip
    assert own.schedule == module.schedule
    assert own.domains.describe()["clean"] == "x.npz (test, 8 images)"


NAMED = {cls.make: cls for name in tta.data.__all__ if hasattr(cls := getattr(tta.data, name), "make")}


def test_every_data_set_has_a_named_data_module():
    assert set(NAMED) == set(DATASETS.values())
    assert len(NAMED) == len(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_a_named_data_module_has_the_defaults_of_the_command_line(name, monkeypatch):
    """A data set that is a yaml on the command line, or another batch size there, would change numbers unsaid."""
    composed = compose_run([f"dataset={name}"]).config
    make, asked = DATASETS[name], []
    for key, parameter in inspect.signature(make).parameters.items():
        own = "???" if parameter.default is parameter.empty else parameter.default
        assert OmegaConf.to_container(composed.dataset)[key] == (list(own) if isinstance(own, tuple) else own)

    def recorded(domains, setting, **given):
        asked.append((setting, given["batch_size"] or 64))
        return schedule_for(shapes_c(num_images=2), "csc")

    monkeypatch.setattr("tta_bench.data.named.schedule_for", recorded)
    cls = type("Named", (NAMED[make],), {"make": staticmethod(lambda: None)})
    cls()
    assert asked == [(composed.setting.kind, composed.setting.batch_size)]


def test_a_wrong_key_of_a_named_data_module_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"^ShapesC takes no 'sevrity'; did you mean 'severity'\? its keys are: split, num"
    ):
        tta.data.ShapesC(sevrity=3)


@pytest.mark.parametrize(("preset", "kind", "values"), [
    ("repeating", "csc", {"rounds": 10}), ("batch_size_1", "csc", {"batch_size": 1}),
    ("cdc_official", "cdc", {"rng": "legacy"}),
])  # fmt: skip
def test_a_preset_is_the_same_stream_for_a_data_module_and_the_command_line(domains, preset, kind, values):
    expected = schedule_for(domains, kind, seed=1, **values)
    assert schedule_for(domains, preset, seed=1).fingerprint() == expected.fingerprint()
    setting = plain(compose_run([f"setting={preset}"]).config.setting)
    assert schedule_for(domains, setting.pop("kind"), seed=1, **setting).fingerprint() == expected.fingerprint()


def test_values_that_are_given_go_before_those_of_a_preset(domains):
    assert schedule_for(domains, "repeating", rounds=2) == schedule_for(domains, "csc", rounds=2)
    assert schedule_for(domains, "batch_size_1", batch_size=4) == schedule_for(domains, "csc", batch_size=4)
