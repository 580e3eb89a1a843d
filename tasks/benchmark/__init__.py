"""The benchmark measures each candidate's speed against the baseline, and checks whether the host was quiet."""
