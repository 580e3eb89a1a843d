from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from storage.errors import BundleError
from storage.seal import check_sums
from tasks.bundle.checker import Refused, read_whole
from tasks.bundle.verify import checker_source, verify
from tests.tasks.bundle.mutations import MUTATIONS, mutate


def _copy(published: Path, target: Path) -> Path:
    shutil.copytree(published, target)
    for path in target.iterdir():
        path.chmod(0o644)
    return target


@pytest.mark.slow
def test_both_implementations_refuse_every_mutation(published: Path, tmp_path: Path):
    accepted, done = [], Counter[str]()
    for seed in range(300):
        folder = _copy(published, tmp_path / f"bundle-{seed}")
        what = mutate(folder, Random(seed))
        done[what] += 1
        try:
            check_sums(folder)
        except BundleError:
            pass
        else:
            accepted.append(("nightquant", seed, what))
        try:
            read_whole(folder)
        except (Refused, OSError):
            pass
        else:
            accepted.append(("verify.py", seed, what))
        shutil.rmtree(folder)
    assert accepted == []
    assert set(done) == {name for name, _ in MUTATIONS}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
def test_a_mutation_is_refused_before_torch_is_imported(seed: int, published: Path, tmp_path: Path):
    folder = _copy(published, tmp_path / "bundle")
    what = mutate(folder, Random(10_000 + seed))
    report = verify(folder)
    assert (report.ok, report.stage) == (False, "files"), what
    # Without site-packages there is no torch: had it got that far, this would be a traceback.
    command = [sys.executable, "-I", "-S", "-c", checker_source("torchscript"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, ""), what
    assert done.stdout.startswith("REFUSED")
