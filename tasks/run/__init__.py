"""The stages of a run and the decisions about them, from the data to the published bundle, without Prefect."""
