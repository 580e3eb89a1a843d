"""Runtimes: what executes a candidate."""
