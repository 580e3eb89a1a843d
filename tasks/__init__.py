"""The stages of a run as plain functions. No other package imports torch."""
