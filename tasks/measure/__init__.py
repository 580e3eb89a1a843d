"""Evaluation, timing, proof and sensitivity of candidates."""
