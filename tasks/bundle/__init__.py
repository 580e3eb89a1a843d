"""Bundles: packaging the promoted candidate, and verifying it wherever it lies."""
