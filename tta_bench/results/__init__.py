"""The files that a run leaves on disk, and the identity of a run."""
