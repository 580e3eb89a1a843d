"""Runtimes: each subpackage declares its limits, and makes, opens and checks its candidates' files."""
