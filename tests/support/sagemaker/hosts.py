"""Training jobs that really run: each host's container is a process (`container`), its inputs come from S3.

As SageMaker does it: channels are downloaded, the containers are started, exit status 0 of all of them completes the
job, any other fails it with what was left in /opt/ml/output/failure. A stop, and the reclaim of spot machines, are a
SIGTERM, a grace and a SIGKILL; after a reclaim the containers are started anew, with nothing on their disks.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.sagemaker.account import Account
from tests.support.sagemaker.bucket import Bucket, CheckpointCopy
from tests.support.sagemaker.container import Container, Ended
from tests.support.sagemaker.jobs import ENDED, NO_CAPACITY, Job, Json

# What a container of an image that has this Python finds set.
_PATH = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOOK_S = 0.02


@dataclass
class Run:
    """The machines of one training job, as long as it lives."""

    job: Job
    stop: threading.Event = field(default_factory=threading.Event)
    reclaim: threading.Event = field(default_factory=threading.Event)
    # For spot machines that were taken away: when others are there.
    return_: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Hosts:
    """The machines of an account. `grace_s` is what a container gets between SIGTERM and SIGKILL; `env` is set in each,
    beside what SageMaker sets; `bucket` is what they read and write."""

    def __init__(
        self,
        account: Account,
        folder: Path,
        bucket: Bucket,
        env: Mapping[str, str],
        grace_s: float = 120.0,
    ) -> None:
        self.grace_s = grace_s
        # How long the account shows a job as training after its containers have ended.
        self.ending_s = 0.0
        # Machine types of which there are none: training jobs that want them fail after a while.
        self.dry: set[str] = set()
        self._account = account
        self._folder = folder
        self._bucket = bucket
        self._env = env
        self._runs: dict[str, Run] = {}
        account.on_created = self.start
        account.on_stop = lambda job: self._runs[job.name].stop.set()

    def start(self, job: Job) -> None:
        run = self._runs[job.name] = Run(job)
        run.thread = threading.Thread(target=self._live, args=(run,), name=f"training {job.name}", daemon=True)
        run.thread.start()

    def interrupt(self, name: str, *, return_: bool = True) -> None:
        """Take the spot machines of a job away; others come at once, or with `come_back`."""
        run = self._runs[name]
        if not run.job.spot:
            raise ValueError(f"{name} is not on spot machines")
        if return_:
            run.return_.set()
        run.reclaim.set()

    def come_back(self, name: str) -> None:
        """There are spot machines again."""
        self._runs[name].return_.set()

    def output(self, name: str) -> str:
        """What all its containers printed: what CloudWatch would have."""
        logs = sorted((self._folder / name).glob("*.log"))
        return "".join(log.read_text(errors="replace") for log in logs)

    def close(self) -> None:
        """End them all."""
        for run in self._runs.values():
            run.stop.set()
        grace_s, self.grace_s = self.grace_s, 0.0
        for run in self._runs.values():
            if run.thread is not None:
                run.thread.join(timeout=30)
        self.grace_s = grace_s
        shutil.rmtree(self._folder, ignore_errors=True)

    # ── One job ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _live(self, run: Run) -> None:
        job = run.job
        try:
            while job.status not in ENDED:
                if run.stop.is_set():
                    self._account.enter(job, "Stopped")
                    return
                self._train(run)
        except Exception as error:  # noqa: BLE001 - the fake's own fault must be seen as a failed job
            reason = f"InternalServerError: We encountered an internal error. Please try again. ({error!r})"
            self._account.enter(job, "Failed", reason=reason)

    def _train(self, run: Run) -> None:
        """From Starting to the end, or to the reclaim."""
        job = run.job
        if job.resources["InstanceType"] in self.dry:
            self._account.enter(job, "Failed", reason=NO_CAPACITY)
            return
        self._account.enter(job, "Downloading")
        try:
            folders = [self._lay(job, number) for number in range(1, self._count(job) + 1)]
        except LookupError as error:
            self._account.enter(job, "Failed", reason=f"ClientError: Data download failed:{error}")
            return
        if run.stop.is_set():
            return
        copies = self._copies(job, folders)
        self._account.enter(job, "Training")
        containers = [self._container(job, number, ml) for number, ml in enumerate(folders, 1)]
        try:
            ended = self._watch(run, containers)
        finally:
            for container in containers:
                container.kill()
            for copy in copies:
                copy.end()
        if ended is not None and not run.stop.wait(self.ending_s):
            self._end(job, ended)
        elif run.stop.is_set():
            self._account.enter(job, "Stopped")
        else:
            run.reclaim.clear()
            self._account.enter(job, "Interrupted")
            while not (run.return_.is_set() or run.stop.is_set()):
                time.sleep(_LOOK_S)
            run.return_.clear()
            if not run.stop.is_set():
                self._account.enter(job, "Restarting")

    def _watch(self, run: Run, containers: list[Container]) -> list[Ended] | None:
        """How they ended by themselves; None where they were asked to, and had their grace."""
        while True:
            ended = [container.ended() for container in containers]
            if any(each is not None and each.code for each in ended) or all(ended):
                return [each for each in ended if each is not None]
            if run.stop.is_set() or run.reclaim.is_set():
                break
            time.sleep(_LOOK_S)
        for container in containers:
            container.terminate()
        deadline = time.monotonic() + self.grace_s
        while time.monotonic() < deadline and not all(container.ended() for container in containers):
            time.sleep(_LOOK_S)
        return None

    def _end(self, job: Job, ended: list[Ended]) -> None:
        wrong = next((each for each in ended if each.code), None)
        if wrong is None:
            self._account.enter(job, "Uploading")
            self._account.enter(job, "Completed")
            return
        self._account.enter(job, "Failed", reason=f"AlgorithmError: {wrong.reason}, exit code: {wrong.code}")

    # ── What a container finds ────────────────────────────────────────────────────────────────────────────────────────

    def _count(self, job: Job) -> int:
        return int(job.resources["InstanceCount"])

    def _copies(self, job: Job, folders: list[Path]) -> list[CheckpointCopy]:
        """The checkpoint folder of each host, with what its copy in S3 has."""
        asked = job.asked.get("CheckpointConfig")
        if asked is None:
            return []
        local = Path(asked.get("LocalPath") or "/opt/ml/checkpoints").relative_to("/opt/ml")
        return [CheckpointCopy(self._bucket, ml / local, asked["S3Uri"]) for ml in folders]

    def _lay(self, job: Job, number: int) -> Path:
        """/opt/ml of one host, anew."""
        ml = self._folder / job.name / f"algo-{number}"
        shutil.rmtree(ml, ignore_errors=True)
        config = ml / "input/config"
        # The checkpoint folder is there for jobs with a CheckpointConfig alone.
        for folder in (config, ml / "input/data", ml / "model", ml / "output/data"):
            folder.mkdir(parents=True, exist_ok=True)
        channels = job.asked.get("InputDataConfig") or []
        for channel in channels:
            source, target = channel["DataSource"]["S3DataSource"], ml / "input/data" / channel["ChannelName"]
            target.mkdir()
            shared = source.get("S3DataDistributionType") == "ShardedByS3Key"
            part = (number - 1, self._count(job)) if shared else (0, 1)
            if not self._bucket.fetch(source["S3Uri"], target, *part):
                raise LookupError(f'No S3 objects found under S3 URL "{source["S3Uri"]}" given in input data source.')
        written: dict[str, Any] = {
            "hyperparameters.json": job.asked.get("HyperParameters") or {},
            "inputdataconfig.json": {each["ChannelName"]: _mode(each, job) for each in channels},
            "resourceconfig.json": self._resources(job, number),
        }
        for name, tree in written.items():
            (config / name).write_text(json.dumps(tree))
        return ml

    def _resources(self, job: Job, number: int) -> Json:
        hosts = [f"algo-{n}" for n in range(1, self._count(job) + 1)]
        machine = job.resources["InstanceType"]
        group = {"instance_group_name": "homogeneousCluster", "instance_type": machine, "hosts": hosts}
        return {
            "current_host": f"algo-{number}",
            "current_instance_type": machine,
            "current_group_name": "homogeneousCluster",
            "hosts": hosts,
            "instance_groups": [group],
            "network_interface_name": "lo",
        }

    def _container(self, job: Job, number: int, ml: Path) -> Container:
        home = self._folder / job.name
        hosts = home / f"algo-{number}.hosts"
        lines = ["127.0.0.1 localhost", *(f"127.0.1.{n} algo-{n}" for n in range(1, self._count(job) + 1))]
        hosts.write_text("\n".join(lines) + "\n")
        algorithm = job.asked["AlgorithmSpecification"]
        argv = [*algorithm["ContainerEntrypoint"], *algorithm.get("ContainerArguments", ())]
        env = {
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "AWS_REGION": job.region,
            "TRAINING_JOB_NAME": job.name,
            "TRAINING_JOB_ARN": job.arn,
            **self._env,
            **(job.asked.get("Environment") or {}),
        }
        return Container(ml, hosts, argv, env, home / f"algo-{number}.log")


def _mode(channel: Json, job: Job) -> Json:
    mode = channel.get("InputMode") or job.asked["AlgorithmSpecification"]["TrainingInputMode"]
    distribution = channel["DataSource"]["S3DataSource"].get("S3DataDistributionType", "FullyReplicated")
    return {"TrainingInputMode": mode, "S3DistributionType": distribution, "RecordWrapperType": "None"}


def why_no_hosts() -> str | None:
    """One line that says why training jobs cannot really run here; None where they can."""
    if os.geteuid() != 0:
        return "containers of SageMaker's for tests need root"
    missing = [program for program in ("unshare", "ip") if shutil.which(program) is None]
    return f"containers of SageMaker's for tests need {' and '.join(missing)}" if missing else None
