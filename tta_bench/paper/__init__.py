"""The tables and figures of DPCore's paper, run and set beside the published numbers."""
