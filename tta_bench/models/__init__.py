"""The network being adapted."""
