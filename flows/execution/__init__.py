"""Execution of a run: worker processes, task runners and clusters, signals, and a short-lived Prefect server."""
