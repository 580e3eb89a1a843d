"""The ``openvino`` runtime, and the specs that it supports."""

from __future__ import annotations

from tasks.quantize.spec import limit
from tasks.runtimes.base import EXPORTED_LIMITS, EXPORTING, Maker, Opener, Runtime


class OpenVino(Runtime):
    """The exported model as OpenVINO IR, quantized with NNCF.

    The precision is always set, because OpenVINO computes float models in bfloat16 by default on some processors.
    """

    extra = "openvino"
    main_file = "model.xml"
    distributions = ("openvino", "nncf", *EXPORTING)
    limits = (*EXPORTED_LIMITS, limit("weights", "int8", reason="it compresses weights only to int8"))
    usage = """\
import openvino

core = openvino.Core()
model = core.read_model("{{ m.model.file }}")
# Fixed shapes are faster; without this call, dynamic axes may have any length.
model.reshape({
{%- for tensor in m.model.inputs %}{{ loop.index0 }}: {{ tensor.shape }}{{ ", " if not loop.last }}{% endfor -%}
})
compiled = core.compile_model(model, "CPU", {
    "INFERENCE_PRECISION_HINT": model.get_rt_info(["nightquant", "precision"]).astype(str),
    "INFERENCE_NUM_THREADS": 1,
})
outputs = compiled([{{ m.model.inputs | map(attribute="name") | join(", ") }}])  # NumPy arrays
"""

    def maker(self) -> Maker:
        """Import and create the maker."""
        from tasks.runtimes.openvino.make import OpenVinoMaker

        return OpenVinoMaker()

    def opener(self) -> Opener:
        """Import and create the opener."""
        from tasks.runtimes.openvino.open import OpenVinoOpener

        return OpenVinoOpener()
