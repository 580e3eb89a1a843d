"""Domains; each folder contains the data, models, training and metrics for one kind of work."""
