"""Our own architectures and those of published CIFAR networks."""
