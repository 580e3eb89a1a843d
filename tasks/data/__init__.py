"""Data sets, evaluation and training, on which the domains build."""
