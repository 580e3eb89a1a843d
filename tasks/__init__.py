"""Implement the stages of a run as plain functions. Only this package imports torch."""
