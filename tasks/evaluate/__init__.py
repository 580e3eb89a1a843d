"""Evaluation: a candidate's quality, and its comparison with the baseline on the same samples."""
