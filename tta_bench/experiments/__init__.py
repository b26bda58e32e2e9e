"""Runs: one, many side by side, tuned; resumed where they were interrupted."""
