"""Quantization: the one package that uses ``torch.ao.quantization`` and ``torch.jit``.

Upstream has deprecated both; what follows them replaces this package and nothing else.
"""

from tasks.quantize.engine import quantized_engine
from tasks.quantize.loading import engine_of, load
from tasks.quantize.making import quantize

__all__ = ["engine_of", "load", "quantize", "quantized_engine"]
