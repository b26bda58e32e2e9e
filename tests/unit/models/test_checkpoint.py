"""Checkpoints of training scripts: several state dicts, prefixes, objects beside the tensors, other heads."""

from __future__ import annotations

import argparse
import collections
import os
import sys
import types

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tta_bench.models.loading.checkpoint import Origin, load_weights


class Network(nn.Module):
    """A network whose names have dots, a counter, and an output layer behind a hidden one."""

    def __init__(self, classes=3, hidden=4, seed=0):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(2, hidden), nn.BatchNorm1d(hidden))
        self.head = nn.Linear(hidden, classes)
        for index, value in enumerate(self.state_dict().values()):
            if value.is_floating_point():
                value.normal_(generator=torch.Generator().manual_seed(100 * seed + index))


GOOD, RAW = Network(seed=1).state_dict(), Network(seed=2).state_dict()


def load(path, content, key=None, network=None, **settings):
    """Save, load into a network, and return it with the origin of its weights."""
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path, **settings)
    network = Network() if network is None else network
    return network, load_weights(network, path, key)


def check_is(network, state):
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)


def refusal(path, content, key=None, network=None):
    with pytest.raises(ValueError, match=r"w\.pth") as caught:
        load(path, content, key, network)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.fixture
def path(tmp_path):
    return tmp_path / "w.pth"


class TestSeveralStateDicts:
    @pytest.mark.parametrize(("raw", "averaged"), [("state_dict", "state_dict_ema"), ("model", "model_ema")])
    @pytest.mark.parametrize("first", ["raw", "averaged"])
    def test_averaged_weights_come_first_as_in_timm(self, path, raw, averaged, first):
        both = {raw: RAW, averaged: GOOD} if first == "raw" else {averaged: GOOD, raw: RAW}
        network, origin = load(path, {"epoch": 3, **both, "optimizer": {}, "metric": 91.2})
        check_is(network, GOOD)
        assert origin == Origin(averaged, "", [raw])

    def test_a_key_chooses(self, path):
        network, origin = load(path, {"state_dict": RAW, "state_dict_ema": GOOD}, "state_dict")
        check_is(network, RAW)
        assert origin == Origin("state_dict", "", [])

    def test_a_key_reaches_deeper(self, path):
        network, origin = load(path, {"ckpt": {"student": RAW, "teacher": GOOD}}, "ckpt.teacher")
        check_is(network, GOOD)
        assert origin.key == "ckpt.teacher"

    def test_an_unknown_key_names_the_nearest(self, path):
        message = refusal(path, {"student": RAW, "teacher": GOOD}, "teachr")
        assert "no state dict model.checkpoint_key=teachr; it has student, teacher; did you mean 'teacher'?" in message

    def test_without_a_convention_the_user_chooses(self, path):
        message = refusal(path, {"model": RAW, "ema": GOOD})
        assert "several state dicts that fit the model (model, ema)" in message
        assert "model.checkpoint_key=ema" in message

    def test_equal_ones_need_no_choice(self, path):
        network, origin = load(path, {"model": GOOD, "copy": {f"module.{k}": v.clone() for k, v in GOOD.items()}})
        check_is(network, GOOD)
        assert origin == Origin("model", "", ["copy"])

    def test_only_those_that_fit_count(self, path):
        auxiliary = Network(classes=7).state_dict()
        moments = {0: {"exp_avg": torch.zeros(4, 2)}, 1: torch.zeros(3)}
        network, origin = load(path, {"aux": auxiliary, "model": GOOD, "optimizer": {"state": moments}})
        check_is(network, GOOD)
        assert origin == Origin("model", "", [])

    def test_averaged_weights_that_do_not_fit_are_not_passed_over(self, path):
        averaged = {"n_averaged": torch.tensor(3), **{f"module.{k}": v for k, v in GOOD.items()}}
        message = refusal(path, {"state_dict": RAW, "state_dict_ema": averaged})
        assert message.startswith("state_dict_ema in ")
        assert "unexpected n_averaged, module.blocks.0.weight" in message
        assert "model.checkpoint_key=state_dict loads those that fit" in message
        check_is(load(path, {"state_dict": RAW, "state_dict_ema": averaged}, "state_dict")[0], RAW)

    def test_no_averaged_weights_are_none(self, path):
        network, _ = load(path, {"state_dict": GOOD, "state_dict_ema": None})
        check_is(network, GOOD)


class TestPrefixes:
    @pytest.mark.parametrize(
        "prefix",
        ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "backbone.", "my.net."],
    )
    @pytest.mark.parametrize("suffix", ["pth", "safetensors"])
    def test_one_that_all_names_share_is_left_out(self, tmp_path, prefix, suffix):
        state = {f"{prefix}{name}": value for name, value in GOOD.items()}
        network, origin = load(tmp_path / f"w.{suffix}", state)
        check_is(network, GOOD)
        assert origin == Origin(None, prefix, [])

    def test_what_the_networks_own_names_share_is_kept(self, path):
        only_blocks = nn.Module()
        only_blocks.blocks = Network().blocks
        state = {f"module.blocks.{k}": v for k, v in Network(seed=1).blocks.state_dict().items()}
        network, origin = load(path, state, network=only_blocks)
        check_is(network.blocks, Network(seed=1).blocks.state_dict())
        assert origin.prefix == "module."

    def test_one_that_does_not_help_is_named(self, path):
        message = refusal(path, {f"encoder.x{name}": value for name, value in GOOD.items()})
        first = ("blocks.0.weight", "blocks.0.bias", "blocks.1.weight")
        assert f"missing {', '.join(first)} and 5 more; " in message  # a counter may be missing
        assert f"unexpected {', '.join(f'encoder.x{name}' for name in first)} and 6 more" in message
        assert "(with or without the prefix 'encoder.' that all its names share)" in message

    def test_missing_and_unexpected_names_stand_beside_each_other(self, path):
        state = {f"module.{name}": value for name, value in GOOD.items() if name != "head.bias"}
        message = refusal(path, {**state, "module.extra": torch.ones(2), "module.more": torch.ones(2)})
        assert "missing head.bias; unexpected extra, more (without the prefix 'module.' that all its" in message


def history_buffer():
    """The class that mmengine's training leaves in its checkpoints: arrays, and functions of itself."""

    class HistoryBuffer:
        def min(self):
            return 0

        def __getstate__(self):
            return {"_log_history": np.arange(3.0), "statistics_methods": {"min": HistoryBuffer.min}}

    HistoryBuffer.__module__ = HistoryBuffer.min.__module__ = "mmengine.logging.history_buffer"
    HistoryBuffer.__qualname__, HistoryBuffer.min.__qualname__ = "HistoryBuffer", "HistoryBuffer.min"
    return HistoryBuffer


def touch(file):
    file.touch()


class Evil:
    """Touches a file when it is unpickled by ordinary pickle."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return touch, (self.file,)


class System:
    def __reduce__(self):
        return os.system, ("true",)


class TestObjectsBesideTheWeights:
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize(
        "beside",
        [
            {"args": argparse.Namespace(lr=1e-3, model="vit")},
            {"best": np.float64(91.5), "epoch": np.int64(3), "curve": np.arange(4.0), "accuracy": np.float32(0.9)},
            {"hparams": collections.defaultdict(list)},
        ],
        ids=lambda beside: next(iter(beside)),
    )
    def test_do_not_matter(self, path, beside, zipped):
        network, origin = load(path, {"model": GOOD, **beside}, _use_new_zipfile_serialization=zipped)
        check_is(network, GOOD)
        assert origin == Origin("model", "", [])

    @pytest.mark.parametrize("zipped", [True, False])
    def test_may_be_of_packages_that_are_not_installed(self, path, monkeypatch, zipped):
        module = types.ModuleType("mmengine.logging.history_buffer")
        module.HistoryBuffer = history_buffer()
        for name in ("mmengine", "mmengine.logging", module.__name__):
            monkeypatch.setitem(sys.modules, name, module)
        content = {"meta": {"epoch": 1}, "state_dict": GOOD, "message_hub": {"train/loss": module.HistoryBuffer()}}
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        for name in ("mmengine", "mmengine.logging", module.__name__):
            monkeypatch.setitem(sys.modules, name, None)  # an import would fail
        network = Network()
        assert load_weights(network, path).key == "state_dict"
        check_is(network, GOOD)

    @pytest.mark.parametrize("zipped", [True, False])
    def test_are_never_run(self, path, tmp_path, zipped):
        content = {"model": GOOD, "evil": Evil(tmp_path / "executed")}
        network, _ = load(path, content, _use_new_zipfile_serialization=zipped)
        check_is(network, GOOD)
        assert not (tmp_path / "executed").exists()
        torch.load(path, weights_only=False)
        assert (tmp_path / "executed").exists()  # it would have been

    def test_that_torch_never_reads_are_named(self, path):
        message = refusal(path, {"model": GOOD, "evil": System()})
        assert "is not a readable checkpoint of tensors only (it refers to posix.system)" in message.replace(
            "nt.", "posix."
        )

    def test_in_the_place_of_weights_are_named(self, path):
        assert "head.bias is a argparse.Namespace instead of a tensor" in refusal(
            path, {**GOOD, "head.bias": argparse.Namespace()}
        )
        assert "no state dict of tensors, only a torch.nn.modules.linear.Linear: save" in refusal(path, nn.Linear(2, 2))
        assert "only epoch (int), net (argparse.Namespace): save model.state_dict()" in refusal(
            path, {"epoch": 3, "net": argparse.Namespace()}
        )

    def test_leave_no_trace_in_torch(self, path):
        before = set(torch.serialization.get_safe_globals())
        load(path, {"model": GOOD, "args": argparse.Namespace()})
        assert set(torch.serialization.get_safe_globals()) == before


class TestOtherHeads:
    @pytest.mark.parametrize("classes", [2, 5])
    def test_the_numbers_of_classes_are_named(self, path, classes):
        message = refusal(path, Network(classes=classes).state_dict())
        assert f"head.weight has shape ({classes}, 4) where the model has (3, 4)" in message
        assert f"the weights have {classes} classes and the model has 3" in message
        assert f"num_classes: {classes} in model.config" in message

    def test_another_width_is_not_taken_for_one(self, path):
        message = refusal(path, Network(hidden=5).state_dict())
        assert "blocks.0.weight has shape (5, 2) where the model has (4, 2)" in message
        assert "classes" not in message
        wider = nn.Linear(5, 6, bias=False).state_dict()
        assert "classes" not in refusal(path, wider, network=nn.Linear(3, 4, bias=False))
