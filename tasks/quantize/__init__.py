"""Quantization of torch modules: methods, the graph work that static ones need, and what they make."""
