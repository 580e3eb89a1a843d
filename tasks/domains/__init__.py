"""Domains: a folder for each kind of work, with its data, models, training and metrics."""
