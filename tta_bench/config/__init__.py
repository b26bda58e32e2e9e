"""From the words of a command line to a run's configuration."""

FOLDER_VARIABLE = "TTA_BENCH_CONFIG_DIR"
"""The environment variable that names the user's own folder of configurations."""
