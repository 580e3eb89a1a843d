"""The benchmark: how fast each candidate is against the baseline, and whether this machine could tell."""
