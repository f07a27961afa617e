"""A cloud for one test or several: Compute Engine, Cloud Logging and Cloud Storage, reached by machines and tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gce.catalog import PROJECT, REGION
from tests.support.gce.faults import EXHAUSTED, EXHAUSTED_WITH_DETAILS, QUOTA, Fault, Lifecycle, dump
from tests.support.gcs import GcsServer
from tests.support.machines.harness import Handle, Order, Started, started
from tests.support.machines.store_door import Who

# APIs that are at the same address, as gcloud names them.
_AROUND = ("LOGGING", "CLOUDRESOURCEMANAGER", "IAM")
# Nothing listens there.
_DEAD = "127.0.0.1:9"


@dataclass(frozen=True)
class Left:
    """What still exists, and is paid for."""

    instances: tuple[str, ...]
    disks: tuple[str, ...]
    resource_policies: tuple[str, ...]
    groups: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.instances or self.disks or self.resource_policies or self.groups or self.templates)


@dataclass(frozen=True)
class MachineHandle(Handle):
    """One machine, for the test's hands. Raises LookupError where there never was such an instance.

    Its state is Google's word for it, and "terminated" (`wait_gone`) once it is deleted. TERMINATED means stopped.
    `kill` is a host error: the instance is TERMINATED then, and stays with its disk.
    """

    def preempt(
        self,
        grace_s: float = 30.0,
        *,
        notice_s: float | None = None,
        metadata_says: bool = True,
        shutdown_script: bool = True,
        button: bool = True,
    ) -> None:
        """Take it away, as Compute Engine takes spot machines.

        The metadata says so at once (if `metadata_says`). The power button follows after the preemptionNoticeDuration
        that it was launched with, or after `notice_s` where given; its power is cut `grace_s` later. Then it is deleted
        or stopped, by its instanceTerminationAction. Without `shutdown_script` that one never runs, though systemd
        stops its services; without `button` it learns nothing but from the metadata until its power goes.
        """
        self._order(
            "preempt",
            instance=self.id,
            grace_s=grace_s,
            notice_s=notice_s,
            says=metadata_says,
            script=shutdown_script,
            button=button,
        )

    def maintenance(self, event: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        """Announce maintenance to it ("NONE" takes that back). None takes place."""
        self._order("maintenance", instance=self.id, event=event)

    def plan_maintenance(self, start: str, status: str = "PENDING") -> None:
        """Announce maintenance that begins at `start` (RFC 3339; empty takes that back). None takes place."""
        self._order("plan_maintenance", instance=self.id, start=start, status=status)

    def expire_request(self) -> None:
        """Its flex-start request has waited in the queue for as long as it is valid."""
        self._order("expire_request", instance=self.id)

    def expire(self) -> None:
        """Its maxRunDuration is over now: it is deleted or stopped, by its instanceTerminationAction."""
        self._order("expire", instance=self.id)

    @property
    def name(self) -> str:
        """What it is called as long as it exists."""
        return str(self._order("resource", instance=self.id)["name"])

    def wait_running(self, limit_s: float = 60.0) -> None:
        self.wait_until(lambda machine: machine.state() == "RUNNING", "to run", limit_s)

    def wait_up(self, limit_s: float = 60.0) -> None:
        """Wait until its systemd takes orders. A machine is RUNNING before that."""
        states = ("starting", "running", "degraded")
        self.wait_until(
            lambda machine: (
                machine.state() == "RUNNING"
                and machine.run("systemctl", "is-system-running", check=False).strip() in states
            ),
            "to take orders",
            limit_s,
        )

    def wait_stopped(self, limit_s: float = 60.0) -> None:
        """Wait until it is off, and still exists."""
        self.wait_until(lambda machine: machine.state() == "TERMINATED", "to be stopped", limit_s)


@dataclass(frozen=True)
class CloudFaults:
    """What a test can make go wrong. Each answers a number to clear it by."""

    _order: Order

    def add(self, fault: Fault) -> int:
        """Any fault."""
        return int(self._order("fault", fault=dump(fault)))

    def no_capacity(
        self,
        *,
        zone: str = "",
        machine: str = "",
        lifecycle: Lifecycle = "",
        available: int = 0,
        times: int | None = None,
        details: bool = False,
    ) -> int:
        """A zone has no more than `available` machines for a request: told when the operation has ended."""
        code = EXHAUSTED_WITH_DETAILS if details else EXHAUSTED
        return self.add(Fault(code, (), zone, machine, lifecycle, times=times, available=available))

    def refuse_launch(
        self,
        code: str = QUOTA,
        *,
        zone: str = "",
        machine: str = "",
        lifecycle: Lifecycle = "",
        times: int | None = None,
        message: str = "",
    ) -> int:
        """The operation of a launch ends with this code."""
        return self.add(Fault(code, (), zone, machine, lifecycle, times=times, message=message))

    def scarce(
        self,
        *,
        zone: str = "",
        machine: str = "",
        silent: bool = False,
        says: str = "",
        message: str = "",
        metric: str = "CPUS",
        limit: float = 0.0,
    ) -> int:
        """Flex-start requests wait in the queue until this is cleared. `silent`: their operation has succeeded by then,
        and a request that expires disappears without a word. `says`: the code of what a resize request tells of its
        last attempt; for a quota, `metric` and `limit` are part of that."""
        fault = Fault(
            says,
            zone=zone,
            machine=machine,
            scarce=True,
            silent=silent,
            message=message,
            metric=metric,
            limit=limit,
        )
        return self.add(fault)

    def no_quota(self, *operations: str, times: int | None = None, message: str = "") -> int:
        """HTTP 403 quotaExceeded at once, for these operations or for launches."""
        launches = operations or ("instances.insert", "instances.bulkInsert", "regionInstances.bulkInsert")
        return self.add(Fault("quotaExceeded", launches, status=403, times=times, message=message))

    def unauthorized(self, *operations: str) -> int:
        """HTTP 403 forbidden for these operations ("instances.insert"). None named: nothing is allowed."""
        return self.add(Fault("forbidden", operations, status=403))

    def throttle(self, *operations: str, status: int = 429, times: int | None = None) -> int:
        """HTTP 429 (or 403, 503) rateLimitExceeded."""
        return self.add(Fault("rateLimitExceeded", operations, status=status, times=times))

    def internal_error(
        self, *operations: str, status: int = 500, for_s: float | None = None, times: int | None = None
    ) -> int:
        """HTTP 500 for every call, or for these, for a while."""
        return self.add(Fault("backendError", operations, status=status, for_s=for_s, times=times))

    def lose_replies(self, *operations: str, times: int | None = 1) -> int:
        """The call happens; its client sees the connection break."""
        return self.add(Fault(operations=operations, times=times, lose_reply=True))

    def slow(self, *operations: str, slow_s: float, times: int | None = None) -> int:
        """The operations of these calls take so much longer."""
        return self.add(Fault(operations=operations, times=times, slow_s=slow_s))

    def operations_take(self, takes_s: float | None = None) -> None:
        """How long every operation takes at least; None for a fraction of a second."""
        self._order("operations_take", takes_s=takes_s)

    def node_may_delete(self, may: bool) -> None:
        """Whether the role of machines lets them delete themselves. It does at first."""
        self._order("node_may_delete", may=may)

    def shut_store(self, who: Who = "everyone") -> None:
        """The store answers 500 to these, until `shut_store("nobody")`."""
        self._order("shut_store", who=who)

    def listing_lag(self, lag_s: float) -> None:
        """Instances are listed only once they are this old. 0 ends it."""
        self._order("listing_lag", lag_s=lag_s)

    def clear(self, number: int | None = None) -> None:
        """Clear one fault, or all."""
        self._order("clear", number=number)


@dataclass(frozen=True)
class GceCloud:
    """A running cloud. `env` is what a client needs to talk to it and to nothing else, `gcloud_env` what gcloud needs;
    `token` is good for every call; `gateway` is the test's own address in the machines' network."""

    endpoint: str
    store_endpoint: str
    gateway: str
    gcs: GcsServer
    env: Mapping[str, str]
    token: str
    token_file: Path
    faults: CloudFaults
    server_log: Path
    _order: Order

    def set_calendar(self, starts_in_s: float, ends_in_s: float) -> None:
        """When the reservation `calendar`, which is in calendar mode, has machines. It ends none of them."""
        self._order("calendar", starts_in_s=starts_in_s, ends_in_s=ends_in_s)

    def age_requests(self, by_s: float) -> None:
        """Make every resize request of a group so much older."""
        self._order("age_requests", by_s=by_s)

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        return self.gcs.new_bucket()

    def instances(self) -> dict[str, str]:
        """The status of every instance there ever was, by ZONE.NUMERIC; "terminated" for those that are deleted."""
        return dict(self._order("states"))

    def machine(self, instance_id: str) -> MachineHandle:
        """The machine of an instance, by ZONE.NUMERIC."""
        return MachineHandle(instance_id, self._order)

    def calls(self, *, reset: bool = False) -> dict[str, int]:
        """How often each method was called: "instances.insert", "logging:entries.write". The store is not counted."""
        return dict(self._order("calls", reset=reset))

    def broken(self, *, reset: bool = False) -> list[str]:
        """Requests that did not fit Google's discovery documents, each with what was wrong."""
        return list(self._order("broken", reset=reset))

    def entries(self, *, reset: bool = False) -> list[dict[str, Any]]:
        """What was written to Cloud Logging, each entry whole."""
        return list(self._order("entries", reset=reset))

    def set_quota(self, metric: str, limit: float, region: str = "") -> None:
        """What is told of a quota from now on, in one region or in all. Nobody is held to it: see `faults`."""
        self._order("quota", metric=metric, limit=limit, region=region)

    def set_project_metadata(self, items: Mapping[str, str], project: str = PROJECT) -> None:
        """Give every machine of a project these attributes too."""
        self._order("project_metadata", project=project, items=dict(items))

    def left(self) -> Left:
        """Everything that still exists."""
        return Left(**{kind: tuple(found) for kind, found in self._order("left").items()})

    def clear(self) -> None:
        """No faults, no machines, no disks, no policies: for a cloud that several tests share. Calls are counted anew,
        broken requests and log entries are forgotten. Operations are remembered."""
        self._order("reset")

    def gcloud_env(self, folder: Path) -> dict[str, str]:
        """What gcloud needs, beside `env`. `folder` is where it may keep what it likes."""
        return {
            **self.env,
            "CLOUDSDK_CONFIG": str(folder),
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(self.token_file),
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }


@contextmanager
def gce_cloud(*, power_off_s: float = 90.0) -> Iterator[GceCloud]:
    """A cloud with nothing in it but its images. Machines told to end get `power_off_s` to do so by themselves.

    Raises RuntimeError where machines cannot be booted, or where more than loopback can be reached.
    """
    without = ("GOOGLE_", "CLOUDSDK_", "GCE_", "STORAGE_EMULATOR_HOST", "NO_GCE_CHECK")
    with started("tests.support.gce.server", power_off_s=power_off_s, without=without) as server:
        yield _cloud(server)


def _cloud(server: Started) -> GceCloud:
    at = server.at
    endpoint, store = f"http://{at['gateway']}:{at['port']}", f"http://{at['gateway']}:{at['store']}"
    env = {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{endpoint}/compute/v1/",
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{endpoint}/" for name in _AROUND},
        "STORAGE_EMULATOR_HOST": store,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "CLOUDSDK_COMPUTE_REGION": REGION,
        "GOOGLE_APPLICATION_CREDENTIALS": at["key_file"],
        # The test is no machine, and must not look whether it is one.
        "GCE_METADATA_HOST": _DEAD,
        "GCE_METADATA_IP": _DEAD,
        "NO_GCE_CHECK": "true",
        # What the person at this computer has set up is none of a test's business.
        "CLOUDSDK_CONFIG": os.devnull,
    }
    gcs = GcsServer(at["gcs"], {**env, "STORAGE_EMULATOR_HOST": at["gcs"]})
    return GceCloud(
        endpoint,
        store,
        at["gateway"],
        gcs,
        env,
        at["token"],
        Path(at["token_file"]),
        CloudFaults(server.order),
        server.log,
        server.order,
    )
