"""Turn a Compute Engine machine into a node: see `stoker.providers.boot.install`. The metadata identify the machine;
its service account gives access to the bucket and lets the machine delete itself.

Runs from a zip inside the startup script, on Python 3.6 or newer. `boot.json` is its configuration.
"""

import http.client
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.cloudapi.google.metadata import EMAIL, SCOPES, Metadata, MetadataError, NoServiceAccount
from stoker.providers.boot.install import BootCloud, main
from stoker.providers.boot.retry import (
    ABSENT_S,
    ANSWER_S,
    DENIED_S,
    ROLE_S,
    BootFailed,
    RetryableFailure,
    retry,
    save_body,
    send_request,
)

_STORAGE = "https://storage.googleapis.com"
_COMPUTE = "https://compute.googleapis.com/compute/v1"
_COMPUTE_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
# Variables of the boot's environment that are passed on to the agent.
_PASSED_ON = ("GCE_METADATA_HOST", "GCE_METADATA_IP")

# One scope of each tuple is enough.
_AUTH = "https://www.googleapis.com/auth/"
_ALL = _AUTH + "cloud-platform"
_STORAGE_SCOPES = (_ALL, _AUTH + "devstorage.read_write", _AUTH + "devstorage.full_control")
_COMPUTE_SCOPES = (_ALL, _AUTH + "compute")

_NETWORK = "give its subnet Private Google Access or a Cloud NAT, or the machine a public address"

Answer = http.client.HTTPResponse


class GceIdentity:
    """The identity of this machine, from its metadata. Raises BootFailed when they do not answer."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.number = self.must("instance/id")
        # `projects/123/zones/us-central1-a`
        self.zone = self.must("instance/zone").rpartition("/")[2]
        self.name = self.must("instance/name")

    def must(self, path: str) -> str:
        def ask() -> str:
            found = self._get(path)
            if not found:
                raise RetryableFailure(f"the metadata server has no {path} — start the machine again", ABSENT_S)
            return found.strip()

        return retry(ask)

    def _get(self, path: str) -> "str | None":
        try:
            return self._metadata.get(path)
        except MetadataError as error:
            raise RetryableFailure(
                f"{error} — choose a resources.image that lets machines reach it", ANSWER_S
            ) from None

    def token(self) -> str:
        """Raises Unsettled."""
        try:
            return self._metadata.token()[0]
        except NoServiceAccount as error:
            remedy = "set resources.gce.service_account to one that may use the bucket (see `stoker iam gce`)"
            raise RetryableFailure(f"{error} — {remedy}", ROLE_S) from None
        except MetadataError as error:
            raise RetryableFailure(f"{error} — check the machine's service account", ROLE_S) from None

    def forget_token(self) -> None:
        """Fetch a new token, because the cached one was refused."""
        try:
            self._metadata.token(fresh=True)
        except MetadataError:
            pass

    def lacks(self, scopes: "tuple[str, ...]") -> bool:
        """Return whether the machine has none of these scopes. False where that is not known."""
        try:
            found = self._metadata.get(SCOPES)
        except MetadataError:
            return False
        return found is not None and not set(found.split()) & set(scopes)

    def account(self) -> str:
        try:
            return self._metadata.get(EMAIL) or "the service account"
        except MetadataError:
            return "the service account"


class GceBootBucket:
    """Requests to one bucket as the service account, over the XML API, for the time before the agent runs."""

    def __init__(self, name: str, environ: "dict[str, str]", identity: GceIdentity) -> None:
        self._name = name
        endpoint = environ.get("STORAGE_EMULATOR_HOST") or _STORAGE
        self._endpoint = endpoint if "://" in endpoint else "http://" + endpoint
        self._identity = identity

    def get(self, key: str, target: Path) -> str:
        """Fetch an object into a file, and return its SHA-256. Raises Unsettled."""
        found = []
        self._ask("GET", key, b"", lambda answer: found.append(save_body(answer, target)))
        return found[0]

    def put(self, key: str, data: bytes) -> None:
        """Write an object. Raises Unsettled."""
        self._ask("PUT", key, data, lambda answer: answer.read())

    def _ask(self, method: str, key: str, data: bytes, take: "Callable[[Answer], object]") -> None:
        url = f"{self._endpoint.rstrip('/')}/{self._name}/{quote(key, safe='/-_.~')}"
        headers = {"Authorization": "Bearer " + self._identity.token()}
        send_request(method, url, headers, data, take, lambda answer: self._refused(method, key, answer), _NETWORK)

    def _refused(self, method: str, key: str, answer: Answer) -> None:
        text = answer.read(8192).decode(errors="replace")
        code = text.partition("<Code>")[2].partition("</Code>")[0] or str(answer.status)
        what = f"gs://{self._name}/{key}"
        if answer.status == 401:
            self._identity.forget_token()
        if answer.status in (401, 403):
            if self._identity.lacks(_STORAGE_SCOPES):
                raise RetryableFailure(
                    f"{what} is denied: the machine lacks the scope of Cloud Storage — {_add(_ALL)}", 0.0
                )
            right = "storage.objects.get" if method == "GET" else "storage.objects.create"
            who = self._identity.account()
            raise RetryableFailure(f"{what} is denied ({code}) — give {who} {right} (see `stoker iam gce`)", DENIED_S)
        if answer.status == 404:
            raise RetryableFailure(f"{what} is not there ({code}) — submit the job again", ABSENT_S)
        raise RetryableFailure(f"{what}: Cloud Storage answered {answer.status} ({code}) — try again later", ANSWER_S)


class Gce(BootCloud):
    """This machine, and the bucket with its service account. A machine that is switched off still costs money, so that
    it deletes itself."""

    def __init__(self, config: "dict[str, Any]") -> None:
        environ = config["environ"]
        host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP")
        self._metadata = Metadata(host)
        self._identity = GceIdentity(self._metadata)
        self.zone = self._identity.zone
        self.instance = f"{self.zone}.{self._identity.number}"
        self._config = config
        self._bucket = GceBootBucket(config["bucket"], environ, self._identity)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The rank, by the machine's name. Computed on use: a machine without a rank must still be able to delete
        itself. Raises BootFailed."""
        names = self._config["names"]
        if self._identity.name not in names:
            raise BootFailed(f"{self._identity.name} is none of the machines that were asked for — launch it again")
        return int(names.index(self._identity.name))

    def get(self, key: str, target: Path) -> str:
        return self._bucket.get(key, target)

    def put(self, key: str, data: bytes) -> None:
        self._bucket.put(key, data)

    def environ(self) -> "dict[str, str]":
        return {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}

    def leave(self) -> None:
        """Request the deletion of this machine, by its name, because the condition on its role tests names. No other
        machine has this name while this one runs."""
        environ = self._config["environ"]
        base = environ.get(_COMPUTE_VARIABLE) or os.environ.get(_COMPUTE_VARIABLE) or _COMPUTE
        project = self._config.get("project") or self._identity.must("project/project-id")
        url = f"{base.rstrip('/')}/projects/{project}/zones/{self.zone}/instances/{self._identity.name}"
        headers = {"Authorization": "Bearer " + self._identity.token()}
        send_request("DELETE", url, headers, b"", lambda answer: answer.read(), self._not_deleted, _NETWORK)

    def _not_deleted(self, answer: Answer) -> None:
        answer.read(8192)
        if answer.status == 404:
            return  # The machine is deleted already.
        if answer.status == 401:
            self._identity.forget_token()
        if answer.status in (401, 403):
            if self._identity.lacks(_COMPUTE_SCOPES):
                why = f"the machine lacks the scope of Compute Engine ({_add(_ALL)})"
            else:
                why = f"{self._identity.account()} lacks compute.instances.delete (see `stoker iam gce`)"
            raise RetryableFailure(f"{why} — it is switched off, and the next governor deletes it", ABSENT_S)
        raise RetryableFailure(f"Compute Engine answered {answer.status} — the next governor deletes it", ANSWER_S)


def _add(scope: str) -> str:
    return f"add {scope} to resources.gce.scopes, or leave them out"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Gce))
