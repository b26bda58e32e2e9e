"""From a name or a file of weights to a backbone."""
