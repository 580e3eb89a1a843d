"""Manage a store's artifacts, results, catalog, bundles and locks, without importing torch or Prefect."""
