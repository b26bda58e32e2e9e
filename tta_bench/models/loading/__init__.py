"""Loading of backbones from a name or a file of weights."""
