"""A strict Cloud Storage for tests: what obstore needs of the XML API, with real generations and preconditions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support import ROOT
from tests.support.gcs.faults import Fault
from tests.support.gcs.tokens import LIFETIME_S, PROJECT, make_account
from tests.support.servers import isolated

__all__ = ["Fault", "GcsServer", "gcs_server"]

# Nothing listens there where nothing but loopback can be reached.
DEAD_ADDRESS = "127.0.0.1:9"
_START_LIMIT_S = 60.0


@dataclass(frozen=True)
class GcsServer:
    """A running server. `env` is what a client needs to talk to it, and to nothing else.

    Whoever reaches `endpoint` may give orders: a process that shows the server under another address makes one of
    these for itself.
    """

    endpoint: str
    env: Mapping[str, str]

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"stoker-{uuid.uuid4().hex[:16]}"
        self._order("new_bucket", name=name)
        return name

    def open_uploads(self, url: str) -> int:
        """How many uploads in parts were begun in the bucket of this URL and neither finished nor withdrawn."""
        return int(self._order("open_uploads", bucket=url.removeprefix("gs://").partition("/")[0]))

    def requests(self, *, reset: bool = False) -> dict[str, int]:
        """How many requests there were of each method and answer: "PUT 200", "PUT 412"."""
        return dict(self._order("requests", reset=reset))

    def allow(self, token: str, lifetime_s: float = LIFETIME_S) -> None:
        """From now on this bearer token is good: one that a metadata server of the test gives to its machine."""
        self._order("allow", token=token, lifetime_s=lifetime_s)

    def revoke(self, token: str) -> None:
        """From now on it is not."""
        self._order("revoke", token=token)

    def fault(self, fault: Fault) -> None:
        """Any fault; the first that was set wins."""
        self._order("fault", fault=asdict(fault))

    def fail(
        self,
        status: int = 500,
        code: str = "InternalError",
        *,
        methods: tuple[str, ...] = (),
        prefix: str = "",
        times: int | None = None,
        for_s: float | None = None,
    ) -> None:
        """Requests are refused: with 500 for a while, with 403 AccessDenied for names that begin so…"""
        self.fault(Fault(status, code, methods, prefix, times, for_s))

    def lose_replies(self, *methods: str, prefix: str = "", times: int | None = 1) -> None:
        """The request happens; its client sees the connection break."""
        self.fault(Fault(methods=methods, prefix=prefix, times=times, lose_reply=True))

    def rate_limit(self, on: bool = True) -> None:
        """A name that was written or removed within the last second answers 429 to the next who tries.

        The real one lets short bursts pass. https://cloud.google.com/storage/docs/gcs429
        """
        self._order("rate_limit", on=on)

    def clear(self) -> None:
        """No faults, no limit, and requests are counted anew. Objects and tokens stay."""
        self._order("clear")
        self.requests(reset=True)

    def _order(self, do: str, **more: Any) -> Any:
        body = json.dumps({"do": do, **more}).encode()
        # Past any proxy that the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(f"{self.endpoint}/_control", body), timeout=30) as answer:
            return json.load(answer)["answer"]


@contextmanager
def gcs_server() -> Iterator[GcsServer]:
    """Cloud Storage in a process of its own, on a free port of loopback, with a service account that may do all."""
    if not isolated():
        raise RuntimeError("Cloud Storage for tests is started only where nothing but loopback can be reached")
    folder = Path(tempfile.mkdtemp(prefix="stoker-gcs-"))
    try:
        account = make_account()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.gcs.server"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            public = {"modulus": str(account.modulus), "exponent": str(account.exponent)}
            public["private_key_id"] = account.key_file["private_key_id"]
            process.stdin.write(json.dumps(public).encode() + b"\n")
            process.stdin.flush()
            port = process.stdout.readline().strip().decode()
            if not port:
                raise RuntimeError(f"Cloud Storage does not start: it ended with {process.wait()}")
            endpoint = f"http://127.0.0.1:{port}"
            key = folder / "service-account.json"
            key.write_text(json.dumps(account.key_file | {"token_uri": f"{endpoint}/_token"}))
            yield GcsServer(endpoint, _environ(endpoint, key, folder))
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environ(endpoint: str, key: Path, folder: Path) -> dict[str, str]:
    return {
        "STORAGE_EMULATOR_HOST": endpoint,
        "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        # What the person at this computer has set up is none of a test's business.
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "GCE_METADATA_HOST": DEAD_ADDRESS,
        "GCE_METADATA_IP": DEAD_ADDRESS,
    }
