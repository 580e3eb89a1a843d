"""Quantization methods: how a float model becomes a quantized one. One module each."""
