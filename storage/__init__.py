"""Everything durable: artifacts, results, catalog, bundles and locks; no torch, no Prefect."""
