"""An S3 server on loopback, one for the session; each test gets its own prefix. A store that needs no server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.root import StoreRoot
from tests.storage.bundle_files import Elsewhere
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


@pytest.fixture
def elsewhere_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreRoot:
    """An empty store without a folder on this host; its cache is this test's."""
    monkeypatch.setenv("NIGHTQUANT_CACHE", str(tmp_path / "cache"))
    return Elsewhere(tmp_path / "elsewhere")


@pytest.fixture(params=["elsewhere", pytest.param("s3", marks=pytest.mark.server)])
def remote(request: pytest.FixtureRequest) -> StoreRoot:
    """An empty store that is not a folder on this host."""
    if request.param == "elsewhere":
        return request.getfixturevalue("elsewhere_root")  # type: ignore[no-any-return]
    return StoreRoot.of(request.getfixturevalue("s3_store"))
