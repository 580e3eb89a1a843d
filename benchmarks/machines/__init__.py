"""Nights on several machines, one of which dies: ``python -m benchmarks.machines``."""
