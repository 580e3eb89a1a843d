"""Quantize a model's graph statically: trace, plan, fuse, observe and convert."""
