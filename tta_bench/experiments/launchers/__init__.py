"""Run many jobs at once: in processes of this machine, or on a cluster through Ray."""
