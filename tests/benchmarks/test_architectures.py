"""A sample of the architectures that people have: int8 works in two runtimes, and a refusal is one line."""

from __future__ import annotations

import pytest

from benchmarks.architectures.__main__ import CARRIED_OUT, run_one
from benchmarks.architectures.catalog import architectures

QUICK = ["mobilenet_v3_small", "distilbert"]
# Other networks of pictures and encoders are in tests/tasks/test_architectures.py.
REST = ["wav2vec2", "Gru", "Tcn", "Dataclass", "TwoTowers"]
RUNTIMES = ("torchscript", "onnxruntime", "openvino")
SAMPLE = [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in REST)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_an_architecture_becomes_int8_in_two_runtimes_and_never_crashes(name: str) -> None:
    # timm is not installed with the project's tests.
    architecture = next(one for one in architectures() if one.name == name and one.family != "timm")
    outcomes = run_one(architecture, tuple(CARRIED_OUT), RUNTIMES, seconds=120, memory_bytes=8 * 2**30)
    became = {f"{outcome.method}/{outcome.runtime}": outcome.became for outcome in outcomes}
    assert set(became.values()) <= {"works", "refused", "-"}, outcomes
    assert len({outcome.runtime for outcome in outcomes if outcome.became == "works"}) >= 2, outcomes
    assert all("\n" not in outcome.message for outcome in outcomes)
