"""Quantize torch modules: methods, their converters, and the artifacts that they make."""
