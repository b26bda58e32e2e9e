"""Architectures of our own and of published CIFAR networks."""
