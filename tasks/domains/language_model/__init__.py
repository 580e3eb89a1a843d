"""Word language models."""
