"""Proofs of executed code, and golden cases for checks on other processors."""
