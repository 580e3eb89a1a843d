"""A Prefect server with its pool, worker and store, as processes that a test may kill."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

import psutil
import pytest

from tests.documentation.pages import ROOT
from tests.flows.processes import NIGHTQUANT, Command, free_port

PREFECT = (sys.executable, "-m", "prefect")
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")  # states that a run does not leave


class Database:
    """A PostgreSQL of one's own, for Prefect's server."""

    def __init__(self, folder, programs):
        # PostgreSQL refuses root, and its user must get to its folder.
        self._user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        self._folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir=folder))
        if self._user:
            shutil.chown(self._folder, "postgres", "postgres")
        self._programs, self._port = programs, free_port()
        self._run("initdb", "--auth=trust", "--username=prefect", "--no-sync", f"--pgdata={self._folder}/data")
        self.start()
        self._run("createdb", "--host=127.0.0.1", f"--port={self._port}", "--username=prefect", "prefect")
        self.url = f"postgresql+asyncpg://prefect@127.0.0.1:{self._port}/prefect"

    def start(self):
        options = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -p {self._port}"
        log = f"--log={self._folder}/log"
        self._run("pg_ctl", "start", "--wait", f"--pgdata={self._folder}/data", log, f"--options={options}")

    def kill(self):
        """SIGKILL to every process, as a power cut would."""
        with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
            server = psutil.Process(int((self._folder / "data" / "postmaster.pid").read_text().splitlines()[0]))
            all_of_them = [server, *server.children(recursive=True)]
            for process in all_of_them:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(all_of_them)

    def _run(self, program, *arguments):
        subprocess.run(
            [self._programs / program, *arguments], cwd="/", check=True, stdout=subprocess.DEVNULL, **self._user
        )


@contextlib.contextmanager
def postgresql():
    """A PostgreSQL for one test, which is skipped where Debian's package is not installed."""
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    # Not below tmp_path, which nobody else may enter.
    with tempfile.TemporaryDirectory(prefix="nightquant-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        database = Database(folder, programs)
        try:
            yield database
        finally:
            database.kill()


class Site:
    """A server, a pool, a worker and their store; SQLite, or a database of its own."""

    def __init__(self, folder, database=None, address="127.0.0.1"):
        self.folder, self.database = folder, database
        self.store = folder / "store"
        port = free_port()
        self.api = f"http://{address}:{port}/api"
        self.variables = {
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_API_HOST": address,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
            "NIGHTQUANT_ROOT": str(ROOT),
            "NIGHTQUANT_STORE": str(self.store),
            "DO_NOT_TRACK": "1",
        }
        if database is not None:
            self.variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database.url
        self.running = []

    def command(self, *arguments, program=PREFECT, log=None, cwd=ROOT):
        home = self.folder / "prefect"
        return Command(*arguments, home=home, cwd=cwd, program=program, log=log, **self.variables)

    def done(self, *arguments, program=PREFECT):
        command = self.command(*arguments, program=program)
        output, _ = command.process.communicate(timeout=600)
        assert command.process.returncode == 0, output
        return output

    def start_server(self):
        """Start the server and wait until it answers."""
        self.running.insert(0, self.command("server", "start", log=self.folder / "server.log"))
        self.wait_for(lambda: self.asked("/health"), 300)

    def kill_server(self):
        """SIGKILL to the server alone."""
        self.running.pop(0).kill()

    def start_worker(self, cwd=ROOT):
        worker = ("worker", "start", "--pool", "nightquant", "--type", "nightquant")
        self.running.append(self.command(*worker, log=self.folder / "worker.log", cwd=cwd))

    def start_serving(self, *options, cwd=ROOT):
        """Start ``nightquant serve``, and wait until its deployment can be run."""
        log = self.folder / "serve.log"
        self.running.append(self.command("serve", *options, program=NIGHTQUANT, log=log, cwd=cwd))
        self.wait_for(lambda: self.asked("/deployments/name/nightly-quantization/served"), 120)

    def start_run(self, name, parameters):
        """Start a run, even if SQLite is locked for a moment; the key keeps a second answer from being a second run."""
        body = {"parameters": parameters, "idempotency_key": uuid.uuid4().hex}
        deployment = self.wait_for(lambda: self.asked(f"/deployments/name/{name}"), 60)["id"]
        return self.wait_for(lambda: self.asked(f"/deployments/{deployment}/create_flow_run", body), 60)["id"]

    def cut_power(self):
        if self.database is not None:
            self.database.kill()
        for command in self.running:
            command.kill()
        assert [left for command in self.running for left in command.wait_until_gone()] == []
        self.running = []

    def asked(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.api + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or "{}")
        except OSError:
            return None

    def has_begun(self, run, stage):
        logs = self.asked("/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}) or []
        return any(f"{stage}: started on" in log["message"] for log in logs)

    def final(self, run):
        """A run that has come to its end; None of any other."""
        found = self.asked(f"/flow_runs/{run}")
        return found if found and found["state"]["type"] in FINAL else None

    def ended(self, run, timeout_s):
        return self.wait_for(lambda: self.final(run), timeout_s)

    def states(self):
        """State and message of each flow run, in the order in which they were made."""
        runs = self.asked("/flow_runs/filter", {}) or []
        ordered = sorted(runs, key=lambda run: run["created"])
        return [(run["state"]["type"], run["state"]["message"]) for run in ordered]

    def wait_for(self, happened, timeout_s):
        deadline = time.monotonic() + timeout_s
        while not (found := happened()):
            assert time.monotonic() < deadline, [log.read_text()[-3000:] for log in self.folder.glob("*.log")]
            time.sleep(0.5)
        return found
