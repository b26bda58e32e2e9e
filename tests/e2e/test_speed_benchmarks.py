"""The benchmarks of speed run, on a tiny network, so that they do not rot; nothing is said about times."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from benchmarks.speed import gpu, peers

TINY = ["--model", "vit_tiny_patch16_224", "--size", "32", "--depth", "2", "--batch-size", "4", "--batches", "1"]

RELEASED = """
import torch


class Tent(torch.nn.Module):
    def __init__(self, model, optimizer):
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def forward(self, x):
        scores = self.model(x.cuda())
        loss = torch.distributions.Categorical(logits=scores).entropy().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return scores


def configure_model(model):
    return model.train()


def collect_params(model):
    named = [(n, p) for n, p in model.named_parameters() if "norm" in n]
    return [p for _, p in named], [n for n, _ in named]
"""


@pytest.fixture
def call(monkeypatch, capsys):
    def run(program, *words):
        monkeypatch.setattr(sys, "argv", [program.__name__, *words, *TINY])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.cuda)
        program.main()
        return capsys.readouterr().out

    return run


def test_gpu_writes_one_json(call):
    out = call(gpu, "--steps-new", "2", "--compile", "off", "--precisions", "tf32", "bf16")
    found = json.loads(out)
    measured = [(case["precision"], case["method"]) for case in found["cases"]]
    assert measured == [(precision, method) for precision in ("tf32", "bf16") for method in gpu.METHODS]
    assert all(case["milliseconds"] > 0 for case in found["cases"])
    assert found["not_measured"] == []
    assert found["engine_milliseconds"].keys() == {"stream", "method", "share"}


def test_gpu_says_what_it_did_not_reach(call):
    found = json.loads(call(gpu, "--seconds", "0", "--methods", "tent", "--precisions", "fp32"))
    assert found["cases"] == []
    assert found["not_measured"] == ["tent, fp32, compile=off", "tent, fp32, compile=default"]


def test_peers_compares_the_released_methods_of_a_repository(call, tmp_path):
    (tmp_path / "Released" / "imagenet").mkdir(parents=True)
    (tmp_path / "Released" / "imagenet" / "tent.py").write_text(RELEASED)
    lines = call(peers, str(tmp_path / "Released")).splitlines()
    assert len(lines) == 2
    case, repository, theirs, _, mine, _, ratio = lines[1].split()
    assert (case, repository) == ("tent", "Released")
    assert float(ratio) == pytest.approx(float(mine) / float(theirs), abs=0.1)


def test_a_folder_without_released_methods_is_one_sentence(call, tmp_path):
    with pytest.raises(SystemExit, match=r"error: no released method in .*: expected one of cotta\.py, dpcore\.py"):
        call(peers, str(tmp_path))
