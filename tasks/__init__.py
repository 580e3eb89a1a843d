"""The stages of the work as plain functions, and the only package that imports torch."""
