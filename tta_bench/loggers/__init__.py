"""Weights & Biases: runs, comparisons, transfer."""
