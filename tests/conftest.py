"""Tests use one CPU thread, for a fixed order of sums, and no network."""

import os

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tests set the width of their terminals
os.environ["OMP_NUM_THREADS"] = "1"  # also for the processes that tests start
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

torch.set_num_threads(1)
