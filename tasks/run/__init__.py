"""The stages of a run, from the data to the published bundle, without Prefect."""
