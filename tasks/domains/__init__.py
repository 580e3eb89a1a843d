"""Domains: kinds of work with their data, models, training and metrics; each domain has a folder."""
