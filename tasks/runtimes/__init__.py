"""Runtimes: what executes a candidate. One module and one line here each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.registry import Registry

if TYPE_CHECKING:
    from tasks.runtimes.base import Runtime

RUNTIMES: Registry[Runtime] = Registry(
    "runtime",
    {
        "eager": "tasks.runtimes.eager:Eager",
        "torchscript": "tasks.runtimes.torchscript:TorchScript",
        "onnxruntime": "tasks.runtimes.onnxruntime:OnnxRuntime",
        "openvino": "tasks.runtimes.openvino:OpenVino",
        "aot-inductor": "tasks.runtimes.aot_inductor:AotInductor",
    },
)
