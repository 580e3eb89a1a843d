"""Artifacts, results, the catalog, bundles and locks, all independent of torch and Prefect."""
