"""Domains: each subpackage provides the data, models, training and metrics for one kind of work."""
