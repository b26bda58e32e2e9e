"""Reproduction of the tables and figures of DPCore's paper, beside the published numbers."""
