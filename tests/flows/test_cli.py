import subprocess
import sys

import pytest

from flows.cli import main


@pytest.mark.slow
@pytest.mark.parametrize("modules", ["flows.nightly, flows.search", "flows.commands.setup"])
def test_a_run_and_the_commands_that_only_read_start_without_torch(modules):
    code = f"import sys\nsys.modules['torch'] = None\nimport {modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_unknown_workload_is_one_message_and_exit_code_2(tmp_path):
    command = [sys.executable, "-m", "flows", "nightly", "--workload", "nope", "--store", "store"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith('nightquant: Unknown workload "nope".')
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_a_wrong_date_is_refused_with_the_expected_format(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["nightly", "--night", "yesterday"])
    assert ended.value.code == 2
    assert "YYYY-MM-DD" in capsys.readouterr().err


@pytest.mark.slow
def test_a_store_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as ended:
        main(["nightly", "--store", str(tmp_path / "file" / "store")])
    assert ended.value.code == 2
    assert "Cannot write to the store" in capsys.readouterr().err
