"""What a bucket may answer in the middle of an input: less than it said, that it is elsewhere. Only loopback here."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from input_machine import Machine, tree

from stoker.agent.inputs import cache
from stoker.agent.inputs.service import Inputs
from stoker.model.errors import SetupFailed
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.spec import Input
from tests.support.servers import isolated, pytest_isolated

BUCKET = "bucket"


class S3:
    """A bucket that can be read, and how it answers: `cut` of the next answers end too soon."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.cut = 0
        # Whoever signs for another region is sent away.
        self.region = "us-east-1"
        self.tells_region = True
        self.lock = threading.Lock()
        self.served: list[str] = []


def handler(s3: S3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
            if self._elsewhere():
                return
            if not key:
                self._list(parse_qs(parts.query))
            elif key not in s3.objects:
                self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._object(key)

        def _elsewhere(self) -> bool:
            signed = self.headers.get("Authorization", "")
            if f"/{s3.region}/s3/" in signed:
                return False
            told = {"x-amz-bucket-region": s3.region} if s3.tells_region else {}
            self._send(301, b"<Error><Code>PermanentRedirect</Code></Error>", told)
            return True

        def _list(self, query: dict[str, list[str]]) -> None:
            prefix = query.get("prefix", [""])[0]
            items = "".join(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-02T10:00:00.000Z</LastModified>"
                f"<ETag>&quot;{md5(data).hexdigest()}&quot;</ETag><Size>{len(data)}</Size></Contents>"
                for key, data in sorted(s3.objects.items())
                if key.startswith(prefix)
            )
            self._send(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode())

        def _object(self, key: str) -> None:
            data = s3.objects[key]
            etag = f'"{md5(data).hexdigest()}"'
            if self.headers.get("If-Match", etag) != etag:
                self._send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            status, more = 200, {"ETag": etag, "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}
            span = self.headers.get("Range", "")
            if span:
                begin, _, end = span.removeprefix("bytes=").partition("-")
                more["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
                status, data = 206, data[int(begin) : int(end) + 1]
            with s3.lock:
                cut = s3.cut > 0 and self.command == "GET"
                s3.cut -= cut
                s3.served.append(key)
            self._send(status, data, more, cut=cut)

        def _send(self, status: int, body: bytes, more: dict[str, str] | None = None, *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = cut

        def log_message(self, *_: object) -> None:
            pass

    return Handler


if isolated():

    @pytest.fixture
    def s3_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
        s3 = S3()
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(s3))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in os.environ:
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield s3
        server.shutdown()
        server.server_close()

    @pytest.fixture
    def node(tmp_path: Path) -> Any:
        paths, said = NodePaths(tmp_path / "node"), []
        config = NodeConfig("", "local", "job", 1, 0, 1, "node")
        return SimpleNamespace(
            paths=paths, config=config, inputs=tmp_path / "inputs", say=said.append, said=said, machine=None
        )

    def bring(node: Any) -> dict[str, bytes]:
        where = Path(Inputs(node, lambda: None).provide({"data": Input(f"s3://{BUCKET}/train")})["data"])
        return {path.name: path.read_bytes() for path in where.iterdir()}

    def test_answers_that_end_too_soon_are_asked_for_again(
        s3_answers: S3, node: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "PART_BYTES", 10_000)
        files = {f"train/{n}": os.urandom(1_000) for n in range(20)} | {"train/large": os.urandom(95_000)}
        s3_answers.objects |= files
        s3_answers.cut = 40
        assert bring(node) == {key.removeprefix("train/"): data for key, data in files.items()}
        assert s3_answers.cut == 0

    def test_a_bucket_in_another_region_is_found(s3_answers: S3, node: Any) -> None:
        s3_answers.objects["train/x"] = b"x"
        s3_answers.region = "eu-north-1"
        assert bring(node) == {"x": b"x"}
        told = "inputs.data: the bucket is in eu-north-1, another region: it takes longer, and the transfer is charged"
        assert node.said[0] == told

    def test_a_node_that_need_not_list_finds_the_region_too(s3_answers: S3, tmp_path: Path) -> None:
        s3_answers.objects |= {f"train/{n}": b"x" for n in range(4)}
        s3_answers.region = "eu-north-1"
        for rank, expected in ((0, {"0", "2"}), (1, {"1", "3"})):
            machine = Machine(tmp_path, f"node{rank}", rank, 2)
            where = machine.bring(data=Input(f"s3://{BUCKET}/train", shard=True))["data"]
            assert set(tree(where)) == expected
            assert "the bucket is in eu-north-1, another region" in machine.said[0]

    def test_a_region_that_nobody_tells_is_asked_for(s3_answers: S3, node: Any) -> None:
        s3_answers.objects["train/x"] = b"x"
        s3_answers.region, s3_answers.tells_region = "eu-north-1", False
        with pytest.raises(
            SetupFailed, match=r"^inputs\.data: .* is in another region; set AWS_REGION to the bucket's"
        ):
            bring(node)

else:

    def test_input_answers_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
