"""A SageMaker for one test or several: the service, and the test's hands on its training jobs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.machines.store_door import StoreDoor
from tests.support.sagemaker.account import Account
from tests.support.sagemaker.bucket import Bucket
from tests.support.sagemaker.clock import Clock
from tests.support.sagemaker.events import state_change
from tests.support.sagemaker.faults import Faults
from tests.support.sagemaker.hosts import Hosts
from tests.support.sagemaker.jobs import NO_CAPACITY, Json
from tests.support.sagemaker.server import CREDENTIALS, REGION, Gate, Server
from tests.support.servers import S3Server, isolated

# For tests of networks (RFC 2544): on loopback's own link, and seen by nobody else.
_ADDRESS = "198.18.0.1"


@dataclass(frozen=True)
class SageMakerCloud:
    """A running service. `env` is what a client needs to talk to it, beside what other services need.

    Training jobs stand still until the test moves them. The hands raise LookupError where there is no such job, and do
    nothing to one that has ended.
    """

    endpoint: str
    env: Mapping[str, str]
    clock: Clock
    faults: Faults
    account: Account
    _gate: Gate
    # Whoever runs its training jobs, where somebody does.
    hosts: Hosts | None = None

    # ── Hands ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, name: str, to: str | None = None) -> None:
        """One step along Starting, Downloading, Training, Uploading, Completed (or Stopping, Stopped), or all those up
        to `to`. A status beside that way (Pending, Restarting, Updating…) is entered at once."""
        self.account.advance(self.account.job(name), to)

    def train(self, name: str) -> None:
        """Up to Training, whatever it waits for."""
        job = self.account.job(name)
        if job.secondary != "Training":
            self.account.advance(job, "Training")

    def complete(self, name: str, **metrics: float) -> None:
        """It ends well, with these final metrics."""
        job = self.account.job(name)
        now = self.clock.now()
        job.metrics = tuple({"MetricName": key, "Value": value, "Timestamp": now} for key, value in metrics.items())
        self.account.advance(job, "Completed")

    def fail(self, name: str, reason: str = "AlgorithmError: ", exit: int | None = None) -> None:
        """It fails. `exit` is added as SageMaker adds it to an AlgorithmError."""
        told = reason if exit is None else f"{reason}, exit code: {exit}"
        self.account.enter(self.account.job(name), "Failed", reason=told)

    def run_dry(self, name: str) -> None:
        """It fails for want of machines."""
        self.fail(name, NO_CAPACITY)

    def interrupt(self, name: str) -> None:
        """Its spot machines are taken away. It goes on with `advance`. Raises ValueError for one that is not on spot or
        not yet training."""
        job = self.account.job(name)
        if self.hosts is not None:
            self.hosts.interrupt(name)
            return
        if not job.spot or job.secondary != "Training":
            raise ValueError(f"{name} is {job.secondary}, {'on spot' if job.spot else 'not on spot'}")
        self.account.enter(job, "Interrupted")

    def move_by_itself(self) -> None:
        """From now on jobs train at once when they are made, and have stopped when they are asked to."""
        self.account.on_created = lambda job: self.account.advance(job, "Training")
        self.account.on_stop = lambda job: self.account.enter(job, "Stopped")

    def exceed_runtime(self, name: str) -> None:
        """It ran for MaxRuntimeInSeconds."""
        self.account.enter(self.account.job(name), "MaxRuntimeExceeded")

    def exceed_wait(self, name: str) -> None:
        """It was not done within MaxWaitTimeInSeconds."""
        self.account.enter(self.account.job(name), "MaxWaitTimeExceeded")

    # ── What can be seen ──────────────────────────────────────────────────────────────────────────────────────────────

    def names(self) -> list[str]:
        """Every training job, in the order of their making."""
        return self.account.names()

    def instances(self) -> dict[str, str]:
        """TrainingJobStatus of every training job."""
        return {name: self.status(name)[0] for name in self.names()}

    def describe(self, name: str) -> Json:
        """As DescribeTrainingJob tells it, without a call."""
        return self.account.job(name).describe(self.clock.now())

    def tags(self, name: str) -> dict[str, str]:
        return dict(self.account.job(name).tags)

    def status(self, name: str) -> tuple[str, str]:
        """TrainingJobStatus and SecondaryStatus."""
        job = self.account.job(name)
        return job.status, job.secondary

    def events(self, *, numbers: bool = False, reset: bool = False) -> list[Json]:
        """EventBridge's event of every change so far, oldest first. Times are text, or `numbers`."""
        return self.account.events(numbers=numbers, reset=reset)

    def event(self, name: str, *, numbers: bool = False) -> Json:
        """An event of the state that a job is in now."""
        return state_change(self.account.job(name), self.clock.now(), numbers=numbers)

    def on_event(self, listener: Callable[[Json], None]) -> None:
        """Call this with every event from now on, in the thread that made the change."""
        self.account.listen(listener)

    def calls(self, *, reset: bool = False) -> dict[str, int]:
        """How often each operation was called."""
        return self._gate.take_calls(reset)

    def broken(self, *, reset: bool = False) -> list[str]:
        """Requests that did not fit botocore's model, each with what was wrong."""
        return self._gate.broken(reset)

    def listing_lag(self, lag_s: float) -> None:
        """Jobs are listed only once they are this old. 0 ends it."""
        self.account.listing_lag_s = lag_s

    def clear(self) -> None:
        """No faults, no jobs, no events, the real time: for a cloud that several tests share. Listeners stay."""
        self.faults.clear()
        if self.hosts is None:
            self.account.on_created = self.account.on_stop = None
        self.account.clear()
        self.clock.set(None)
        self.calls(reset=True)
        self.broken(reset=True)

    def client(self, region: str = REGION, **config: Any) -> Any:
        """boto3's client of it, which tries nothing twice unless `config` says so."""
        import boto3
        from botocore.config import Config

        settings = {"retries": {"mode": "standard", "total_max_attempts": 1}, **config}
        return boto3.client(
            "sagemaker",
            region_name=region,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(**settings),
        )


@contextmanager
def sagemaker_cloud(s3: S3Server | None = None, *, grace_s: float = 120.0) -> Iterator[SageMakerCloud]:
    """A SageMaker with nothing in it, on a free port of loopback, in threads of this process.

    With an S3 server, training jobs really run (`hosts`, which needs root): their inputs come from there, and
    `grace_s` is what they get to end by themselves. Raises RuntimeError where more than loopback can be reached.
    """
    if not isolated():
        raise RuntimeError("SageMaker for tests is started only where nothing but loopback can be reached")
    clock, faults = Clock(), Faults()
    account = Account(clock)
    gate = Gate(account, faults)
    with Server(gate) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serving.start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        env = {
            "AWS_ENDPOINT_URL_SAGEMAKER": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        folder = Path(tempfile.mkdtemp(prefix="stoker-sagemaker-"))
        hosts = None
        if s3 is not None:
            s3 = _outside(s3)
            hosts = _hosts(account, s3, endpoint, folder, grace_s)
            env = {**s3.env, **env}
        try:
            yield SageMakerCloud(endpoint, env, clock, faults, account, gate, hosts)
        finally:
            if hosts is not None:
                hosts.close()
            shutil.rmtree(folder, ignore_errors=True)
            server.shutdown()
            serving.join()


def _outside(s3: S3Server) -> S3Server:
    """The same server at an address that is not loopback, which Stoker gives to no machine. Nobody else is there."""
    subprocess.run(["ip", "address", "replace", f"{_ADDRESS}/32", "dev", "lo"], check=True)
    door = StoreDoor(_ADDRESS, urlsplit(s3.endpoint).port or 80)
    endpoint = f"http://{_ADDRESS}:{door.port}"
    return S3Server(endpoint, {**s3.env, "AWS_ENDPOINT_URL": endpoint})


def _hosts(account: Account, s3: S3Server, endpoint: str, folder: Path, grace_s: float) -> Hosts:
    token = folder / "token"
    token.write_text("test")
    # Containers have the role's credentials, and find them as SageMaker's do, but for the address.
    env = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{endpoint}{CREDENTIALS}",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        "AWS_ENDPOINT_URL": s3.endpoint,
    }
    return Hosts(account, folder / "jobs", Bucket(s3), env, grace_s)
