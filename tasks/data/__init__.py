"""Data sets, evaluation and training for all domains."""
