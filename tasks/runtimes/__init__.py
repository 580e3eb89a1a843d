"""The runtimes, which execute candidates."""
