"""Faults at every change that an operation makes to a store: ``python -m benchmarks.faults``."""
