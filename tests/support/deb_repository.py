"""A repository of Debian packages on loopback, with packages made for it: tests install with the real apt.

    with deb_repository(make_deb("stoker-tiny", "1.0")) as repository:
        f"deb [trusted=yes] {repository.url} ./"

It is flat (`./`), and has the suites `bookworm` and `bookworm-updates` as well, as a mirror of Debian has. Nothing is
signed. With a password every request must carry it, as HTTP's basic authentication.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_SUITES = ("bookworm", "bookworm-updates")


@dataclass(frozen=True)
class Deb:
    """A package: what is said of it in an index, its file's name, and its bytes."""

    control: str
    filename: str
    data: bytes


def make_deb(name: str, version: str, *, depends: Sequence[str] = (), files: Mapping[str, str] | None = None) -> Deb:
    """A package for every architecture. Without `files` it holds /usr/share/NAME/version."""
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Test <test@test.example>\n"
        + (f"Depends: {', '.join(depends)}\n" if depends else "")
        + "Description: made for a test\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        content = files if files is not None else {f"usr/share/{name}/version": f"{version}\n"}
        for path, text in {"DEBIAN/control": control, **content}.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if text.startswith("#!") else 0o644)
        root.chmod(0o755)
        built = Path(folder) / "built.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, built], check=True, capture_output=True)
        return Deb(control, f"{name}_{version}_all.deb", built.read_bytes())


class DebRepository:
    """A running repository. `requests` is every path that was asked for; `refused` counts wrong passwords."""

    def __init__(self, port: int, debs: Sequence[Deb], user: str, password: str | None) -> None:
        self.port = port
        self.user = user
        self.password = password
        self.requests: list[str] = []
        self.refused = 0
        self._files = {f"/pool/{deb.filename}": deb.data for deb in debs}
        packages = "\n".join(
            f"{deb.control}Filename: pool/{deb.filename}\nSize: {len(deb.data)}\n"
            f"SHA256: {hashlib.sha256(deb.data).hexdigest()}\n"
            for deb in debs
        ).encode()
        self._files["/Packages"] = packages
        for suite in _SUITES:
            self._files |= _suite(suite, packages if suite == _SUITES[0] else b"")

    def url_at(self, host: str) -> str:
        """Its address, without credentials, as somebody sees it who knows this computer as `host`."""
        return f"http://{host}:{self.port}/debian"

    @property
    def url(self) -> str:
        return self.url_at("127.0.0.1")

    def answer(self, path: str, authorization: str | None) -> tuple[HTTPStatus, bytes]:
        self.requests.append(path)
        told = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if self.password is not None and authorization != f"Basic {told}":
            self.refused += 1
            return HTTPStatus.UNAUTHORIZED, b""
        found = self._files.get(path.removeprefix("/debian").replace("/./", "/"))
        return (HTTPStatus.NOT_FOUND, b"") if found is None else (HTTPStatus.OK, found)


def _suite(suite: str, packages: bytes) -> dict[str, bytes]:
    folder = f"/dists/{suite}"
    lists = {f"main/binary-{arch}/Packages": packages for arch in ("amd64", "arm64")}
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {path}\n" for path, data in lists.items())
    release = (
        f"Suite: {suite}\nCodename: {suite}\nArchitectures: amd64 arm64\nComponents: main\n"
        f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{sums}"
    )
    return {f"{folder}/{path}": data for path, data in lists.items()} | {f"{folder}/Release": release.encode()}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    repository: DebRepository


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        status, body = self.server.repository.answer(self.path, self.headers.get("Authorization"))
        self.send_response(status)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="debian"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: tests look at `requests`."""


@contextmanager
def deb_repository(
    *debs: Deb, password: str | None = None, user: str = "__token__", host: str = "127.0.0.1"
) -> Iterator[DebRepository]:
    """A repository on a free port, while the block lasts. `host` "0.0.0.0" lets machines that tests boot in."""
    server = _Server((host, 0), _Handler)
    repository = server.repository = DebRepository(server.server_address[1], debs, user, password)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True, name="debian")
    thread.start()
    try:
        yield repository
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
