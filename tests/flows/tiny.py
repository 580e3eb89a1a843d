"""The smallest workload that a night can measure: an LSTM in float, and on demand in int8."""


def tiny(name: str, *, seed: int = 0, int8: bool = True) -> str:
    """A workload file whose int8 candidate is promoted, because nothing else can be published."""
    quantized = '{ name = "int8", method = "dynamic", runtimes = ["torchscript"] },' if int8 else ""
    return f"""
schema_version = 1
name = "{name}"
description = "An LSTM"
domain = "sequence"
data = {{ kind = "random-sequence" }}
model = {{ kind = "lstm" }}
checkpoint = {{ kind = "seeded", seed = {seed} }}
benchmark = {{ baseline = "float/eager", twins = false }}
gate = {{ objective = "smallest" }}
recipe = [{{ name = "float", method = "none", runtimes = ["eager"] }}, {quantized}]
"""
