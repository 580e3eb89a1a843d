"""Quantization of torch modules: methods, converters and artifacts."""
