"""Google's APIs as a project has them where all is well, for tests of what looks at a project. No wire, no login."""

from __future__ import annotations

import re
from contextlib import nullcontext
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from stoker.model.errors import ProviderError
from stoker.providers.gce.client import Api
from stoker.providers.gce.errors import response_error
from stoker.providers.gce.provider import GceProvider
from stoker.providers.registry import Context
from tests.support.gce.discovery import api as discovered
from tests.support.gce.discovery import check_request

PROJECT, REGION, ZONE = "vision-1", "us-central1", "us-central1-a"
STORE = "gs://my-bucket/team"
PLACE = f"{PROJECT}/{REGION}"
BASE = f"/compute/v1/projects/{PROJECT}"
LINK = f"https://www.googleapis.com{BASE}"
NUMBER = "4242424242424242424"
EMAIL = f"stoker-node@{PROJECT}.iam.gserviceaccount.com"
NETWORK = f"{LINK}/global/networks/default"
SUBNET = {
    "name": "default",
    "network": NETWORK,
    "ipCidrRange": "10.128.0.0/20",
    "privateIpGoogleAccess": True,
}
INTERNAL = {
    "network": NETWORK,
    "direction": "INGRESS",
    "priority": 65534,
    "sourceRanges": ["10.128.0.0/9"],
    "allowed": [{"IPProtocol": "tcp", "ports": ["0-65535"]}, {"IPProtocol": "udp", "ports": ["0-65535"]}],
}
TYPES = {
    "items": {
        f"zones/{ZONE}": {"machineTypes": [{"name": "n2-standard-4", "guestCpus": 4, "memoryMb": 16384}]},
    }
}


def limit(metric: str, most: float, used: float = 0.0) -> dict[str, Any]:
    return {"metric": metric, "limit": most, "usage": used}


class Google:
    """Google's APIs, as a project has them where all is well. `answers` are by method and path, the first that fits."""

    hurried = nullcontext

    def __init__(self) -> None:
        self.called: list[str] = []
        self.account = "jane@example.com"
        self.project: str | None = PROJECT
        self.denied: set[str] = set()
        self.granted_on_machine: set[str] = set()
        self.labels = {"stoker-store": "gs_3a_2f_2fmy-bucket_2fteam", "stoker-job": "gpt-ab12", "stoker-claim": "1"}
        self.machines: list[dict[str, Any]] = []
        self.reserved = {"block-7": ZONE}
        # What each of them is for, where it tells.
        self.reserved_machines: dict[str, dict[str, Any]] = {}
        # Future reservations in calendar mode, by the name of what they reserve.
        self.calendar: dict[str, dict[str, Any]] = {}
        # Older ones, of the same names.
        self.calendar_before: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[tuple[str, str, Any]] = []
        self.usual: list[tuple[str, str, Any]] = [
            ("GET", BASE, {"quotas": [limit("GPUS_ALL_REGIONS", 0), limit("CPUS_ALL_REGIONS", 64)]}),
            ("GET", f"{BASE}/regions/{REGION}", {"quotas": [limit("N2_CPUS", 24, 4), limit("PREEMPTIBLE_CPUS", 0)]}),
            ("GET", f"{BASE}/aggregated/instances", lambda _: self._listed()),
            ("GET", f"{BASE}/aggregated/machineTypes", TYPES),
            ("POST", f"/v1/projects/{PROJECT}:testIamPermissions", self._allowed),
            ("POST", r".*/instances/\d+/testIamPermissions", self._allowed_on_machine),
            ("GET", f"/v1/projects/{PROJECT}/serviceAccounts/{EMAIL}", {"email": EMAIL}),
            ("POST", f"/v1/projects/{PROJECT}/serviceAccounts/{EMAIL}:testIamPermissions", self._allowed),
            ("GET", "/storage/v1/b/my-bucket", bucket()),
            ("GET", ".*/ubuntu-os-cloud/global/images/family/.*", {"name": "ubuntu-2404-noble-amd64-v20261101"}),
            ("GET", f"{BASE}/global/networks/default", {"name": "default", "selfLink": NETWORK}),
            ("GET", f"{BASE}/regions/{REGION}/subnetworks", {"items": [SUBNET]}),
            ("GET", f"{BASE}/global/firewalls", {"items": [INTERNAL]}),
            ("GET", f"{BASE}/regions/{REGION}/resourcePolicies/close", {"name": "close"}),
            ("GET", f"{BASE}/aggregated/reservations", lambda _: self._reserved()),
            ("GET", f"{BASE}/aggregated/futureReservations", lambda _: self._calendar()),
        ]

    def _listed(self) -> Any:
        return {"items": {f"zones/{ZONE}": {"instances": self.machines}}}

    def _reserved(self) -> Any:
        def told(name: str) -> dict[str, Any]:
            properties = self.reserved_machines.get(name)
            return {"name": name} | ({"specificReservation": {"instanceProperties": properties}} if properties else {})

        return {"items": {f"zones/{zone}": {"reservations": [told(name)]} for name, zone in self.reserved.items()}}

    def _calendar(self) -> Any:
        made = [
            {"name": f"future-{name}", "reservationMode": "CALENDAR", "reservationName": name} | about
            for name, about in (*self.calendar_before, *self.calendar.items())
        ]
        return {"items": {f"zones/{ZONE}": {"futureReservations": made}}}

    def _allowed(self, body: Any) -> Any:
        return {"permissions": [name for name in body["permissions"] if name not in self.denied]}

    def _allowed_on_machine(self, body: Any) -> Any:
        return {"permissions": [name for name in body["permissions"] if name in self.granted_on_machine]}

    def let(self, method: str, path: str, answer: Any) -> None:
        self.answers.append((method, path, answer))

    # ── As the client has them ────────────────────────────────────────────────────────────────────────────────────────

    def identity(self) -> str:
        return self.account

    def default_project(self) -> str | None:
        return self.project

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def get(self, path: str, params: Any = None, *, service: str = "compute") -> Any:
        return self.send("GET", path, params=params, service=service)

    scoped = Api.scoped

    def pages(self, path: str, params: Any = None, *, service: str = "compute") -> Any:
        yield self.get(path, params, service=service)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Any = None,
        service: str = "compute",
        what: str = "",
        read_s: float = 30.0,
    ) -> Any:
        if service == "compute":
            assert check_request(method, path, params, body) == []
            found = discovered("compute", "v1").find(method, urlsplit(path).path)
            assert found is not None
            self.called.append(found.id)
        for verb, pattern, answer in (*self.answers, *self.usual):
            if verb == method and re.fullmatch(pattern, urlsplit(path).path):
                if isinstance(answer, ProviderError):
                    raise answer
                return answer(body) if callable(answer) else answer
        raise response_error(what or path, 404, {"error": {"message": f"The resource '{path[12:]}' was not found"}})


def bucket(uniform: bool = True, kept_s: int = 0) -> dict[str, Any]:
    return {
        "location": "US-CENTRAL1",
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": uniform}},
        "softDeletePolicy": {"retentionDurationSeconds": str(kept_s)},
    }


def connected(google: Google) -> GceProvider:
    provider = GceProvider(Context(store=STORE))
    provider._api = google  # type: ignore[assignment]
    return provider


def machine(google: Google, **about: Any) -> dict[str, Any]:
    return {
        "id": NUMBER,
        "name": "stoker-gpt-ab12-1-0123abcd-0",
        "zone": f"{LINK}/zones/{ZONE}",
        "status": "RUNNING",
        "labels": google.labels,
        "creationTimestamp": "2026-11-16T00:00:00.000-08:00",
    } | about
