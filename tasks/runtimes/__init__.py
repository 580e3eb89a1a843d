"""The runtimes that execute candidates."""
