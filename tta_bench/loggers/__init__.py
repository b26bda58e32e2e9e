"""Loggers, and Weights & Biases: runs, comparisons, transfer."""
