"""Domains: kinds of work with their data, models, training and metrics, one folder for each domain."""
