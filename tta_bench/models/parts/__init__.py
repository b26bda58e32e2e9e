"""What methods add to a network: prompts, adapters, partitions."""
