"""A process that has opened OpenVINO models still gets its signals, and a cache tells models apart."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tasks.quantize.methods import FloatRecipe
from tasks.quantize.spec import spec_of
from tasks.runtimes.openvino.make import OpenVinoMaker
from tests.tasks.runtimes.test_onnx_quantize import source, with_a_shared_bias

_OPEN = """
import os, signal, sys
from pathlib import Path
from tasks.runtimes.openvino.open import _compile

def hear(number, frame):
    print("heard", flush=True)

signal.signal(signal.SIGTERM, hear)
first = _compile(Path(sys.argv[1]), 1, [(1, 4)])
second = _compile(Path(sys.argv[1]), 1, [(2, 4)])
os.kill(os.getpid(), signal.SIGTERM)
del first
os.kill(os.getpid(), signal.SIGTERM)
del second
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_signals_are_handled_while_models_are_open_and_after_they_are_closed(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="the openvino extra is not installed")
    operators = pytest.importorskip("openvino.opset13")
    given = operators.parameter([-1, 4], np.float32, name="given")
    model = openvino.Model([operators.relu(given)], [given], "relu")
    model.set_rt_info("f32", ["nightquant", "precision"])
    path = tmp_path / "model.xml"
    openvino.save_model(model, path)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["heard"] * 3


@pytest.mark.slow
def test_models_that_differ_only_in_weights_have_different_xml(tmp_path: Path) -> None:
    """OpenVINO's cache of compiled models compares only the XML."""
    written = []
    for name in ("first", "second"):
        (folder := tmp_path / name).mkdir()
        with_a_shared_bias(folder / "float.onnx", "between", "Tanh")  # draws other weights at each call
        spec = spec_of(FloatRecipe(name="float", method="none"))
        OpenVinoMaker().quantize(folder / "float.onnx", folder, spec, frozenset(), source())
        written.append((folder / "model.xml").read_text(encoding="utf-8"))
        assert sha256((folder / "model.bin").read_bytes()).hexdigest() in written[-1]
    assert written[0] != written[1]
