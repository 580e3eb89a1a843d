"""Runtimes: what executes a candidate. One module each."""
