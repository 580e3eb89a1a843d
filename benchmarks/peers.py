"""Peers of benchmarks.runtimes: each runtime as its own documentation has it, with nothing of this project's making."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.quantize.engine import quantized_engine
from tasks.quantize.source import ModelSource

Call = Callable[..., object]
Scope = Callable[[], AbstractContextManager[None]]
Inputs = tuple[Tensor, ...]


def words(source: ModelSource, inputs: Inputs, folder: Path) -> dict[str, tuple[Call, Scope]]:
    """The word model: torch, ONNX Runtime, OpenVINO, Inductor."""
    import nncf
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, length = source.float_model(), len(inputs[0])
    exported = folder / f"words-{length}.onnx"
    names = ["tokens", "h", "c"]
    with torch.inference_mode(mode=False), torch.no_grad():
        torch.onnx.export(model, inputs, str(exported), dynamo=False, opset_version=17, input_names=names)
        per_tensor, per_channel = (exported.with_suffix(f".{each}.onnx") for each in ("tensor", "channel"))
        quantize_dynamic(exported, per_tensor, weight_type=QuantType.QInt8)
        quantize_dynamic(exported, per_channel, weight_type=QuantType.QInt8, per_channel=True)
        with quantized_engine("x86"):
            small = torch.ao.quantization.quantize_dynamic(
                copy.deepcopy(model), {nn.LSTM, nn.Linear}, dtype=torch.qint8
            )
            traced = frozen(small, inputs)
    compressed = nncf.compress_weights(openvino_model(exported), mode=nncf.CompressWeightsMode.INT8_SYM)
    arrays = [tensor.numpy() for tensor in inputs]
    return {
        "torch eager float": (model, nullcontext),
        "torch float without oneDNN": (model, without_onednn),
        "torch float (traced and frozen)": (frozen(model, inputs), nullcontext),
        "torch int8 (traced and frozen)": (traced, lambda: quantized_engine("x86")),
        "ONNX Runtime float": (onnxruntime(exported), nullcontext),
        "ONNX Runtime int8": (onnxruntime(per_tensor), nullcontext),
        "ONNX Runtime per-channel int8": (onnxruntime(per_channel), nullcontext),
        "OpenVINO float32": (openvino(openvino_model(exported), "f32"), nullcontext),
        "OpenVINO by default": (openvino(openvino_model(exported), ""), nullcontext),
        "OpenVINO int8 weights": (openvino(compressed, ""), nullcontext),
        "OpenVINO int8 (NNCF)": (
            openvino(nncf.quantize(openvino_model(exported), nncf.Dataset([arrays]), subset_size=1), ""),
            nullcontext,
        ),
        "Inductor float": (inductor(model, inputs), nullcontext),
    }


def images(source: ModelSource, inputs: Inputs, folder: Path) -> dict[str, tuple[Call, Scope]]:
    """ResNet-18: torch, ONNX Runtime, OpenVINO, Inductor."""
    import nncf
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, exported = source.float_model(), folder / "images.onnx"
    calibration = [batch[0] for batch in source.calibration_batches(8)]
    with torch.inference_mode(mode=False), torch.no_grad():
        torch.onnx.export(model, inputs, str(exported), dynamo=False, opset_version=17, input_names=["images"])
        prepared, quantized = exported.with_suffix(".prepared.onnx"), exported.with_suffix(".int8.onnx")
        quant_pre_process(exported, prepared)
        quantize_static(
            prepared, quantized, Batches(calibration), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
        int8 = {name: (torch_int8(model, calibration, inputs, name), name) for name in ("x86", "onednn")}
    data = [images[:1].numpy() for batch in calibration for images in batch.split(1)]
    nncf_int8 = nncf.quantize(openvino_model(exported), nncf.Dataset(data), subset_size=len(data))
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    return {
        "torch eager float": (model, nullcontext),
        "torch float (channels-last)": (
            lambda images: last(images.contiguous(memory_format=torch.channels_last)),
            nullcontext,
        ),
        "torch float (traced and frozen)": (frozen(model, inputs), nullcontext),
        **{
            f"torch int8 ({name}, traced and frozen)": (each, lambda name=name: quantized_engine(name))
            for name, (each, _) in int8.items()
        },
        "ONNX Runtime float": (onnxruntime(exported), nullcontext),
        "ONNX Runtime int8": (onnxruntime(quantized), nullcontext),
        "OpenVINO float32": (openvino(openvino_model(exported), "f32"), nullcontext),
        "OpenVINO by default": (openvino(openvino_model(exported), ""), nullcontext),
        "OpenVINO int8 (NNCF)": (openvino(nncf_int8, ""), nullcontext),
        "Inductor float": (inductor(model, inputs), nullcontext),
        "Inductor int8 (PT2E)": (pt2e(model, calibration, inputs), nullcontext),
    }


class Batches:
    """Calibration batches for ONNX Runtime, one image at a time: the export's batch is 1."""

    def __init__(self, batches: list[Tensor]) -> None:
        self._left: Iterator[Tensor] = (image for batch in batches for image in batch.split(1))

    def get_next(self) -> dict[str, Any] | None:
        """The next image."""
        image = next(self._left, None)
        return None if image is None else {"images": image.numpy()}


def frozen(model: nn.Module, inputs: Inputs) -> nn.Module:
    """Traced and frozen."""
    with torch.inference_mode(mode=False), torch.no_grad():
        script: nn.Module = torch.jit.freeze(torch.jit.trace(model, inputs, check_trace=False).eval())
        return script


def torch_int8(model: nn.Module, calibration: list[Tensor], inputs: Inputs, name: str) -> nn.Module:
    """FX graph mode, calibrated, converted, traced and frozen."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    with quantized_engine(name):
        prepared = prepare_fx(copy.deepcopy(model).eval(), get_default_qconfig_mapping(name), inputs)
        for batch in calibration:
            prepared(batch)
        return frozen(convert_fx(prepared), inputs)


def onnxruntime(path: Path) -> Call:
    """A session of one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return lambda *inputs: session.run(None, {n: each.numpy() for n, each in zip(names, inputs, strict=True)})


def openvino_model(path: Path) -> Any:
    """An exported file as OpenVINO reads it."""
    import openvino as ov

    return ov.Core().read_model(path)


def openvino(model: Any, precision: str) -> Call:
    """A request of one thread; "" leaves the precision to OpenVINO."""
    import openvino as ov

    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    settings |= {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    return lambda *inputs: request.infer([each.numpy() for each in inputs], share_inputs=True)


def inductor(model: nn.Module, inputs: Inputs) -> Call:
    """Compiled and frozen."""
    import torch._inductor.config as config

    with torch.inference_mode(mode=False), torch.no_grad(), config.patch(freezing=True):
        compiled: Call = torch.compile(copy.deepcopy(model), dynamic=False)
        compiled(*inputs)
    return without_gradients(compiled)


def pt2e(model: nn.Module, calibration: list[Tensor], inputs: Inputs) -> Call:
    """Exported, quantized by torchao's X86 quantizer, compiled and frozen."""
    import torch._inductor.config as config
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    with torch.inference_mode(mode=False), torch.no_grad(), config.patch(freezing=True):
        exported = torch.export.export(copy.deepcopy(model), inputs, strict=True).module()
        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(exported, quantizer)
        for batch in calibration:
            for image in batch.split(1):
                prepared(image)
        compiled: Call = torch.compile(convert_pt2e(prepared), dynamic=False)
        compiled(*inputs)
    return without_gradients(compiled)


def without_gradients(call: Call) -> Call:
    """Compiled code is called as it was compiled: under no_grad, and not in inference mode, or it compiles again."""

    def run(*inputs: Tensor) -> object:
        with torch.inference_mode(mode=False), torch.no_grad():
            return call(*inputs)

    return run


@contextmanager
def without_onednn() -> Iterator[None]:
    """OneDNN off: torch's own LSTM does not pack its weights at every call."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def write_words(folder: Path, count: int) -> Path:
    """A corpus of so many different words."""
    order = random.Random(0).sample([f"w{number}" for number in range(count - 1)], count - 1)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("\n".join(map(" ".join, np.array_split(order, 500))) + "\n")
    return folder
