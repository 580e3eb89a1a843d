"""Data sets with their evaluation and training: the floor below domains."""
