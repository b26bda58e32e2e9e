"""Data sets with a class per image."""
