"""Fixtures that several suites share."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore import BOTOCORE_ROOT
from botocore.loaders import JSONFileLoader
from hypothesis import settings

# The same examples every time, so that a change is judged by itself. STOKER_SEARCH=1 looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("search" if os.environ.get("STOKER_SEARCH") else "repeatable")

# A run that was started in the background or with `nohup` ignores these signals, and every command that a test starts
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Every session of boto3 parses the megabytes of its models anew, 0.1 s of a core, and tests make thousands of sessions.
_parse_model = JSONFileLoader.load_file
_models: dict[str, Any] = {}


def _parse_model_once(loader: JSONFileLoader, file_path: str) -> Any:
    """Only of botocore's own files: tests write others."""
    if not file_path.startswith(BOTOCORE_ROOT):
        return _parse_model(loader, file_path)
    if file_path not in _models and (model := _parse_model(loader, file_path)) is not None:
        _models[file_path] = model
    return _models.get(file_path)


JSONFileLoader.load_file = _parse_model_once  # type: ignore[method-assign]

# Before anything imports it: its asserts then say what was compared.
pytest.register_assert_rewrite("stoker.testing.store_contract")

from tests.support.ec2 import Ec2Cloud, ec2_cloud  # noqa: E402
from tests.support.gce import GceCloud, gce_cloud  # noqa: E402
from tests.support.gcs import GcsServer, gcs_server  # noqa: E402
from tests.support.sagemaker import SageMakerCloud, sagemaker_cloud  # noqa: E402
from tests.support.servers import S3Server, s3_server  # noqa: E402


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among the tests and modules, which live as long as this process: not while they are
    collected, and not later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files of tests/e2e evenly among the others: their tests wait for machines and processes, while others
    compute. Each file stays together."""
    shares = Counter(_waits(item) for item in items)
    done: Counter[bool] = Counter()
    place: dict[Path, float] = {}
    for item in items:
        place.setdefault(item.path, done[_waits(item)] / shares[_waits(item)])
        done[_waits(item)] += 1
    items.sort(key=lambda item: place[item.path])


def _waits(item: pytest.Item) -> bool:
    return item.path.parent.name == "e2e"


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One S3 server for the whole run. Only for tests that run where nothing but loopback can be reached."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_cloud() -> Iterator[Ec2Cloud]:
    """One EC2 for the whole run: see `cloud`."""
    with ec2_cloud() as made:
        yield made


@pytest.fixture
def cloud(shared_cloud: Ec2Cloud, monkeypatch: pytest.MonkeyPatch) -> Ec2Cloud:
    """An EC2 without faults and machines, with the environment that clients of it need."""
    shared_cloud.clear()
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in shared_cloud.env.items():
        monkeypatch.setenv(name, value)
    return shared_cloud


@pytest.fixture(scope="session")
def shared_google() -> Iterator[GceCloud]:
    """One Compute Engine for the whole run: see `google_cloud`."""
    with gce_cloud() as made:
        yield made


@pytest.fixture
def google_cloud(shared_google: GceCloud, monkeypatch: pytest.MonkeyPatch) -> GceCloud:
    """A Compute Engine without faults and machines, with the environment that clients of it need."""
    shared_google.clear()
    for name in os.environ:
        if name.startswith(("GOOGLE_", "CLOUDSDK_", "GCE_")):
            monkeypatch.delenv(name)
    for name, value in shared_google.env.items():
        monkeypatch.setenv(name, value)
    return shared_google


@pytest.fixture
def s3_url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store on S3, with the environment that `open_store` needs for it."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.new_bucket()}/stoker/test"


@pytest.fixture(scope="session")
def shared_gcs() -> Iterator[GcsServer]:
    """One Cloud Storage for the whole run: see `gcs`."""
    with gcs_server() as server:
        yield server


@pytest.fixture
def gcs(shared_gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """A Cloud Storage without faults, with the environment that clients of it need."""
    shared_gcs.clear()
    for name in os.environ:
        if name.startswith(("GOOGLE_", "GCE_", "CLOUDSDK_", "STORAGE_")):
            monkeypatch.delenv(name)
    for name, value in shared_gcs.env.items():
        monkeypatch.setenv(name, value)
    return shared_gcs


@pytest.fixture
def gcs_url(gcs: GcsServer) -> str:
    """An empty store on Cloud Storage, with the environment that `open_store` needs for it."""
    return f"gs://{gcs.new_bucket()}/stoker/test"


@pytest.fixture(scope="session")
def shared_sagemaker() -> Iterator[SageMakerCloud]:
    """One SageMaker for the whole run: see `sagemaker`."""
    with sagemaker_cloud() as made:
        yield made


@pytest.fixture
def sagemaker(shared_sagemaker: SageMakerCloud, monkeypatch: pytest.MonkeyPatch) -> SageMakerCloud:
    """A SageMaker without faults and jobs, with the environment that clients of it need."""
    shared_sagemaker.clear()
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in shared_sagemaker.env.items():
        monkeypatch.setenv(name, value)
    return shared_sagemaker
