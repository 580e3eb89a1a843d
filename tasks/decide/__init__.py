"""The gate's decisions, and the rows of results that they depend on, as pure functions."""
