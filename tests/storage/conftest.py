"""An S3 server on loopback, one for the session; each test gets its own bucket."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.s3_server import credentials, s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="the s3 extra is not installed")
    pytest.importorskip("moto.server", reason="moto's server is not installed")
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_store(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty store; credentials and endpoint come from the environment, as a user's would."""
    for name, value in (credentials(s3_endpoint) | {"NIGHTQUANT_CACHE": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    import boto3

    bucket = f"results-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/team/nightquant"
