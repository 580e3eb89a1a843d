import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from flows.execution.workers import Workers
from storage.errors import InputError, MeasurementError
from tasks.environment.libraries import LibraryError
from tests.flows.execution import worker_stages


@pytest.fixture(scope="module")
def heard():
    return []


@pytest.fixture(scope="module")
def workers(heard):
    with Workers(count=1, threads=1, cache="kept", listener=lambda *message: heard.append(message)) as pool:
        yield pool


def _run(workers, stage, tmp_path, *arguments, timeout_s=60.0):
    return workers.run(stage, f"label {stage.__name__}", timeout_s, str(tmp_path), *arguments)


def test_a_users_error_arrives_with_its_type_and_hint(workers, tmp_path):
    with pytest.raises(InputError, match=r"broken\. Mend it\."):
        _run(workers, worker_stages.refuse, tmp_path)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("two", "TwoArgumentsError: left and right"),
        ("holding", "HoldingError: held"),
        ("panic", "PanicError: index out of bounds"),
    ],
)
def test_a_librarys_error_arrives_in_one_line_and_keeps_its_traceback(workers, tmp_path, failure, said, capfd):
    process = _run(workers, worker_stages.pid, tmp_path)
    expected = rf'^The stage "label fail" failed: {said} in worker_stages.py, line \d+\. --debug shows the traceback\.$'
    with pytest.raises(LibraryError, match=expected) as caught:
        _run(workers, worker_stages.fail, tmp_path, failure)
    assert "worker_stages.py" in caught.value.in_full()
    assert _run(workers, worker_stages.pid, tmp_path) == process  # it lives on
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_stage_that_hangs_is_stopped_by_its_timeout_and_the_next_one_runs(workers, tmp_path):
    with pytest.raises(MeasurementError, match="NIGHTQUANT_STAGE_TIMEOUT_S"):
        _run(workers, worker_stages.hang, tmp_path, timeout_s=1.0)
    assert _run(workers, worker_stages.echo, tmp_path, 1)[0] == 1


@pytest.mark.slow
def test_a_killed_worker_fails_only_its_own_stage(workers, tmp_path):
    with pytest.raises(MeasurementError, match="memory"):
        _run(workers, worker_stages.be_killed, tmp_path)
    assert _run(workers, worker_stages.echo, tmp_path, 2)[0] == 2


def test_progress_reaches_the_listener(workers, heard, tmp_path):
    _run(workers, worker_stages.tell, tmp_path)
    expected = ("label tell", 1, 2, "steps")
    deadline = time.monotonic() + 20
    while expected not in heard and time.monotonic() < deadline:
        time.sleep(0.01)
    assert expected in heard


@pytest.mark.parametrize("count", [1, 2])
def test_only_a_worker_that_would_wait_imports_for_later_stages_and_its_errors_are_left_to_them(count, tmp_path):
    with Workers(count=count, threads=1) as pool:
        pool.load(worker_stages.refuse, "loading", str(tmp_path))
        pool.load(worker_stages.leave_pid, "loading", str(tmp_path))
        _run(pool, worker_stages.pid, tmp_path)
        if count == 2:
            _run(pool, worker_stages.wait_for, tmp_path, str(tmp_path / "pid"))
        assert sum(1 for _ in tmp_path.glob("pid")) == count - 1


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
                from flows.execution.workers import Workers
                from tests.flows.execution import worker_stages
                if __name__ == "__main__":
                    workers = Workers(count=1, threads=1)
                    print(workers.run(worker_stages.pid, "pid", 60.0, "."), flush=True)
                    workers.run(worker_stages.hang, "hang", 60.0, ".")
            """),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    worker.wait(20)


def test_a_pool_leaves_no_thread():
    before = set(threading.enumerate())
    pool = Workers(count=1, threads=1)
    pool.stop()
    pool.stop()  # a stopped night ends its pool twice
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread
