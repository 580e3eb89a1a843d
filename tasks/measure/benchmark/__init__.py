"""Measure each candidate's speed relative to the baseline, and check whether the host was quiet."""
