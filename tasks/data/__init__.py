"""Data sets, weights, training, metrics and statistics for all domains."""
