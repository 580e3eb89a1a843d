"""When a night times: not while any workload still prepares, trains, builds or evaluates."""

import shutil

import pytest

from tests.flows.processes import Command
from tests.flows.tiny import tiny, write_sleeping

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(300)]


def test_floats_are_timed_after_the_stages_of_every_workload(tmp_path, migrated_home):
    document = tiny("early", int8=False).replace("float/eager", "fastest-float")
    document = document.replace('runtimes = ["eager"]', 'runtimes = ["torchscript", "onnxruntime"]')
    (tmp_path / "early.toml").write_text(document)
    # The data fail long after the other workload has been evaluated.
    write_sleeping(tmp_path, 20)
    arguments = ["--workload", "early.toml", "--workload", "sleeping.toml", "--profile", "quick", "--store", "store"]
    home = shutil.copytree(migrated_home, tmp_path / "prefect")
    command = Command("nightly", *arguments, home=home, cwd=tmp_path)
    output, _ = command.process.communicate(timeout=240)
    assert "the disk is asleep" in output
    lines = output.splitlines()
    [timed] = [index for index, line in enumerate(lines) if line.endswith("early: find fastest float …")]
    [prepared] = [index for index, line in enumerate(lines) if "sleeping: prepare data set: FAILED" in line]
    assert prepared < timed
