"""What the training prints reaches CloudWatch Logs, within its limits, and nothing ever waits for it.

The service is moto's, out of process, behind a gate that is as strict as AWS: signatures, order, sizes and pauses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from aws_services import KEY, ROLE, SECRET, TOKEN, Metadata, metadata_service, serving
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from stoker.agent.logs import cloudwatch
from stoker.agent.logs.cloud_copy import LogCopy, open_log_copy
from stoker.agent.logs.cloudwatch import CloudWatchSink
from stoker.agent.logs.log_pump import LogPump
from stoker.cloudapi import http_exchange
from stoker.cloudapi.aws.imds import Imds
from stoker.cloudapi.aws.logs import CloudWatchLogs, CloudWatchLogsError, is_group, log_stream
from stoker.model.errors import UserError
from stoker.model.log_entries import Claimed, Closed, Launched
from stoker.model.node_config import NodeConfig
from stoker.model.spec import Logs
from stoker.providers.ec2 import request
from stoker.store.log_chunks import last_chunk
from stoker.testing.memory_store import MemoryStore
from tests.support.servers import isolated, pytest_isolated
from tests.support.sim_data import SPOT_A, at, make_spec, make_state, nodes

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
GROUP = "/stoker/jobs"
REGION = "us-east-1"

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


# ── The service ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Gate:
    """Stands before the service, and is stricter than it. `broken` is what a client did that AWS would refuse."""

    behind: str
    endpoint: str = ""
    calls: list[str] = field(default_factory=list)
    batches: list[list[dict[str, Any]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    # What to answer instead, by operation or for all ("*"): an error's code, or "" for no answer at all.
    trouble: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, int] | None = None
    put_at: dict[str, float] = field(default_factory=dict)

    def check(self, stream: str, events: list[dict[str, Any]]) -> None:
        sizes = [len(each["message"].encode()) for each in events]
        times = [each["timestamp"] for each in events]
        if time.monotonic() - self.put_at.get(stream, 0.0) < 0.2:
            self.broken.append("two calls within 0.2 s")
        self.put_at[stream] = time.monotonic()
        if not events or len(events) > 10_000:
            self.broken.append(f"{len(events)} events")
        if sum(sizes) + 26 * len(sizes) > 1_048_576:
            self.broken.append(f"a batch of {sum(sizes) + 26 * len(sizes)} bytes")
        if min(sizes) < 1 or max(sizes) + 26 > 262_144:
            self.broken.append(f"an event of {min(sizes)} or {max(sizes)} bytes")
        if times != sorted(times) or times[-1] - times[0] >= 24 * 3600 * 1000:
            self.broken.append("not in order, or more than a day")


def _handler(gate: Gate) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            operation = str(self.headers.get("X-Amz-Target")).partition(".")[2]
            gate.calls.append(operation)
            trouble = gate.trouble.get(operation, gate.trouble.get("*"))
            if trouble is not None:
                self.close_connection = not trouble
                if trouble:
                    self.answer(400, json.dumps({"__type": trouble, "message": "as the test wants it"}).encode())
                return
            if not _signed(self, body):
                gate.broken.append(f"{operation} is not signed by the role")
            if operation == "PutLogEvents":
                told = json.loads(body)
                gate.check(told["logStreamName"], told["logEvents"])
                gate.batches.append(told["logEvents"])
            self.answer(*_forwarded(gate, self, body, operation))

        def answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _signed(request: BaseHTTPRequestHandler, body: bytes) -> bool:
    """Whether botocore would have signed it just so."""
    given = request.headers.get("Authorization", "")
    names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    signed = {name: request.headers[name] for name in names if name != "host"}
    again = AWSRequest("POST", f"http://{request.headers['Host']}{request.path}", headers=signed, data=body)
    again.context["timestamp"] = request.headers.get("x-amz-date", "")
    signer = SigV4Auth(Credentials(KEY, SECRET, TOKEN), "logs", REGION)
    text = signer.string_to_sign(again, signer.canonical_request(again))
    return given.endswith(f"Signature={signer.signature(text, again)}") and {"host", "x-amz-target"} <= set(names)


def _forwarded(gate: Gate, request: BaseHTTPRequestHandler, body: bytes, operation: str) -> tuple[int, bytes]:
    connection = HTTPConnection(gate.behind, timeout=30)
    try:
        kept = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        connection.request("POST", request.path, body=body, headers=kept)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if operation == "PutLogEvents" and gate.rejected is not None:
        data = json.dumps({"nextSequenceToken": "1", "rejectedLogEventsInfo": gate.rejected}).encode()
    return answer.status, data


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where moto is. It chooses its own port, and says which."""
    if not isolated():
        pytest.skip("runs in isolation, through the first test")
    log = tmp_path_factory.mktemp("moto") / "log"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MOTO_"))}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=file, stderr=file, env=env
        )
    try:
        until(lambda: "http://127.0.0.1:" in log.read_text() or process.poll() is not None, "moto")
        text = log.read_text()
        assert "http://127.0.0.1:" in text, text
        yield text.partition("http://")[2].split()[0]
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def gate(moto: str) -> Iterator[Gate]:
    gate = Gate(moto)
    with serving(_handler(gate)) as endpoint:
        gate.endpoint = endpoint
        yield gate
    assert not gate.broken


@pytest.fixture
def group() -> str:
    """Nobody else's: the service outlives the test."""
    return f"{GROUP}/{uuid.uuid4().hex}"


@pytest.fixture
def told() -> Iterator[Metadata]:
    with metadata_service() as told:
        yield told


@pytest.fixture
def service(gate: Gate, told: Metadata) -> CloudWatchLogs:
    return CloudWatchLogs(Imds(told.endpoint), {"AWS_ENDPOINT_URL_LOGS": gate.endpoint})


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.02)


@contextmanager
def pumping(service: CloudWatchLogs, group: str, stream: str = "job/1/0", **more: Any) -> Iterator[LogCopy]:
    pump = LogCopy(CloudWatchSink(service, group, stream), poll_s=0.05, **more)
    pump.start()
    try:
        yield pump
    finally:
        pump.stop()


def there(gate: Gate, group: str, stream: str = "job/1/0") -> list[str]:
    """What boto3 reads there, past the gate: 1 MB a page."""
    client, found, token = boto(gate), [], {}
    while True:
        page = client.get_log_events(logGroupName=group, logStreamName=stream, startFromHead=True, **token)
        if not page["events"]:
            return found
        found += [each["message"] for each in page["events"]]
        token = {"nextToken": page["nextForwardToken"]}


def boto(gate: Gate) -> Any:
    import boto3

    return boto3.client(
        "logs",
        region_name=REGION,
        endpoint_url=f"http://{gate.behind}",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )


NOW = time.time()


# ── What arrives ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_arrive_in_order_and_the_group_forgets(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    with pumping(service, group) as pump:
        pump.feed(b"one\ntw", NOW)
        pump.feed(b"o\n\nlast without an end", NOW + 1)
        assert pump.drain(PATIENCE_S)
        assert pump.warning is None
    assert there(gate, group) == ["one", "two", " ", "last without an end"]
    (made,) = boto(gate).describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    assert made["retentionInDays"] == cloudwatch.RETENTION_DAYS


def test_a_stream_is_made_once(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    with pumping(service, group) as pump:
        for line in range(3):
            pump.feed(b"line %d\n" % line, NOW + line)
            until(lambda line=line: gate.calls.count("PutLogEvents") > line, "the line was sent")  # type: ignore[misc]
        assert pump.drain(PATIENCE_S)
    assert gate.calls.count("PutLogEvents") == 3
    assert gate.calls.count("CreateLogStream") == 2, "once in vain, and once after the group was made"


def test_a_group_of_somebody_elses_keeps_its_retention(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    boto(gate).create_log_group(logGroupName=group)
    boto(gate).put_retention_policy(logGroupName=group, retentionInDays=3)
    with pumping(service, group) as pump:
        pump.feed(b"one\n", NOW)
        assert pump.drain(PATIENCE_S)
    (found,) = boto(gate).describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    assert found["retentionInDays"] == 3
    assert "CreateLogGroup" not in gate.calls and "PutRetentionPolicy" not in gate.calls


def test_long_lines_binary_junk_and_progress_bars(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    long = "ä€🙂" * 60_000
    never_ended = "z" * 700_000
    with pumping(service, group) as pump:
        for piece in (long.encode()[:100_001], long.encode()[100_001:], b"\n"):
            pump.feed(piece, NOW)
        pump.feed(b"\xff\xfe\x00 junk \x80" * 50_000 + b"\n", NOW)
        pump.feed(b"10%\r50%\r100%\r\nafter\r\n", NOW)
        for n in range(200):
            pump.feed(b"\r%4d%%" % n + b" " * 5000, NOW)
        pump.feed(b"\rdone\n", NOW)
        pump.feed(never_ended.encode(), NOW)
        assert pump.drain(PATIENCE_S)
    found = there(gate, group)
    cut = found.index("100%")
    whole = "".join(found[:cut])
    assert whole.startswith(long) and "�" not in whole[: len(long)], "a character was cut"
    assert whole[len(long) :] == (b"\xff\xfe\x00 junk \x80" * 50_000).decode("utf-8", "replace")
    assert found[cut : cut + 3] == ["100%", "after", "done"]
    assert "".join(found[cut + 3 :]) == never_ended


def test_bursts_go_in_batches_within_the_limits(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    lines = [f"{n:07d} {'x' * (n % 300)}" for n in range(25_000)]
    with pumping(service, group) as pump:
        pump.feed("".join(f"{line}\n" for line in lines).encode(), NOW)
        pump.feed(b"\n" * 30_000, NOW)
        assert pump.drain(PATIENCE_S)
    assert [each["message"] for batch in gate.batches for each in batch] == lines + [" "] * 30_000
    assert max(map(len, gate.batches)) == 10_000
    assert len(gate.batches) >= 8


def test_a_batch_spans_less_than_a_day(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    with pumping(service, group) as pump:
        for hour in range(0, 50, 5):
            pump.feed(b"%d\n" % hour, NOW - 50 * 3600 + hour * 3600)
        assert pump.drain(PATIENCE_S)
    assert [[each["message"] for each in batch] for batch in gate.batches] == [
        ["0", "5", "10", "15", "20"],
        ["25", "30", "35", "40", "45"],
    ]


# ── When it is away ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_outage_costs_nothing_and_what_fits_arrives_after_it(
    service: CloudWatchLogs, gate: Gate, group: str
) -> None:
    gate.trouble["*"] = ""
    with pumping(service, group, max_bytes=4000) as pump:
        pump.feed(b"before\n", NOW)
        until(lambda: pump.warning, "the warning")
        assert pump.warning is not None and "does not get the log" in pump.warning and group in pump.warning
        began = time.monotonic()
        for n in range(100_000):
            pump.feed(b"line %06d\nand half" % n, NOW + 1)
        assert time.monotonic() - began < 10.0, "the log pump would have waited"
        assert not pump.drain(0.2)
        gate.trouble.clear()
        assert pump.drain(PATIENCE_S)
        assert pump.warning is None
    first, *found = there(gate, group)
    assert first == "before", "it was being sent"
    assert "bytes are missing here" in found[0] and found[0].startswith("[stoker] ")
    missing = int(found[0].split()[1])
    # What there was, less what came; the half line after the gap is dropped as well.
    came = sum(len(line) + 1 for line in found[1:]) - 1
    assert missing + came <= 100_000 * len(b"line 000000\nand half") <= missing + came + 20
    assert found[-2:] == ["and halfline 099999", "and half"]
    assert came <= 4000


def test_a_refusal_is_told_and_a_right_that_comes_later_is_used(
    service: CloudWatchLogs, gate: Gate, group: str
) -> None:
    gate.trouble = {"CreateLogStream": "ResourceNotFoundException", "CreateLogGroup": "AccessDeniedException"}
    with pumping(service, group) as pump:
        pump.feed(b"one\n", NOW)
        until(lambda: pump.warning, "the warning")
        assert "AccessDeniedException" in str(pump.warning)
        gate.trouble.clear()
        assert pump.drain(PATIENCE_S)
    assert there(gate, group) == ["one"]


def test_a_retention_that_may_not_be_set_is_no_reason_not_to_send(
    service: CloudWatchLogs, gate: Gate, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloudwatch, "_RETENTION_AGAIN_S", 0.0)
    gate.trouble["PutRetentionPolicy"] = "AccessDeniedException"
    with pumping(service, group) as pump:
        pump.feed(b"one\n", NOW)
        assert pump.drain(PATIENCE_S)
        assert "keeps everything for ever" in str(pump.warning)
        gate.trouble.clear()
        pump.feed(b"two\n", NOW)
        assert pump.drain(PATIENCE_S)
        assert pump.warning is None
    (made,) = boto(gate).describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    assert made["retentionInDays"] == cloudwatch.RETENTION_DAYS


def test_what_is_refused_for_good_is_left_out(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    with pumping(service, group) as pump:
        gate.trouble["PutLogEvents"] = "InvalidParameterException"
        pump.feed(b"never\n", NOW)
        until(lambda: pump.warning, "the warning")
        gate.trouble.clear()
        pump.feed(b"after\n", NOW)
        assert pump.drain(PATIENCE_S)
        assert "1 lines are missing" in str(pump.warning)
    assert there(gate, group) == ["after"]


def test_a_group_that_is_deleted_is_made_again(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    with pumping(service, group) as pump:
        pump.feed(b"one\n", NOW)
        assert pump.drain(PATIENCE_S)
        boto(gate).delete_log_group(logGroupName=group)
        pump.feed(b"two\n", NOW)
        assert pump.drain(PATIENCE_S)
    assert there(gate, group) == ["two"]


def test_a_clock_that_is_wrong_is_told(service: CloudWatchLogs, gate: Gate, group: str) -> None:
    gate.rejected = {"tooNewLogEventStartIndex": 1}
    with pumping(service, group) as pump:
        pump.feed(b"one\ntwo\nthree\n", NOW)
        assert pump.drain(PATIENCE_S)
        assert "2 lines were not taken" in str(pump.warning)


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_credentials_that_have_ended_are_asked_for_again(
    gate: Gate, told: Metadata, service: CloudWatchLogs, group: str
) -> None:
    place = f"meta-data/iam/security-credentials/{ROLE}"
    right = told.values[place]
    told.values[place] = json.dumps(json.loads(right) | {"SecretAccessKey": "an old one"})
    service.create_group(group)
    assert gate.broken == ["CreateLogGroup is not signed by the role"]
    gate.broken.clear()
    gate.trouble["CreateLogStream"] = "ExpiredTokenException"
    told.values[place] = right
    with pytest.raises(CloudWatchLogsError, match="ExpiredTokenException"):
        service.create_stream(group, "s")
    assert gate.calls.count("CreateLogStream") == 2
    gate.trouble.clear()
    service.create_stream(group, "s")


def test_a_machine_without_a_profile_says_so(gate: Gate) -> None:
    with metadata_service() as told:
        del told.values["meta-data/iam/security-credentials/"]
        service = CloudWatchLogs(Imds(told.endpoint), {"AWS_ENDPOINT_URL": gate.endpoint})
        with pytest.raises(CloudWatchLogsError, match="no instance profile"):
            service.create_group("/a")
    assert gate.calls == []


@pytest.mark.parametrize(
    ("domain", "address"),
    [(None, "https://logs.us-east-1.amazonaws.com/"), ("amazonaws.com.cn", "https://logs.us-east-1.amazonaws.com.cn/")],
)
def test_the_endpoint_is_that_of_the_machines_region(domain: str | None, address: str) -> None:
    more = {"meta-data/services/domain": domain} if domain else {}
    with metadata_service(**more) as told:
        # The bucket's region, which is another matter.
        service = CloudWatchLogs(Imds(told.endpoint), {"AWS_REGION": "eu-west-1"})
        assert service._url() == address


def test_names_of_groups() -> None:
    assert is_group("/stoker/jobs") and is_group("a.b-c_d#1")
    assert not is_group("") and not is_group("a b") and not is_group("a:b") and not is_group("x" * 513)
    request.check(replace(make_spec(), logs=Logs(cloudwatch="/stoker/jobs")))
    with pytest.raises(UserError, match=r"logs\.cloudwatch: 'a b' is no name"):
        request.check(replace(make_spec(), logs=Logs(cloudwatch="a b")))


# ── On the node ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_attempt_and_node_has_a_stream_of_its_own(
    gate: Gate, told: Metadata, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_LOGS", gate.endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", told.endpoint)
    spec = replace(make_spec(), logs=Logs(cloudwatch=group))
    pair = Claimed(SPOT_A, 2)
    state = make_state(pair, Launched(2, nodes(2, 2)), Closed(2, "lost", "gone"), pair, Launched(5, nodes(5, 2)))
    for claim, rank in ((2, 0), (2, 1), (5, 0)):
        config = NodeConfig("s3://b/p", "ec2", "job-1", claim, rank, 2, f"i-{claim}-{rank}")
        pump = open_log_copy(spec, config, state)
        assert pump is not None
        pump.feed(b"claim %d rank %d\n" % (claim, rank), NOW)
        assert pump.drain(PATIENCE_S)
        pump.stop()
    streams = boto(gate).describe_log_streams(logGroupName=group)["logStreams"]
    assert sorted(each["logStreamName"] for each in streams) == ["job-1/1/0", "job-1/1/1", "job-1/2/0"]
    assert there(gate, group, log_stream("job-1", 2, 0)) == ["claim 5 rank 0"]
    assert open_log_copy(make_spec(), config, state) is None


def test_the_store_gets_its_log_whatever_becomes_of_the_copy(
    gate: Gate, service: CloudWatchLogs, group: str, tmp_path: Path
) -> None:
    gate.trouble["*"] = ""
    path = tmp_path / "train.log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    store = MemoryStore(lambda: at(0), is_local=True)
    with pumping(service, group) as pump:
        pumping_log = LogPump(store, "node", path, tap=pump.feed)
        pumping_log.start()
        assert pumping_log.drain(PATIENCE_S)
        pumping_log.stop()
        assert b"line 999\n" in last_chunk(store, "node/log/")
        gate.trouble.clear()
        assert pump.drain(PATIENCE_S)
    assert there(gate, group) == [f"line {n}" for n in range(1000)]


def test_a_service_that_hangs_holds_nobody_up(told: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "TIMEOUT_S", 30.0)
    release = threading.Event()

    class Hanging(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            release.wait(60)

    with serving(Hanging) as endpoint:
        service = CloudWatchLogs(Imds(told.endpoint), {"AWS_ENDPOINT_URL_LOGS": endpoint})
        with pumping(service, "/a") as pump:
            began = time.monotonic()
            pump.feed(b"one\n", NOW)
            assert not pump.drain(0.1)
            pump.stop()
            assert time.monotonic() - began < 10.0
            release.set()
