"""Preparing data sets: download, corrupt, pack."""
