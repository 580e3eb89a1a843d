"""Quantization of torch modules: specs, methods, converters and stored converted modules."""
