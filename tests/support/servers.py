"""Real servers for tests, on loopback, and only ever where nothing but loopback can be reached.

Cloud SDKs try to leave: they look for metadata services and public endpoints whatever they are told. So both the
server and the test that talks to it run in a network namespace that has no way out.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1
_START_LIMIT_S = 60.0

# Links with such names lead to machines that a test booted, and no further.
CLOUD_LINK = "stoker-net"


def isolated() -> bool:
    """Whether this process can reach loopback, machines that tests booted, and nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        up = [name for _, name in socket.if_nameindex() if _is_up(asking, name)]
    return [name for name in up if not name.startswith(CLOUD_LINK)] == ["lo"]


def _is_up(asking: socket.socket, name: str) -> bool:
    try:
        answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, struct.pack("16sh14x", name.encode(), 0))
    except OSError:
        return False  # another test's link, gone since it was listed
    return bool(struct.unpack("16sh14x", answer)[1] & _IFF_UP)


def isolating(command: Sequence[str]) -> list[str]:
    """The command that runs `command` in a network namespace with loopback only. Needs `unshare` and `ip`."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *as_root, "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]


def pytest_isolated(*arguments: str) -> None:
    """Run pytest in isolation, for a test whose own process is not. Raises AssertionError if anything fails there."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    ran = subprocess.run(isolating(command), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise AssertionError(f"pytest in a namespace ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}")


@dataclass(frozen=True)
class S3Server:
    """A running server. `env` is what a client needs to talk to it, and to nothing else."""

    endpoint: str
    env: Mapping[str, str]

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"stoker-{uuid.uuid4().hex[:16]}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with _direct().open(request, timeout=30):
            return name

    def open_uploads(self, url: str) -> int:
        """How many uploads in parts were begun in the bucket of this URL and neither finished nor withdrawn."""
        bucket = url.removeprefix("s3://").partition("/")[0]
        with _direct().open(f"{self.endpoint}/{bucket}?uploads", timeout=30) as answer:
            listing: bytes = answer.read()
        return listing.count(b"<UploadId>")


@contextmanager
def s3_server(*also: str) -> Iterator[S3Server]:
    """S3 with correct conditional writes (ministack), out of process, on a free port of loopback.

    `also` are other services that it serves there: `cloudformation`, `lambda`, `events`, `sns`, `monitoring`, ….
    """
    if not isolated():
        raise RuntimeError("an S3 server for tests is started only where nothing but loopback can be reached")
    folder = Path(tempfile.mkdtemp(prefix="stoker-s3-"))
    try:
        process, endpoint = _start_ministack(folder, ("s3", *also))
        try:
            yield S3Server(endpoint, _environ(endpoint))
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def moto_server(bucket: str = "bench") -> Iterator[S3Server]:
    """moto's own server: EC2, S3 with this bucket and their kin, which answer at once and boot nothing."""
    if not isolated():
        raise RuntimeError("moto is started only where nothing but loopback can be reached")
    folder = Path(tempfile.mkdtemp(prefix="stoker-moto-"))
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    try:
        with (folder / "moto.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _answers(process, f"{endpoint}/moto-api/"):
                raise RuntimeError(f"moto does not start:\n{(folder / 'moto.log').read_text(errors='replace')}")
            with _direct().open(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"), timeout=30):
                yield S3Server(endpoint, _environ(endpoint))
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environ(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _start_ministack(folder: Path, services: Sequence[str]) -> tuple[subprocess.Popen[bytes], str]:
    # Another process may take the port between our asking for a free one and the server's binding it.
    for _ in range(5):
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        env = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "S3_DATA_DIR": str(folder / "s3"),
            # It looks for a container engine, which is none of a test's business.
            "DOCKER_HOST": f"unix://{folder}/none.sock",
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "SERVICES": ",".join(services),
            "LOG_LEVEL": "WARNING",
        }
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ministack"], env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
        if _answers(process, f"{endpoint}/_ministack/health"):
            return process, endpoint
        _stop(process)
    raise RuntimeError(f"the S3 server does not start:\n{(folder / 'server.log').read_text(errors='replace')}")


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    give_up = time.monotonic() + _START_LIMIT_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            with _direct().open(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _direct() -> urllib.request.OpenerDirector:
    """Past any proxy that the environment names."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
