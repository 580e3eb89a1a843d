"""The smallest workload that a night can measure: an LSTM in float, and on demand in int8; and one that only sleeps."""

from pathlib import Path

SLEEPING = """
import time
from torch import nn

def splits():
    time.sleep({seconds})
    raise RuntimeError("the disk is asleep")

def model():
    return nn.Linear(3, 2)
"""


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


def write_sleeping(folder: Path, seconds: int) -> Path:
    """Write a workload whose data take so many seconds, and then fail; give its file."""
    (folder / "sleeping.py").write_text(SLEEPING.format(seconds=seconds))
    file = folder / "sleeping.toml"
    file.write_text(
        'schema_version = 1\nname = "sleeping"\ndescription = ""\ndomain = "custom"\n'
        'data = { kind = "factory", factory = "sleeping:splits" }\n'
        'model = { kind = "factory", factory = "sleeping:model" }\n'
        'checkpoint = { kind = "seeded" }\nevaluate = { metric = "accuracy" }\n'
        'recipe = [{ name = "float", method = "none" }]\n'
    )
    return file
