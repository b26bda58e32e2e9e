"""From the words of a command line to a run's configuration."""
