"""The stages of a run as plain functions; only this package imports torch."""
