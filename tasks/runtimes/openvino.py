"""Runtime ``openvino``: the exported model as OpenVINO's IR, quantized by NNCF.

Precision is always stated: left alone, OpenVINO computes in bfloat16 where the processor can, and calls it float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.digest import JsonObject
from tasks.quantize.spec import limit
from tasks.runtimes import exported
from tasks.runtimes.base import Checker, RawCall, RawTensor, Runtime

if TYPE_CHECKING:
    from tasks.runtimes.openvino_quantize import OpenVinoMaker
    from tasks.runtimes.openvino_session import OpenVinoOpener


def load_openvino(files: dict[str, bytes], manifest: JsonObject) -> RawCall:
    """Open ``model.xml`` and ``model.bin`` with openvino and numpy alone."""
    import numpy
    import openvino

    core = openvino.Core()
    name = manifest["model"]["file"]
    try:
        model = core.read_model(files[name], openvino.Tensor(numpy.frombuffer(files[name[:-3] + "bin"], numpy.uint8)))
        precision = model.get_rt_info(["nightquant", "precision"]).astype(str)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    except RuntimeError as error:
        made_with = manifest["versions"].get("openvino")
        raise RuntimeError(
            f"openvino {openvino.__version__} cannot open the model, which was made with {made_with}: {error}"
        ) from error

    def call(inputs: list[RawTensor]) -> list[RawTensor]:
        arrays = [numpy.frombuffer(values, dtype).reshape(shape) for dtype, shape, values in inputs]
        result = compiled(arrays)
        outputs = [numpy.ascontiguousarray(result[index]) for index in range(len(compiled.outputs))]
        return [(str(output.dtype), list(output.shape), output.tobytes()) for output in outputs]

    return call


class OpenVino(Runtime):
    """Reads the exported model; a recipe's engine, graph mode and per-channel weights are torch's and have no say."""

    extra = "openvino"
    main_file = "model.xml"
    distributions = ("openvino", "nncf", *exported.DISTRIBUTIONS)
    limits = (
        exported.ACTIVATIONS,
        limit("weights", "int8", reason="NNCF compresses weights to int8 only"),
        *exported.TORCHS_OWN,
    )
    rounds_per_call = False  # if weights alone are int8, activations stay float
    usage = """\
import openvino

core = openvino.Core()
model = core.read_model("{{ m.model.file }}")
# Fixed shapes are faster; left out, any length of the free axes is taken.
model.reshape({
{%- for each in m.model.inputs %}{{ loop.index0 }}: {{ each.shape }}{{ ", " if not loop.last }}{% endfor -%}
})
compiled = core.compile_model(model, "CPU", {
    "INFERENCE_PRECISION_HINT": model.get_rt_info(["nightquant", "precision"]).astype(str),
    "INFERENCE_NUM_THREADS": 1,
})
outputs = compiled([{{ m.model.inputs | map(attribute="name") | join(", ") }}])  # NumPy arrays
"""

    def checker(self) -> Checker:
        """Open the IR with openvino and numpy alone."""
        return load_openvino

    def maker(self) -> OpenVinoMaker:
        """Import the exporter and NNCF."""
        from tasks.runtimes.openvino_quantize import OpenVinoMaker

        return OpenVinoMaker()

    def opener(self) -> OpenVinoOpener:
        """Import OpenVINO."""
        from tasks.runtimes.openvino_session import OpenVinoOpener

        return OpenVinoOpener()
