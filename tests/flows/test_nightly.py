"""The whole command on one small workload: two stores' nights at once, and one that finds what the first made."""

import itertools
import json
import shutil

import pytest

from storage.check import check
from storage.results.query import run_query
from tests.flows.processes import Command

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

CANDIDATES = {(recipe, runtime) for recipe in ("float", "dynamic-int8") for runtime in ("eager", "torchscript")}


class Nights:
    """Nights of two stores that ran at once, and a second one of the first store after them."""

    def __init__(self, folder, migrated_home):
        self.store, self.other = folder / "store", folder / "other"
        self.home = shutil.copytree(migrated_home, folder / "prefect")
        begun = [self._begin(folder, store, "--timings") for store in (self.store, self.other)]
        self.ended = [self._end(command) for command in begun]
        self.artifacts = self.files()
        self.ended.append(self._end(self._begin(folder, self.store, "--format", "json")))

    def _begin(self, folder, store, *more):
        arguments = ["--workload", "lstm-demo", "--profile", "quick", "--store", str(store)]
        return Command("nightly", *arguments, *more, home=self.home, cwd=folder)

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


def test_every_night_ends_good_or_with_a_regression_against_the_one_before(nights):
    # 3 is no defect of the run: a machine that others load may well be slower than in the night before.
    assert {code for code, _ in nights.ended} <= {0, 3}, nights.ended
    assert all("Traceback" not in output for _, output in nights.ended)


def test_every_candidate_of_every_night_has_its_row(nights):
    rows = nights.rows("SELECT run_id, recipe, runtime, status, latency_s FROM measurements WHERE setting = 'primary'")
    runs = {row["run_id"] for row in rows}
    assert len(runs) == 2
    for run in runs:
        assert {(row["recipe"], row["runtime"]) for row in rows if row["run_id"] == run} == CANDIDATES
    assert all(row["status"] == "ok" and row["latency_s"] > 0 for row in rows)
    assert {row["status"] for row in nights.rows("SELECT status FROM runs")} == {"completed"}
    assert check(nights.store).problems == ()


def test_benchmarks_of_nights_at_once_never_overlap(nights):
    spans = sorted(
        (json.loads(one["before"])["at_s"], json.loads(one["after"])["at_s"])
        for store in (nights.store, nights.other)
        for row in nights.rows("SELECT evidence FROM runs", store)
        for one in json.loads(row["evidence"])
    )
    assert len(spans) >= 3
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))


def test_a_later_night_finds_what_is_made_and_measures_again(nights):
    def kind(path):
        return path.relative_to(nights.store / "artifacts").parts[0]

    assert nights.artifacts.items() <= nights.files().items()
    # What a candidate computed is an evaluation's, which is made anew each night.
    assert {kind(path) for path in nights.files().keys() - nights.artifacts.keys()} <= {"outputs"}
    digests = nights.rows("SELECT DISTINCT recipe, artifact_digest FROM measurements WHERE setting = 'primary'")
    assert len(digests) == len(CANDIDATES)
    measured = nights.rows(
        "SELECT run_id, recipe, runtime, attempt, list(seconds) AS blocks FROM samples "
        "WHERE setting = 'primary' GROUP BY ALL"
    )
    assert len({row["run_id"] for row in measured}) == 2
    assert len({tuple(sorted(row["blocks"])) for row in measured}) == len(measured)


def test_the_leaderboard_and_the_timings_are_printed(nights):
    _, output = nights.ended[0]
    assert "dynamic-int8/eager" in output
    assert "×" in output
    assert "Timings" in output
    assert "Prefect's server" in output
    assert "nightquant query" in output


def test_the_summary_is_printed_as_json_after_all_that_people_read(nights):
    code, output = nights.ended[-1]
    told, _, document = output.partition("\n{\n")
    summary = json.loads("{" + document)
    assert "lstm-demo: benchmark: done in" in told
    assert summary["exit_code"] == code
    assert summary["run_id"] in {row["run_id"] for row in nights.rows("SELECT run_id FROM runs")}
