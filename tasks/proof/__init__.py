"""Proofs of the code that candidates ran, and golden cases for other processors."""
