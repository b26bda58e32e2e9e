"""Procedurally generated images, for benchmarks without downloads."""
