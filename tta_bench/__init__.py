"""tta_bench: a PyTorch Lightning benchmark for continual test-time adaptation."""
