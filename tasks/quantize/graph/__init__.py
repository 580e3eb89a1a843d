"""Static quantization of a model's graph: trace, plan, fuse, observe, convert."""
