"""An S3 server on loopback, one for the session; each test gets its own prefix."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="the s3 extra is not installed")
    server_module = pytest.importorskip("moto.server", reason="moto's server is not installed")
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    answer, alone = DomainDispatcherApplication.__call__, threading.Lock()

    def one_at_a_time(self: Any, environment: Any, start: Any) -> list[bytes]:
        # S3 decides "only if there is none" and stores in one step; moto in two, between which another request fits.
        with alone:
            return list(answer(self, environment, start))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DomainDispatcherApplication, "__call__", one_at_a_time)
        server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def s3_store(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty store; credentials and endpoint come from the environment, as a user's would."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NIGHTQUANT_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    import boto3

    bucket = f"results-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/team/nightquant"
