"""The governor that events wake: what it weighs, what one event takes, and a tick over a thousand jobs."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

from bench import cloud_jobs
from bench.ec2 import PROFILE, RESOURCES
from bench.fabricate import Machines, active_objects, name_of
from bench.figures import Figure, Measurement, Size
from bench.sandbox import sandbox
from tests.support.lambda_runtime import lambda_function, why_no_emulator

JOBS = 1000
TICKS = 3
EVENTS = 40
RULE = "tick"


def package(_size: Size) -> dict[str, float]:
    """The size of the compressed package that Lambda runs."""
    from stoker.deploy.package import for_lambda

    return {"lambda_zip_mb": len(for_lambda().data) / 1e6}


def warm_event(size: Size) -> dict[str, float]:
    """Under AWS's own emulator, from the call to the answer: a state change of a machine whose job trains, on an S3 and
    an EC2 of this computer; the median of calls that find the function warm. The first call is measured as well."""
    from stoker.client import submit
    from stoker.deploy.aws_template import HANDLER
    from stoker.deploy.package import for_lambda
    from stoker.model import codec, keys
    from stoker.model.node_facts import Heartbeat
    from stoker.store import job_log
    from stoker.store.base import open_store
    from tests.support.servers import moto_server, s3_server

    reached = mock.patch("stoker.submit.prepare.unreachable", lambda _environ: ())
    with sandbox() as place, s3_server() as s3, moto_server() as moto:
        environ = {**moto.env, "AWS_ENDPOINT_URL_S3": s3.endpoint}
        url = f"s3://{s3.new_bucket()}"
        with mock.patch.dict(os.environ, environ), reached:
            os.environ["STOKER_HOME"] = str(place.home)
            _prepare_account()
            place.script("train.py", cloud_jobs.FIRST)
            job = submit(cloud_jobs.job(place, {**RESOURCES, "disk": "40GB"}), store=url, detach=False)
            store = open_store(url)
            with lambda_function(
                for_lambda().data, HANDLER, {**environ, "STOKER_STORE": url, "STOKER_RULE": RULE}
            ) as at:
                first_ms = _took_ms(at, {"stoker": {"jobs": [job]}}, job)
                state = job_log.read(store, job)
                assert state is not None and state.claims[-1].launched
                instance, claim = state.claims[-1].launched[0].instance, state.claims[-1].number
                now = datetime.now(timezone.utc)
                beat = Heartbeat(beat=1, phase="training", at=now, interval_s=2.0, training_since=now, trained_s=1.0)
                node = keys.node(job, claim, 0, keys.boot(instance, 0))
                store.put(keys.heartbeat(node), codec.dumps(beat))
                event = _state_change(instance)
                took_ms = [_took_ms(at, event, job) for _ in range(size.choose(EVENTS, 4))]
    return {"lambda_warm_ms": median(took_ms[2:]), "lambda_first_ms": first_ms}


def thousand(size: Size) -> dict[str, float]:
    """A pass of a governor over 1,000 jobs that train, on an S3 of this computer, as every tick of a function that is
    warm makes it; the median. The first one, which remembers nothing, is measured as well."""
    from stoker.governor.connected_providers import Fleet
    from stoker.governor.loop import Governor
    from stoker.store.base import open_store
    from stoker.store.parallel import run_all
    from tests.support.servers import s3_server

    jobs = [name_of(n) for n in range(size.choose(JOBS, 10))]
    with s3_server() as s3, mock.patch.dict(os.environ, s3.env):
        url = f"s3://{s3.new_bucket()}"
        store = open_store(url)
        run_all([partial(store.put, key, data) for key, data in active_objects(jobs).items()], 16)
        machines = Machines(jobs)
        governor = Governor(open_store(url), Fleet(url, connect=lambda _name: machines))
        took_s = []
        for _ in range(size.choose(TICKS, 1) + 1):
            began_s = time.monotonic()
            done = governor.run_pass()
            took_s.append(time.monotonic() - began_s)
            if done.active != len(jobs) or done.actions or done.problems:
                raise RuntimeError(f"{done.active} active, did {done.actions[:3]}, problems {done.problems}")
    return {"tick_1000_active_s": median(took_s[1:]), "tick_1000_first_s": took_s[0]}


def _prepare_account() -> None:
    import boto3

    boto3.client("iam", region_name="us-east-1").create_instance_profile(InstanceProfileName=PROFILE)
    events = boto3.client("events", region_name="us-east-1")
    events.put_rule(Name=RULE, ScheduleExpression="rate(1 minute)", State="DISABLED")


def _state_change(instance: str) -> dict[str, Any]:
    return {
        "detail-type": "EC2 Instance State-change Notification",
        "source": "aws.ec2",
        "region": "us-east-1",
        "detail": {"instance-id": instance, "state": "stopping"},
    }


def _took_ms(function: Any, event: object, job: str) -> float:
    began_s = time.monotonic()
    answer = function.invoke(event)
    took_s = time.monotonic() - began_s
    if answer.get("jobs") != [job] or answer.get("problems"):
        raise RuntimeError(f"{answer}: {function.output.read_text(errors='replace')[-2000:]}")
    return took_s * 1000


MEASUREMENTS = (
    Measurement((Figure("lambda_zip_mb", "MB", 20.0),), package),
    Measurement((Figure("lambda_warm_ms", "ms", 100.0), Figure("lambda_first_ms", "ms")), warm_event, why_no_emulator),
    Measurement((Figure("tick_1000_active_s", "s", 5.0), Figure("tick_1000_first_s", "s")), thousand),
)
