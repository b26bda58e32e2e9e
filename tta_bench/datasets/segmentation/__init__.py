"""Data sets with a class per pixel."""
