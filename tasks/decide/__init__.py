"""Decisions over rows of results: pure functions."""
