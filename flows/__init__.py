"""Orchestration: the Prefect flow, the command line and the built-in workload files."""
