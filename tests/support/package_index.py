"""A package index on loopback, with wheels made for it: tests install with real tools, and nothing leaves the machine.

    with package_index() as index:
        index.add(make_wheel("torch", "2.4.0", requires=("numpy>=1.20",)))
        subprocess.run(["uv", "pip", "install", "--default-index", index.url, "torch"])

Speaks the simple API (PEP 503), with hashes and, for uv, ranges and the metadata of wheels beside them (PEP 658). With
a password every request must carry it, as HTTP's basic authentication.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """A built distribution: its file's name, and its bytes."""

    filename: str
    data: bytes

    @property
    def project(self) -> str:
        return normalised(self.filename.partition("-")[0])

    @property
    def metadata(self) -> bytes:
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            # Some carry others inside.
            (name,) = [one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
            return archive.read(name)


def normalised(name: str) -> str:
    """A project's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def make_wheel(
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Wheel:
    """A wheel. Without `files` it holds one module of its own name, which knows its version.

    `scripts` are console scripts, each with its entry point (`module:function`). The same call makes the same bytes.
    """
    module = normalised(name).replace("-", "_")
    content = dict(files) if files is not None else {f"{module}.py": f"__version__ = {version!r}\n".encode()}
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    content[f"{info}/METADATA"] = ("\n".join(lines) + "\n").encode()
    pure = "true" if tag.endswith("-none-any") else "false"
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: {pure}\nTag: {tag}\n".encode()
    if scripts:
        entries = "".join(f"{command} = {target}\n" for command, target in scripts.items())
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{entries}".encode()
    record = "".join(f"{path},sha256={_record_digest(data)},{len(data)}\n" for path, data in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return Wheel(f"{module}-{version}-{tag}.whl", buffer.getvalue())


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class PackageIndex:
    """A running index. `requests` is every path that was asked for, in order; `refused` counts wrong passwords."""

    def __init__(self, server: ThreadingHTTPServer, user: str, password: str | None) -> None:
        # An address of this computer that a test booted machines on may be asked for instead: see `url_at`.
        self.port: int = server.server_address[1]
        self.user = user
        self.password = password
        self.requests: list[str] = []
        self.refused = 0
        # So many requests to come are answered with 503, as by an index that has no time.
        self.failing = 0
        self._wheels: dict[str, Wheel] = {}

    def url_at(self, host: str) -> str:
        """The address of the index, without credentials, as somebody sees it who knows this computer as `host`."""
        return f"http://{host}:{self.port}/simple/"

    @property
    def url(self) -> str:
        return self.url_at("127.0.0.1")

    def add(self, *wheels: Wheel) -> None:
        """Offer these, too. One of the same file name is replaced."""
        self._wheels |= {wheel.filename: wheel for wheel in wheels}

    def admits(self, authorization: str | None) -> bool:
        """Whether a request with this header may be answered."""
        if self.password is None:
            return True
        expected = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if authorization == f"Basic {expected}":
            return True
        self.refused += 1
        return False

    def answer(self, path: str) -> tuple[bytes, str] | None:
        """The body for this path and its type; None: there is no such thing."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match parts:
            case ["simple"]:
                projects = sorted({wheel.project for wheel in self._wheels.values()})
                return _page(f'<a href="{project}/">{project}</a>' for project in projects), "text/html"
            case ["simple", project]:
                found = [wheel for wheel in self._wheels.values() if wheel.project == project]
                return (_page(map(_link, found)), "text/html") if found else None
            case ["files", filename] if filename.removesuffix(".metadata") in self._wheels:
                wheel = self._wheels[filename.removesuffix(".metadata")]
                return wheel.metadata if filename.endswith(".metadata") else wheel.data, "application/octet-stream"
        return None


def _page(links: Any) -> bytes:
    return ("<!DOCTYPE html><html><body>" + "<br>".join(links) + "</body></html>").encode()


def _link(wheel: Wheel) -> str:
    digest = hashlib.sha256(wheel.data).hexdigest()
    beside = f"sha256={hashlib.sha256(wheel.metadata).hexdigest()}"
    href = f"/files/{wheel.filename}#sha256={digest}"
    return f'<a href="{href}" data-core-metadata="{beside}" data-dist-info-metadata="{beside}">{wheel.filename}</a>'


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    index: PackageIndex

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle of an answer is nobody's fault."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    # Headers and body leave together, else the kernel waits for the acknowledgement of the first.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        index = self.server.index
        path = self.path.partition("?")[0]
        index.requests.append(path)
        if index.failing > 0:
            index.failing -= 1
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"", "text/plain", {})
        if not index.admits(self.headers.get("Authorization")):
            return self._send(HTTPStatus.UNAUTHORIZED, b"", "text/plain", {"WWW-Authenticate": 'Basic realm="index"'})
        found = index.answer(path)
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, b"", "text/plain", {})
        data, kind = found
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self._send(HTTPStatus.OK, data, kind, {"Accept-Ranges": "bytes"})
        first, last = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
        where = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return self._send(HTTPStatus.PARTIAL_CONTENT, data[first : last + 1], kind, where)

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, body: bytes, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: tests look at `requests`."""


@contextmanager
def package_index(
    *wheels: Wheel, password: str | None = None, user: str = "__token__", host: str = "127.0.0.1"
) -> Iterator[PackageIndex]:
    """An index on a free port, for as long as the block lasts. `host` "0.0.0.0" lets machines that tests boot in."""
    server = _Server((host, 0), _Handler)
    index = server.index = PackageIndex(server, user, password)
    index.add(*wheels)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True, name="index")
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
