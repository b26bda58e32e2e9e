"""Readers of images, labels and class names on disk."""
