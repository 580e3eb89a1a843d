"""Domains: the kinds of work, each with its data, models, training and metrics. One folder each."""
