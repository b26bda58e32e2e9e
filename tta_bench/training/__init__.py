"""Training source models."""
