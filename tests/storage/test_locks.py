"""Host locks: exclusive between processes and users, and free as soon as their holder is gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.locks import file_lock, host_lock, passing_lock

# What is imported is imported by the user who runs the tests: others need not be able to read this checkout.
_ASK = """
import os, subprocess, sys
from storage.locks import host_lock
user, mounted, folder, name, *folders = sys.argv[1:]
os.environ["TMPDIR"] = folder
os.chdir(folder)
if mounted:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", mounted], check=True)
os.setgid(int(user))
os.setuid(int(user))
os.umask(0o077)
from pathlib import Path
where = {"folders": [Path(folder) for folder in folders]} if folders else {}
with host_lock(name, on_wait=lambda: print("waits", flush=True), **where):
    print("held", flush=True)
    sys.stdin.read()
"""
_ROOT, _SOMEBODY, _NOBODY = 0, 64321, 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


def may_mount() -> bool:
    """Whether a process may have mounts of its own here, which many containers deny even to root."""
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None and not subprocess.run(tried, capture_output=True, check=False).returncode
    )


@contextmanager
def asking(
    name: str, folders: Sequence[Path] = (), *, user: int = os.getuid(), temporary: str = "/", mounted: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Start a process that asks for a lock, prints "waits" if it has to, then "held", and keeps it until it is told.

    With `mounted`, the process has a file system of its own at that folder, which only root can write to.
    """
    private = ["unshare", "--mount"] if mounted else []
    command = [*private, sys.executable, "-c", _ASK, str(user), mounted, temporary, name, *map(str, folders)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can use, as ``/tmp`` is: pytest's own are only this user's."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a lock that nobody else uses, in the folders that are really used."""
    made = f"test-{uuid.uuid4().hex}"
    yield made
    for folder in ("/run/lock", "/dev/shm", "/tmp"):
        Path(folder, f"nightquant-{made}.lock").unlink(missing_ok=True)


def test_free_lock_is_taken_without_waiting(tmp_path: Path) -> None:
    waited: list[bool] = []
    with host_lock("test", folders=[tmp_path], on_wait=lambda: waited.append(True)):
        pass
    assert waited == []


def test_lock_is_free_again_after_an_error_inside_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="inside"), host_lock("test", folders=[tmp_path]):
        raise FileNotFoundError("inside")
    with host_lock("test", folders=[tmp_path]):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_holder_frees_the_lock_for_a_waiter(tmp_path: Path, how: signal.Signals) -> None:
    with asking("test", [tmp_path]) as process:
        assert heard(process) == "held"
        waited: list[bool] = []

        def kill() -> None:
            waited.append(True)
            process.send_signal(how)

        # The lock is held when it is asked for; killing the holder is all that frees it.
        with host_lock("test", folders=[tmp_path], on_wait=kill):
            assert waited == [True]
        assert process.wait() == -how


def test_other_names_do_not_wait(tmp_path: Path) -> None:
    with asking("test", [tmp_path]) as process:
        assert heard(process) == "held"
        waited: list[bool] = []
        with host_lock("other", folders=[tmp_path], on_wait=lambda: waited.append(True)):
            pass
        assert waited == []


def test_children_do_not_keep_the_lock(tmp_path: Path) -> None:
    with host_lock("test", folders=[tmp_path]):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, host_lock("test", folders=[tmp_path]):
        child.communicate(b"\n")


@as_root
@pytest.mark.parametrize("first", [_ROOT, _SOMEBODY])
def test_users_with_other_rights_and_temporary_folders_exclude_each_other(first: int, name: str, folder: Path) -> None:
    (second,) = {_ROOT, _SOMEBODY} - {first}
    with asking(name, user=first, temporary=str(folder)) as holder:
        assert heard(holder) == "held"
        with asking(name, user=second) as waiter:
            assert heard(waiter) == "waits"
            let_go(holder)
            assert heard(waiter) == "held"
            let_go(waiter)


@as_root
@pytest.mark.parametrize("own", ["/run/lock", "/tmp"])
def test_a_folder_of_its_own_that_only_root_can_write_to_does_not_let_a_process_in(own: str, name: str) -> None:
    if not may_mount():
        pytest.skip("mounting is not permitted here")
    with asking(name, user=_ROOT) as holder:
        assert heard(holder) == "held"
        with asking(name, user=_SOMEBODY, mounted=own) as waiter:
            assert heard(waiter) == "waits"
            let_go(holder)
            assert heard(waiter) == "held"
            let_go(waiter)


@as_root
@pytest.mark.slow
def test_two_users_exclude_each_other_where_only_root_can_write_to_one_folder(folder: Path) -> None:
    (folder / "roots").mkdir(mode=0o755)
    (folder / "everybodys").mkdir()
    (folder / "everybodys").chmod(0o1777)
    folders = [folder / "roots", folder / "everybodys"]
    for first, second in ((_ROOT, _SOMEBODY), (_NOBODY, _ROOT), (_SOMEBODY, _NOBODY)):
        with asking("test", folders, user=first) as holder:
            assert heard(holder) == "held"
            with asking("test", folders, user=second) as waiter:
                assert heard(waiter) == "waits"
                let_go(holder)
                assert heard(waiter) == "held"
                let_go(waiter)


@as_root
def test_a_file_that_only_its_owner_can_read_keeps_nobody_out_of_the_others(folder: Path) -> None:
    for each in ("a", "b"):
        (folder / each).mkdir()
        (folder / each).chmod(0o1777)
    squatted = folder / "a" / "nightquant-test.lock"
    squatted.touch(mode=0o600)
    folders = [folder / "a", folder / "b"]
    with asking("test", folders, user=_ROOT) as holder:
        assert heard(holder) == "held"
        with asking("test", folders, user=_SOMEBODY) as waiter:
            assert heard(waiter) == "waits"


def test_a_file_that_is_removed_while_it_is_waited_for_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "nightquant-test.lock"
    with asking("test", [tmp_path]) as holder:
        assert heard(holder) == "held"
        with asking("test", [tmp_path]) as waiter:
            assert heard(waiter) == "waits"
            file.unlink()
            let_go(holder)
            assert heard(waiter) == "held"
            # What it holds is what others find.
            with asking("test", [tmp_path]) as other:
                assert heard(other) == "waits"


def test_the_file_can_be_read_by_all_and_written_by_its_owner_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with host_lock("test", folders=[tmp_path]):
            assert (tmp_path / "nightquant-test.lock").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


@pytest.mark.slow
def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "nightquant-test.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic links"), host_lock("test", folders=[tmp_path]):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_many_that_make_the_file_at_once_hold_it_one_after_the_other(tmp_path: Path) -> None:
    inside, most, done = 0, 0, 0
    together = threading.Barrier(8)

    def hold() -> None:
        nonlocal inside, most, done
        together.wait(30)
        with host_lock("test", folders=[tmp_path / "none", tmp_path]):
            inside += 1
            most = max(most, inside)
            inside -= 1
            done += 1

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (1, 8)


def test_no_usable_folder_is_a_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with (
        pytest.raises(
            StoreError, match=rf"cannot be taken in any folder \({missing}/nightquant-test\.lock: No such file"
        ),
        host_lock("test", folders=[missing]),
    ):
        pass


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "a b"])
@pytest.mark.slow
def test_odd_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a valid lock name"), host_lock(name, folders=[tmp_path]):
        pass


def test_a_file_lock_keeps_everybody_else_out_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "a" / "folder" / "lock"
    with file_lock(path), pytest.raises(BlockingIOError), file_lock(path, wait=False):
        pass
    with file_lock(path, wait=False):
        pass


def test_those_who_share_a_file_lock_keep_out_only_who_wants_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path, shared=True), file_lock(path, shared=True, wait=False):
        with pytest.raises(BlockingIOError), file_lock(path, wait=False):
            pass
        with pytest.raises(BlockingIOError), file_lock(path, wait=False, shared=False):
            pass


def test_who_waits_for_a_file_lock_gets_it_when_it_is_free(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", []

    def wait() -> None:
        with file_lock(path):
            order.append("second")

    with file_lock(path):
        waiter = threading.Thread(target=wait)
        waiter.start()
        order.append("first")
    waiter.join()
    assert order == ["first", "second"]


def test_a_file_lock_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"), file_lock(tmp_path / "file" / "lock"):
        pass


def test_a_passing_lock_is_held_by_one_at_a_time_and_leaves_no_file(tmp_path: Path) -> None:
    path, inside, most, done = tmp_path / "work.lock", [0], [0], []

    def work() -> None:
        for _ in range(20):
            with passing_lock(path):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                assert path.is_file()
                inside[0] -= 1
                done.append(True)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert most == [1]
    assert len(done) == 4 * 20
    assert not path.exists()


def test_a_passing_lock_that_somebody_removed_is_let_go_like_any_other(tmp_path: Path) -> None:
    for _ in range(2):
        with passing_lock(tmp_path / "work.lock"):
            (tmp_path / "work.lock").unlink()


def test_who_waited_for_a_passing_lock_makes_its_file_again(tmp_path: Path) -> None:
    path, there = tmp_path / "work.lock", []

    def work() -> None:
        with passing_lock(path):
            there.append(path.is_file())

    waiter = threading.Thread(target=work)
    with passing_lock(path):
        waiter.start()
        until = time.monotonic() + 30
        while times_opened(path) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    waiter.join()
    assert there == [True]


def times_opened(path: Path) -> int:
    """How often this process has a file open."""
    links = Path("/proc/self/fd").iterdir()
    return sum(link.exists() and link.samefile(path) for link in links)
