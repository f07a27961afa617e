"""A Compute Engine machine becomes a node: see `stoker.providers.boot.install`. Its metadata say who it is, its service
account opens the bucket and lets it delete itself.

Runs from a zip inside the startup script, on Python 3.6 or newer: `boot.json` holds what it must know.
"""

import http.client
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.cloudapi.google.metadata import EMAIL, SCOPES, Metadata, MetadataError, NoServiceAccount
from stoker.providers.boot.install import (
    ABSENT_S,
    ANSWER_S,
    DENIED_S,
    ROLE_S,
    BootFailed,
    Cloud,
    Unsettled,
    exchange,
    main,
    patiently,
    save,
)

_STORAGE = "https://storage.googleapis.com"
_COMPUTE = "https://compute.googleapis.com/compute/v1"
_COMPUTE_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
# What the machine was told from outside is told its agent, too.
_PASSED_ON = ("GCE_METADATA_HOST", "GCE_METADATA_IP")

# Of each, one is enough.
_AUTH = "https://www.googleapis.com/auth/"
_ALL = _AUTH + "cloud-platform"
_STORAGE_SCOPES = (_ALL, _AUTH + "devstorage.read_write", _AUTH + "devstorage.full_control")
_COMPUTE_SCOPES = (_ALL, _AUTH + "compute")

_NETWORK = "give its subnet Private Google Access or a Cloud NAT, or the machine a public address"

Answer = http.client.HTTPResponse


class Identity:
    """This machine, as its metadata tells it. Raises BootFailed when it does not."""

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
                raise Unsettled(f"the metadata server has no {path} — start the machine again", ABSENT_S)
            return found.strip()

        return patiently(ask)

    def _get(self, path: str) -> "str | None":
        try:
            return self._metadata.get(path)
        except MetadataError as error:
            raise Unsettled(f"{error} — choose a resources.image that lets machines reach it", ANSWER_S) from None

    def token(self) -> str:
        """Raises Unsettled."""
        try:
            return self._metadata.token()[0]
        except NoServiceAccount as error:
            remedy = "set resources.gce.service_account to one that may use the bucket (see `stoker iam gce`)"
            raise Unsettled(f"{error} — {remedy}", ROLE_S) from None
        except MetadataError as error:
            raise Unsettled(f"{error} — check the machine's service account", ROLE_S) from None

    def forget_token(self) -> None:
        """The next one is asked for anew: this one was refused."""
        try:
            self._metadata.token(fresh=True)
        except MetadataError:
            pass

    def lacks(self, scopes: "tuple[str, ...]") -> bool:
        """Whether the machine was given none of these. False where that is not known."""
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


class Bucket:
    """Requests to one bucket as the service account, until there is an agent that can do better: the XML API."""

    def __init__(self, name: str, environ: "dict[str, str]", identity: Identity) -> None:
        self._name = name
        endpoint = environ.get("STORAGE_EMULATOR_HOST") or _STORAGE
        self._endpoint = endpoint if "://" in endpoint else "http://" + endpoint
        self._identity = identity

    def get(self, key: str, target: Path) -> str:
        """Fetch an object into a file. Answers its SHA-256. Raises Unsettled."""
        found = []
        self._ask("GET", key, b"", lambda answer: found.append(save(answer, target)))
        return found[0]

    def put(self, key: str, data: bytes) -> None:
        """Write an object. Raises Unsettled."""
        self._ask("PUT", key, data, lambda answer: answer.read())

    def _ask(self, method: str, key: str, data: bytes, take: "Callable[[Answer], object]") -> None:
        url = f"{self._endpoint.rstrip('/')}/{self._name}/{quote(key, safe='/-_.~')}"
        headers = {"Authorization": "Bearer " + self._identity.token()}
        exchange(method, url, headers, data, take, lambda answer: self._refused(method, key, answer), _NETWORK)

    def _refused(self, method: str, key: str, answer: Answer) -> None:
        text = answer.read(8192).decode(errors="replace")
        code = text.partition("<Code>")[2].partition("</Code>")[0] or str(answer.status)
        what = f"gs://{self._name}/{key}"
        if answer.status == 401:
            self._identity.forget_token()
        if answer.status in (401, 403):
            if self._identity.lacks(_STORAGE_SCOPES):
                raise Unsettled(f"{what} is denied: the machine lacks the scope of Cloud Storage — {_add(_ALL)}", 0.0)
            right = "storage.objects.get" if method == "GET" else "storage.objects.create"
            who = self._identity.account()
            raise Unsettled(f"{what} is denied ({code}) — give {who} {right} (see `stoker iam gce`)", DENIED_S)
        if answer.status == 404:
            raise Unsettled(f"{what} is not there ({code}) — submit the job again", ABSENT_S)
        raise Unsettled(f"{what}: Cloud Storage answered {answer.status} ({code}) — try again later", ANSWER_S)


class Gce(Cloud):
    """The machine, and the bucket as its service account sees it. One that is switched off still costs: it deletes
    itself."""

    def __init__(self, config: "dict[str, Any]") -> None:
        environ = config["environ"]
        host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP")
        self._metadata = Metadata(host)
        self._identity = Identity(self._metadata)
        self.zone = self._identity.zone
        self.instance = f"{self.zone}.{self._identity.number}"
        self._config = config
        self._bucket = Bucket(config["bucket"], environ, self._identity)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """By its name. Only where it is asked for: a machine that has none must be able to leave. Raises BootFailed."""
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
        """Ask for the end of this very machine. By its name, which is its own for as long as it runs: the condition on
        its role goes by names."""
        environ = self._config["environ"]
        base = environ.get(_COMPUTE_VARIABLE) or os.environ.get(_COMPUTE_VARIABLE) or _COMPUTE
        project = self._config.get("project") or self._identity.must("project/project-id")
        url = f"{base.rstrip('/')}/projects/{project}/zones/{self.zone}/instances/{self._identity.name}"
        headers = {"Authorization": "Bearer " + self._identity.token()}
        exchange("DELETE", url, headers, b"", lambda answer: answer.read(), self._kept, _NETWORK)

    def _kept(self, answer: Answer) -> None:
        answer.read(8192)
        if answer.status == 404:
            return  # Gone already.
        if answer.status == 401:
            self._identity.forget_token()
        if answer.status in (401, 403):
            if self._identity.lacks(_COMPUTE_SCOPES):
                why = f"the machine lacks the scope of Compute Engine ({_add(_ALL)})"
            else:
                why = f"{self._identity.account()} lacks compute.instances.delete (see `stoker iam gce`)"
            raise Unsettled(f"{why} — it is switched off, and the next governor deletes it", ABSENT_S)
        raise Unsettled(f"Compute Engine answered {answer.status} — the next governor deletes it", ANSWER_S)


def _add(scope: str) -> str:
    return f"add {scope} to resources.gce.scopes, or leave them out"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Gce))
