"""Data sets, what evaluates on them and what trains on them: the floor below domains."""
