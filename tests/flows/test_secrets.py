"""A night whose every URI and key is a marked secret: no mark is left in anything that it wrote or said."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from safetensors.torch import save

from flows.request import BUILT_IN
from storage.results.query import run_query
from tests.storage.http_server import Site, serving

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(600)]
MARK = "markedsecret"


def workload(folder: Path, name: str, uri: str, sha256: str) -> str:
    text = (BUILT_IN / "lstm-demo.toml").read_text(encoding="utf-8").replace('name = "lstm-demo"', f'name = "{name}"')
    fetched = f'kind = "uri"\nuri = "{uri}"\nsha256 = "{sha256}"\nretries = 0\n'
    # Large enough that int8 is smaller, and so handed over.
    text = text.replace('kind = "seeded"\nseed = 29592\n', fetched).replace("dimension = 8", "dimension = 256")
    assert uri in text
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return f"{name}.toml"


def corpus_workload(folder: Path, uri: str, sha256: str) -> str:
    text = f"""
        schema_version = 1
        name = "no-corpus"
        description = "its corpus is no archive"
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
    return "no-corpus.toml"


def test_no_secret_of_a_night_is_left_in_what_it_wrote_or_said(migrated_home: Path, tmp_path: Path) -> None:
    weights = save({f"lstm.{key}": value for key, value in torch.nn.LSTM(256, 256).state_dict().items()})
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (key_line,) = re.findall(rb"\n(\S+)\n", key)
    work = tmp_path / "work"
    work.mkdir()
    shutil.copytree(migrated_home, tmp_path / "out" / "prefect")
    with serving(Site(weights)) as site:
        secret = site.url.replace("://", f"://{MARK}-user:{MARK}-password@") + f"?X-Amz-Signature={MARK}-signature"
        gone = secret.replace(str(site.url.split(":")[2].split("/")[0]), "1")
        names = [
            workload(work, "good", secret, hashlib.sha256(weights).hexdigest()),
            workload(work, "changed", secret, "0" * 64),
            workload(work, "gone", gone, "0" * 64),
            corpus_workload(work, secret, hashlib.sha256(weights).hexdigest()),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "flows", "nightly", "--profile", "quick", "--store", str(tmp_path / "out" / "store")]
            + [part for name in names for part in ("--workload", name)],
            cwd=work,
            env=os.environ
            | {
                "PREFECT_HOME": str(tmp_path / "out" / "prefect"),
                "PREFECT_LOGGING_TO_API_ENABLED": "true",
                "NIGHTQUANT_RETRY_WAIT_S": "0",
                "NIGHTQUANT_SIGNING_KEY": key.decode(),
                "NIGHTQUANT_WEBHOOK_URL": f"http://{MARK}-hook:{MARK}@127.0.0.1:1/hook?token={MARK}",
                "AWS_SECRET_ACCESS_KEY": f"{MARK}-aws",
            },
            capture_output=True,
            check=False,
        )
    (tmp_path / "out" / "terminal.txt").write_bytes(done.stdout + done.stderr)
    assert done.returncode == 1, done.stdout + done.stderr
    # The night did what could have left them: it failed at every kind of source, signed a bundle and wrote its report.
    errors = run_query(tmp_path / "out" / "store", "from failures select workload").column(0).to_pylist()
    assert {"changed", "gone", "no-corpus"} <= set(errors)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {"SHA256SUMS.sig", "prefect.db"} <= {path.name for path in written}
    assert list((tmp_path / "out/store/reports").glob("*.html"))
    marks = (MARK.encode(), key_line, MARK.encode("utf-16-le"))
    leaks = [
        path.relative_to(tmp_path).as_posix() for path in written if any(mark in path.read_bytes() for mark in marks)
    ]
    assert leaks == []
