"""From command line words to run folders: configuration, one run, many runs."""
