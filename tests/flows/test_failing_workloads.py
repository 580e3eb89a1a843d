"""A night with workloads that fail, each in its own way; every URI and key of the night is a marked secret."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from storage.check import check
from storage.results.query import run_query
from tests.flows.tiny import tiny
from tests.storage.bundle_files import key_file
from tests.storage.http_server import Site, serving

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.long, pytest.mark.timeout(600)]

MARK = "markedsecret"
PICTURES = """
    schema_version = 1
    name = "{name}"
    description = "A few tiny pictures"
    domain = "image-classification"
    [data]
    kind = "rendered-characters"
    characters = "OXT"
    image_size = 16
    train = 30
    calibration = 12
    valid = 9
    test = 18
    [model]
    kind = "factory"
    factory = "own_networks:{factory}"
    [checkpoint]
    {checkpoint}
    [[recipe]]
    name = "float"
    method = "none"
    [benchmark]
    baseline = "float/eager"
"""
# If no memory is left, the kernel ends a process by SIGKILL; `greedy` looks the same from outside.
NETWORKS = """
    import os, signal
    from torch import nn

    def good():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))

    def greedy():
        os.kill(os.getpid(), signal.SIGKILL)

"""
SEEDED = 'kind = "seeded"\n    seed = 1'
# For each workload of pictures its factory and its checkpoint.
OF_PICTURES = {
    "greedy": ("greedy", SEEDED),
    "broken": ("good", 'kind = "uri"\n    uri = "weights.safetensors"'),
    "half": ("good", 'kind = "uri"\n    uri = "half.safetensors"'),
}
# For each workload that fails, the stage and a part of the message.
FAILING = {
    "greedy": ("checkpoint", "memory"),
    "broken": ("checkpoint", "weights.safetensors"),
    "changed": ("checkpoint", "SHA-256"),
    "gone": ("checkpoint", ""),
    "no-corpus": ("prepare", ""),
}
GOOD = {"half", "good"}


@dataclass(frozen=True)
class Night:
    """The finished night: its folder, its exit code and what it printed."""

    folder: Path
    code: int
    output: str


def fetching(folder: Path, name: str, uri: str, sha256: str) -> None:
    fetched = f'kind = "uri", uri = "{uri}", sha256 = "{sha256}"'
    text = tiny(name).replace('kind = "seeded", seed = 0', fetched)
    assert uri in text
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def without_corpus(folder: Path, uri: str, sha256: str) -> None:
    text = f"""
        schema_version = 1
        name = "no-corpus"
        description = "its corpus is not an archive"
        domain = "language-model"
        [data]
        kind = "text"
        uri = "{uri}"
        sha256 = "{sha256}"
        [model]
        kind = "word-lm"
        [checkpoint]
        kind = "train"
        [[recipe]]
        name = "float"
        method = "none"
    """
    (folder / "no-corpus.toml").write_text(text, encoding="utf-8")


def of_pictures(folder: Path) -> None:
    (folder / "own_networks.py").write_text(textwrap.dedent(NETWORKS), encoding="utf-8")
    for name, (factory, checkpoint) in OF_PICTURES.items():
        text = PICTURES.format(name=name, factory=factory, checkpoint=checkpoint)
        (folder / f"{name}.toml").write_text(textwrap.dedent(text), encoding="utf-8")
    (folder / "weights.safetensors").write_bytes(b"no weights")
    save_file({"1.weight": torch.zeros(3, 768).half(), "1.bias": torch.zeros(3)}, folder / "half.safetensors")


@pytest.fixture(scope="module")
def night(migrated_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Night:
    folder = tmp_path_factory.mktemp("failing")
    work, out = folder / "work", folder / "out"
    work.mkdir()
    shutil.copytree(migrated_home, out / "prefect")
    weights = save({f"lstm.{key}": value for key, value in torch.nn.LSTM(8, 8).state_dict().items()})
    digest = hashlib.sha256(weights).hexdigest()
    of_pictures(work)
    with serving(Site(weights)) as site:
        secret = site.url.replace("://", f"://{MARK}-user:{MARK}-password@") + f"?X-Amz-Signature={MARK}-signature"
        gone = secret.replace(str(site.url.split(":")[2].split("/")[0]), "1")
        fetching(work, "good", secret, digest)
        fetching(work, "changed", secret, "0" * 64)
        fetching(work, "gone", gone, "0" * 64)
        without_corpus(work, secret, digest)
        asked = [part for name in (*FAILING, *GOOD) for part in ("--workload", f"{name}.toml")]
        done = subprocess.run(
            [sys.executable, "-m", "flows", "nightly", "--profile", "quick", "--store", str(out / "store"), *asked],
            cwd=work,
            env=os.environ
            | {
                "PREFECT_HOME": str(out / "prefect"),
                "PREFECT_LOGGING_TO_API_ENABLED": "true",
                "NIGHTQUANT_RETRY_WAIT_S": "0",
                "NIGHTQUANT_SIGNING_KEY": str(key_file()),
                "NIGHTQUANT_WEBHOOK_URL": f"http://{MARK}-hook:{MARK}@127.0.0.1:1/hook?token={MARK}",
                "AWS_SECRET_ACCESS_KEY": f"{MARK}-aws",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    (out / "terminal.txt").write_bytes(done.stdout)
    return Night(out, done.returncode, done.stdout.decode())


def test_workloads_that_die_or_are_broken_fail_alone(night: Night) -> None:
    output, store = night.output, night.folder / "store"
    assert night.code == 1, output
    assert "Traceback" not in output, output
    query = "SELECT workload, status, stage, error FROM measurements WHERE setting = 'primary'"
    rows = run_query(store, query).to_pylist()
    failed = {row["workload"]: (row["stage"], row["error"]) for row in rows if row["status"] == "failed"}
    assert failed.keys() == FAILING.keys()
    for name, (stage, said) in FAILING.items():
        assert failed[name][0] == stage
        assert said in failed[name][1], failed[name]
    assert {row["workload"] for row in rows if row["status"] == "ok"} == GOOD
    assert output.count("half: the checkpoint's file: converted float16 values to float32") == 1
    (run,) = run_query(store, "SELECT status, candidates_ok FROM runs").to_pylist()
    assert run == {"status": "failed", "candidates_ok": sum(row["status"] == "ok" for row in rows)}
    assert check(store).problems == ()


def test_no_secret_of_a_night_remains_in_its_files_or_output(night: Night) -> None:
    # The night did what could have left them: it failed at every kind of source, signed a bundle and wrote its report.
    written = [path for path in night.folder.rglob("*") if path.is_file()]
    assert {"model.sig", "prefect.db"} <= {path.name for path in written}
    assert list(night.folder.glob("store/reports/*.html"))
    marks = (MARK.encode(), key_file().read_bytes().splitlines()[1], MARK.encode("utf-16-le"))
    leaks = [path.name for path in written if any(mark in path.read_bytes() for mark in marks)]
    assert leaks == []
