"""Proofs of the code that ran, and golden cases for checks on other processors."""
