"""Execution of a run: worker processes, task runners and clusters, signal handling, and a temporary Prefect server."""
