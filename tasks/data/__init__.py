"""Code that the domains use for data sets, evaluation and training."""
