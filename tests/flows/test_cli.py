import subprocess
import sys

import pytest


def _run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "flows", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parametrize("modules", ["flows.nightly, flows.search", "flows.commands.setup"])
def test_a_run_and_the_commands_that_only_read_start_without_torch(modules):
    code = f"import sys\nsys.modules['torch'] = None\nimport {modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_unknown_workload_is_one_message_and_exit_code_2(tmp_path):
    done = _run("nightly", "--workload", "nope", "--store", str(tmp_path / "store"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith('nightquant: Unknown workload "nope".')
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_store_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    done = _run("nightly", "--store", str(blocker / "store"), cwd=tmp_path)
    assert done.returncode == 2
    assert "Cannot write to the store" in done.stderr
    assert "Traceback" not in done.stderr
