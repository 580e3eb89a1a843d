"""Quantization methods, one module each."""
