"""Images that are drawn by the code, for a benchmark without downloads."""
