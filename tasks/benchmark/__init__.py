"""The benchmark measures each candidate's speed against the baseline, and whether the machine was quiet enough."""
