"""Compute Engine: what becoming a node costs a machine, what a job costs in calls, and what the client costs to start.

On a Compute Engine that boots what it is asked to boot (`tests.support.gce`).
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from bench import cloud_jobs
from bench.figures import Figure, Measurement, Size
from bench.sandbox import LIMIT_S
from tests.support.gce import PROJECT, REGION, gce_cloud, why_no_gce

MACHINE = "n2-standard-2"
RESOURCES = {"provider": "gce", "machine": [MACHINE], "image": "debian/12"}
STARTS = 5

# From nothing to a client that holds credentials and a connection pool: what stands before the first request.
_READY = """
import time
began_s = time.perf_counter()
from stoker.providers import registry
provider = registry.connect("gce", registry.Context(store="gs://bench/store"))
provider.api.prepare()
print(time.perf_counter() - began_s)
"""


def boot_overhead(size: Size) -> dict[str, float]:
    """The time that an agent adds to the boot of a machine."""
    zone = f"{REGION}-a"

    def launch_bare() -> str:
        from stoker.providers.gce.client import Api
        from stoker.providers.gce.operations import wait_until_done

        body: dict[str, Any] = {
            "name": "bare",
            "machineType": f"zones/{zone}/machineTypes/{MACHINE}",
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "initializeParams": {"sourceImage": "projects/debian-cloud/global/images/family/debian-12"},
                }
            ],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "metadata": {"items": [{"key": "startup-script", "value": cloud_jobs.BARE}]},
        }
        api = Api()
        begun = api.send("POST", f"/compute/v1/projects/{PROJECT}/zones/{zone}/instances", body)
        return f"{zone}.{wait_until_done(api, begun, 'bare', LIMIT_S)['targetId']}"

    with gce_cloud() as cloud:
        return {"gce_boot_overhead_s": cloud_jobs.boot_overhead_s(cloud, "gs", RESOURCES, launch_bare, size)}


def calls_per_job(_size: Size) -> dict[str, float]:
    """A job of one node, without a fault: calls to Compute Engine and its kin."""
    with gce_cloud() as cloud:
        return {"gce_calls_per_job": cloud_jobs.calls_per_job(cloud, "gs", RESOURCES)}


def import_time(size: Size) -> dict[str, float]:
    """A new process until its provider could send a request; the best of several."""
    import os

    from tests.support.gcs import gcs_server

    with gcs_server() as server:
        env = {**os.environ, **server.env}
        ran = [
            subprocess.run([sys.executable, "-c", _READY], env=env, capture_output=True, text=True, check=True)
            for _ in range(size.choose(STARTS, 1))
        ]
    return {"gce_import_s": min(float(one.stdout) for one in ran)}


MEASUREMENTS = (
    Measurement((Figure("gce_boot_overhead_s", "s", 4.0, difference=True),), boot_overhead, why_no_gce),
    Measurement((Figure("gce_calls_per_job", "", 15.0),), calls_per_job, why_no_gce),
    Measurement((Figure("gce_import_s", "s", 0.4),), import_time),
)
