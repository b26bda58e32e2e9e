"""What a run leaves on disk, and what identifies it."""
