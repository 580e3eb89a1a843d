"""Nights of the whole command, recorded once and read by many tests.

Two nights of two stores run at once. One of them runs in processes, signs with a key, and starts in a folder whose
modules have the names of nightquant's packages. A third night then finds what the first one made.
"""

import itertools
import json
import shutil
import sys
import threading
from pathlib import Path

import pytest

from storage.check import check
from storage.pointer import read_current
from storage.results.query import run_query
from storage.seal import SIGNATURE
from tests.flows.processes import NIGHTQUANT, STAGES, Command, processes_of_stages
from tests.flows.tiny import tiny
from tests.storage.bundle_files import key_file, signer_of
from tests.storage.test_signing import model_signing

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

SCRIPT = (str(Path(sys.executable).parent / "nightquant"),)
CANDIDATES = {("float", "eager"), ("int8", "torchscript")}
KINDS = ("flows.execution.server", "multiprocessing.spawn", "tasks.measure.benchmark.child")


class Nights:
    """Nights of two stores that ran at once, and a second one of the first store after them."""

    def __init__(self, folder, migrated_home):
        self.store, self.other = folder / "store", folder / "other"
        self.home, self.folder = shutil.copytree(migrated_home, folder / "prefect"), folder / "work"
        self.environments = {}
        self._hide_the_packages()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NIGHTQUANT_SIGNING_KEY", str(key_file()))
            self.first = self._begin(self.store, program=SCRIPT)
        other = self._begin(self.other, program=SCRIPT)
        self.ended = [self._watch(self.first), self._end(other)]
        self.artifacts = self.files()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NIGHTQUANT_SIGNING_KEY", str(key_file()))
            self.ended.append(self._end(self._begin(self.store, "--format", "json", program=SCRIPT)))

    def _hide_the_packages(self):
        (self.folder / "flows").mkdir(parents=True)
        for name in ("tasks.py", "storage.py", "flows/__init__.py"):
            (self.folder / name).write_text("raise RuntimeError('this is not nightquant')\n")
        (self.folder / "tiny.toml").write_text(tiny("tiny"))

    def _begin(self, store, *more, program=NIGHTQUANT):
        arguments = ["--workload", "tiny.toml", "--profile", "quick", "--store", str(store)]
        return Command("nightly", *arguments, *more, home=self.home, cwd=self.folder, program=program)

    def _watch(self, command):
        """Record the environment of each child while the command runs."""
        ended = threading.Event()

        def look():
            while not ended.wait(0.05):
                found = dict(command.survivors())
                # A fork that has executed nothing yet is the command itself, and has its line.
                own = found.get(command.process.pid)
                for pid, line in found.items():
                    if line != own:
                        try:
                            self.environments[pid, line] = Path(f"/proc/{pid}/environ").read_bytes()
                        except (FileNotFoundError, ProcessLookupError):
                            continue

        watch = threading.Thread(target=look)
        watch.start()
        try:
            return self._end(command)
        finally:
            ended.set()
            watch.join()

    def _end(self, command):
        output, _ = command.process.communicate(timeout=600)
        assert command.wait_until_gone() == []
        return command.process.returncode, output

    def files(self):
        made = (self.store / "artifacts").glob("*/[0-9a-f][0-9a-f]/*/**/*")
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in made if path.is_file()}

    def rows(self, query, store=None):
        return run_query(store or self.store, query).to_pylist()


@pytest.fixture(scope="module")
def nights(migrated_home, tmp_path_factory):
    return Nights(tmp_path_factory.mktemp("nights"), migrated_home)


def test_every_night_ends_good_or_with_a_regression_and_without_a_warning_of_the_interpreter(nights):
    # 3 is not a defect of the run: on a busy machine a night may be slower than the one before.
    assert {code for code, _ in nights.ended} <= {0, 3}, nights.ended
    assert [output for _, output in nights.ended if "Traceback" in output] == []
    assert [line for _, output in nights.ended for line in output.splitlines() if "Warning" in line] == []
    # The resource tracker reports leaked semaphores, DuckDB's bindings leaked objects.
    assert not any("leaked" in output for _, output in nights.ended)


def test_every_candidate_of_every_night_has_its_row(nights):
    rows = nights.rows("SELECT run_id, recipe, runtime, status, latency_s FROM measurements WHERE setting = 'primary'")
    runs = {row["run_id"] for row in rows}
    assert len(runs) == 2
    for run in runs:
        assert {(row["recipe"], row["runtime"]) for row in rows if row["run_id"] == run} == CANDIDATES
    assert all(row["status"] == "ok" and row["latency_s"] > 0 for row in rows)
    assert {row["status"] for row in nights.rows("SELECT status FROM runs")} == {"completed"}
    assert check(nights.store).problems == ()
    assert processes_of_stages(nights.home).keys() == STAGES


def test_benchmarks_of_nights_at_once_never_overlap(nights):
    spans = sorted(
        (json.loads(one["before"])["at_s"], json.loads(one["after"])["at_s"])
        for store in (nights.store, nights.other)
        for row in nights.rows("SELECT evidence FROM runs", store)
        for one in json.loads(row["evidence"])
    )
    assert len(spans) >= 3
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))


def test_a_later_night_reuses_artifacts_and_measures_again(nights):
    def kind(path):
        return path.relative_to(nights.store / "artifacts").parts[0]

    assert nights.artifacts.items() <= nights.files().items()
    # Evaluations are found again; a proof without instructions is made again, but only a complete proof is kept.
    assert {kind(path) for path in nights.files().keys() - nights.artifacts.keys()} <= {"proof"}
    digests = nights.rows("SELECT DISTINCT recipe, artifact_digest FROM measurements WHERE setting = 'primary'")
    assert len(digests) == len(CANDIDATES)
    measured = nights.rows(
        "SELECT run_id, recipe, runtime, list(seconds) AS blocks FROM samples WHERE setting = 'primary' GROUP BY ALL"
    )
    assert len({row["run_id"] for row in measured}) == 2
    assert len({tuple(sorted(row["blocks"])) for row in measured}) == len(measured)


def test_the_leaderboard_is_printed_or_a_summary_as_json_after_all_that_people_read(nights):
    _, output = nights.ended[0]
    assert "int8/torchscript" in output
    assert "nightquant query" in output
    code, output = nights.ended[-1]
    told, _, document = output.partition("\n{\n")
    summary = json.loads("{" + document)
    assert "tiny: benchmark: done in" in told
    assert summary["exit_code"] == code
    assert summary["run_id"] in {row["run_id"] for row in nights.rows("SELECT run_id FROM runs")}


def test_the_signing_key_signs_and_no_child_sees_it(nights):
    assert model_signing(next(nights.store.glob(f"handoff/*/*/{SIGNATURE}")).parent)
    (path,) = nights.store.glob("handoff/*/current.json")
    read_current(path, path.parent.name, signer_of().key.public_key())
    lines = " ".join(line for _, line in nights.environments)
    assert all(kind in lines for kind in KINDS), lines
    secret = key_file().read_bytes().splitlines()[1]
    assert [line for (_, line), found in nights.environments.items() if b"SIGNING_KEY" in found] == []
    written = [path for folder in (nights.store, nights.home) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in written if secret in path.read_bytes()] == []
    assert not any("PRIVATE KEY" in output for _, output in nights.ended)
