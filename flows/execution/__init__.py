"""How a run is executed: worker processes, task runners and clusters, signals, and Prefect's short-lived server."""
