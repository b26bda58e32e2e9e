"""Configurations of runs from command-line overrides."""

FOLDER_VARIABLE = "TTA_BENCH_CONFIG_DIR"
"""The environment variable that names the user's folder of configurations."""
