"""What the processes of a night inherit: no module of the working folder, and no signing key."""

import shutil
import sys
import threading
from importlib.resources import files
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from storage.pointer import read_pointer, statement_of
from storage.results.query import run_query
from storage.seal import SIGNATURE
from tests.flows.processes import Command

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

SCRIPT = Path(sys.executable).parent / "nightquant"
KINDS = ("flows.execution.server_process", "multiprocessing.spawn", "tasks.benchmark.child")


class Night:
    """A night in a folder whose modules have the names of ours and fail on import; its children's environments."""

    def __init__(self, folder, migrated_home):
        self.key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.store, self.home = folder / "store", shutil.copytree(migrated_home, folder / "prefect")
        self.environments = {}
        work = folder / "work"
        (work / "flows").mkdir(parents=True)
        for name in ("tasks.py", "storage.py", "flows/__init__.py"):
            (work / name).write_text("raise RuntimeError('this is not nightquant')\n")
        demo = (files("flows.workloads") / "lstm-demo.toml").read_text()
        # As TorchScript nothing of it is smaller than float; here something must be packaged.
        (work / "demo.toml").write_text(demo.replace("min_size_ratio = 1.0", ""))
        # In processes: that has children of every kind.
        asked = ("nightly", "--workload", "demo.toml", "--profile", "quick", "--task-runner", "processes")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NIGHTQUANT_SIGNING_KEY", self.key.decode())
            self.command = Command(*asked, "--store", str(self.store), home=self.home, cwd=work, program=(str(SCRIPT),))
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(ended,))
        watch.start()
        self.output, _ = self.command.process.communicate(timeout=600)
        ended.set()
        watch.join()

    def _watch(self, ended):
        while not ended.wait(0.05):
            for pid, line in self.command.survivors():
                if pid != self.command.process.pid:
                    try:
                        self.environments[pid, line] = Path(f"/proc/{pid}/environ").read_bytes()
                    except (FileNotFoundError, ProcessLookupError):
                        continue


@pytest.fixture(scope="module")
def night(migrated_home, tmp_path_factory):
    return Night(tmp_path_factory.mktemp("night"), migrated_home)


def test_modules_of_the_working_folder_are_not_taken_for_ours(night):
    assert night.command.process.returncode == 0, night.output
    rows = run_query(night.store, "SELECT status FROM measurements WHERE setting = 'primary'").to_pylist()
    assert {row["status"] for row in rows} == {"ok"}
    assert len(rows) >= 4


def test_the_signing_key_signs_and_is_seen_by_no_child(night):
    assert list(night.store.glob(f"handoff/*/*/{SIGNATURE}"))
    (pointer,) = map(read_pointer, night.store.glob("handoff/*/current.json"))
    assert pointer.says(statement_of(pointer, [load_pem_private_key(night.key, None).public_key()]))
    lines = " ".join(line for _, line in night.environments)
    assert all(kind in lines for kind in KINDS), lines
    secret = night.key.splitlines()[1]
    assert [line for (_, line), found in night.environments.items() if secret in found or b"SIGNING_KEY" in found] == []
    written = [path for folder in (night.store, night.home) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in written if secret in path.read_bytes()] == []
    assert "PRIVATE KEY" not in night.output
