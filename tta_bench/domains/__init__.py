"""Where images come from: datasets as named domains, in numpy only."""
