"""What the training prints reaches Cloud Logging, within its limits, once, and nothing ever waits for it."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from google_services import NUMBER, PROJECT, ZONE, Logging, Metadata, logging_service, metadata_server, serving
from plain_store import wait_for

import stoker.cloudapi.google
from stoker.agent.logs.cloud_copy import LogCopy, open_log_copy
from stoker.agent.logs.cloud_logging import CloudLoggingSink
from stoker.cloudapi.google import logs
from stoker.cloudapi.google.logs import (
    CloudLogging,
    CloudLoggingError,
    GoogleLogEntry,
    GoogleLogSource,
    is_log,
    log_name,
    query,
)
from stoker.cloudapi.google.metadata import Metadata as Asking
from stoker.model.errors import UserError
from stoker.model.log_entries import Claimed, Closed, Launched
from stoker.model.node_config import NodeConfig
from stoker.model.spec import Logs
from stoker.providers.gce import request
from tests.support.sim_data import SPOT_A, make_spec, make_state, nodes

PATIENCE_S = 60.0
NOW = 1_800_000_000.0


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_server() as told:
        yield told


@pytest.fixture
def service(metadata: Metadata) -> Iterator[Logging]:
    with logging_service(metadata) as service:
        yield service


def client(metadata: Metadata, endpoint: str, log: str = "stoker") -> CloudLogging:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": endpoint}
    return CloudLogging(log, logs.labels("job-1", 2, 0), GoogleLogSource(NUMBER, ZONE), Asking(metadata.host), environ)


@contextmanager
def copying(service: Logging, **more: Any) -> Iterator[LogCopy]:
    sink = CloudLoggingSink(client(service.metadata, service.endpoint), "stoker")
    copy = LogCopy(sink, poll_s=0.05, **more)
    copy.start()
    try:
        yield copy
    finally:
        copy.stop()


# ── What arrives ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_arrive_in_order_labelled_and_with_their_machine(service: Logging) -> None:
    with copying(service) as copy:
        copy.feed(b"one\ntw", NOW)
        copy.feed(b"o\n\nlast without an end", NOW + 1.5)
        assert copy.drain(PATIENCE_S) and copy.warning is None
    assert service.texts == ["one", "two", " ", "last without an end"]
    first, last = service.entries[0], service.entries[-1]
    assert first["logName"] == f"projects/{PROJECT}/logs/stoker"
    assert first["labels"] == {"job": "job-1", "attempt": "2", "node": "0"}
    where = {"project_id": PROJECT, "instance_id": NUMBER, "zone": ZONE}
    assert first["resource"] == {"type": "gce_instance", "labels": where}
    assert (first["timestamp"], last["timestamp"]) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:00:01.500Z")


def test_what_is_long_odd_or_plenty_stays_within_the_limits(service: Logging) -> None:
    long = "ä€🙂" * 60_000
    zeros = b"\x00" * 1_000_000
    lines = [f"{n:06d}" for n in range(5_500)]
    with copying(service) as copy:
        copy.feed(long.encode() + b"\n" + zeros + b"\n", NOW)
        copy.feed("".join(f"{line}\n" for line in lines).encode() + b"10%\r50%\r100%\r\n", NOW)
        assert copy.drain(PATIENCE_S)
    whole = "".join(service.texts[: -len(lines) - 1])
    assert whole == long + zeros.decode(), "nothing is lost, and no character is cut"
    assert service.texts[-len(lines) - 1 :] == [*lines, "100%"]
    assert max(map(len, service.batches)) == 1000 and len(service.batches) >= 6
    # Zeros are six times as long in JSON: what counts is what is sent.
    assert service.most_body <= logs.MOST_REQUEST_BYTES + 1000


def test_a_lost_reply_doubles_nothing(service: Logging) -> None:
    service.lose = 2
    with copying(service) as copy:
        copy.feed(b"one\ntwo\n", NOW)
        assert copy.drain(PATIENCE_S) and copy.warning is None
    assert len(service.batches) == 3, "it was sent again"
    assert service.texts == ["one", "two"]


def test_two_agents_on_one_machine_do_not_hide_each_others_lines(service: Logging) -> None:
    for text in (b"first\n", b"second\n"):
        with copying(service) as copy:
            copy.feed(text, NOW)
            assert copy.drain(PATIENCE_S)
    assert sorted(service.texts) == ["first", "second"]


# ── When it is away or refuses ────────────────────────────────────────────────────────────────────────────────────────


def test_an_outage_costs_nothing_and_is_told_where_it_was(service: Logging) -> None:
    service.trouble = ""
    with copying(service, max_bytes=1000) as copy:
        copy.feed(b"before\n", NOW)
        wait_for(lambda: copy.warning is not None)
        assert str(copy.warning).startswith("logs.cloud_logging: stoker does not get the log: ")
        for n in range(10_000):
            copy.feed(b"line %06d\n" % n, NOW + 1)
        assert not copy.drain(0.1)
        service.trouble = None
        assert copy.drain(PATIENCE_S) and copy.warning is None
    assert service.texts[0] == "before" and service.texts[-1] == "line 009999"
    assert "bytes are missing here: Cloud Logging took too long; the store has them" in service.texts[1]
    assert len(service.texts) < 100


def test_a_right_that_is_missing_is_named_and_used_when_it_comes(service: Logging) -> None:
    service.trouble = "PERMISSION_DENIED"
    with copying(service) as copy:
        copy.feed(b"one\n", NOW)
        wait_for(lambda: copy.warning is not None)
        assert "PERMISSION_DENIED" in str(copy.warning) and "roles/logging.logWriter" in str(copy.warning)
        service.trouble = None
        assert copy.drain(PATIENCE_S) and copy.warning is None
    assert service.texts == ["one"]


def test_what_is_refused_for_good_is_left_out(service: Logging) -> None:
    with copying(service) as copy:
        service.trouble = "INVALID_ARGUMENT"
        copy.feed(b"never\n", NOW)
        wait_for(lambda: copy.warning is not None)
        service.trouble = None
        copy.feed(b"after\n", NOW)
        assert copy.drain(PATIENCE_S)
        assert "1 lines are missing in stoker" in str(copy.warning)
    assert service.texts == ["after"]


def test_of_a_batch_the_good_lines_are_taken(service: Logging) -> None:
    service.refuses = {"two"}
    with copying(service) as copy:
        copy.feed(b"one\ntwo\nthree\n", NOW)
        assert copy.drain(PATIENCE_S)
        assert "1 lines were not taken" in str(copy.warning)
    assert service.texts == ["one", "three"] and len(service.batches) == 1


def test_a_token_that_has_ended_is_asked_for_again(metadata: Metadata, service: Logging) -> None:
    writing = client(metadata, service.endpoint)
    writing.write([GoogleLogEntry(1, "a", "one")])
    metadata.tokens += 1
    assert writing.write([GoogleLogEntry(2, "b", "two")]) == 0
    assert service.texts == ["one", "two"] and service.calls == 3


def test_a_machine_without_an_account_says_so(metadata: Metadata, service: Logging) -> None:
    metadata.has_account = False
    with pytest.raises(CloudLoggingError, match="no service account"):
        client(metadata, service.endpoint).write([GoogleLogEntry(1, "a", "one")])
    assert service.calls == 0


def test_a_service_that_hangs_holds_nobody_up(metadata: Metadata) -> None:
    release = threading.Event()

    class Hanging(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            release.wait(60)

    with serving(Hanging) as host:
        copy = LogCopy(CloudLoggingSink(client(metadata, f"http://{host}/"), "stoker"), poll_s=0.05)
        copy.start()
        began_s = time.monotonic()
        copy.feed(b"one\n", NOW)
        assert not copy.drain(0.1)
        copy.stop()
        assert time.monotonic() - began_s < 8.0
        release.set()


# ── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_of_logs() -> None:
    assert is_log("stoker") and is_log("team/a.b-c_d") and not is_log("") and not is_log("a b") and not is_log("é")
    assert not is_log("x" * 512)
    assert log_name("vision-1", "team/jobs") == "projects/vision-1/logs/team%2Fjobs"
    request.check(replace(make_spec(), logs=Logs(cloud_logging="team/jobs")))
    with pytest.raises(UserError, match=r"logs\.cloud_logging: 'a b' is no name"):
        request.check(replace(make_spec(), logs=Logs(cloud_logging="a b")))


def test_the_query_finds_what_was_written(service: Logging) -> None:
    with copying(service) as copy:
        copy.feed(b"one\n", NOW)
        assert copy.drain(PATIENCE_S)
    (entry,) = service.entries
    whole = query(PROJECT, "stoker", "job-1", 2, 0)
    assert whole == (
        f'logName="projects/{PROJECT}/logs/stoker" AND labels.job="job-1" AND labels.attempt="2" AND labels.node="0"'
    )
    for part in whole.split(" AND "):
        name, _, value = part.partition("=")
        head, _, key = name.partition(".")
        assert (entry[head][key] if key else entry[head]) == value.strip('"')
    assert query(PROJECT, "stoker", "job-1") == f'logName="projects/{PROJECT}/logs/stoker" AND labels.job="job-1"'


@pytest.mark.parametrize("name", ["metadata", "logs", "__init__"])
def test_it_parses_on_python_3_6(name: str) -> None:
    text = (Path(stoker.cloudapi.google.__file__).parent / f"{name}.py").read_text()
    tree = ast.parse(text, feature_version=(3, 6))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"__future__", "dataclasses"}


# ── On the node ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_attempt_and_node_is_labelled_by_its_own(
    metadata: Metadata, service: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING", service.endpoint)
    monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
    spec = replace(make_spec(), logs=Logs(cloud_logging="team/jobs"))
    pair = Claimed(SPOT_A, 2)
    state = make_state(pair, Launched(2, nodes(2, 2)), Closed(2, "lost", "gone"), pair, Launched(5, nodes(5, 2)))
    for claim, rank in ((2, 0), (2, 1), (5, 0)):
        config = NodeConfig("gs://b/p", "gce", "job-1", claim, rank, 2, f"us-central1-c.{claim}{rank}")
        copy = open_log_copy(spec, config, state)
        assert copy is not None
        copy.feed(b"line\n", NOW)
        assert copy.drain(PATIENCE_S)
        copy.stop()
    told = [(each["labels"]["attempt"], each["labels"]["node"]) for batch in service.batches for each in batch]
    assert told == [("1", "0"), ("1", "1"), ("2", "0")]
    last = service.batches[-1][0]
    assert last["logName"].endswith("/logs/team%2Fjobs")
    assert last["resource"]["labels"] == {"project_id": PROJECT, "instance_id": "50", "zone": "us-central1-c"}
    assert open_log_copy(make_spec(), config, state) is None
    assert open_log_copy(spec, config, None) is None and open_log_copy(spec, replace(config, claim=99), state) is None


def test_a_job_that_asks_for_no_copy_imports_no_http() -> None:
    """An agent is imported at every boot, and http is the slowest part of it."""
    source = Path(stoker.__file__).parent / "agent" / "logs" / "cloud_copy.py"
    top = {name for node in ast.parse(source.read_text()).body for name in _imported(node)}
    assert not any(name.startswith(("stoker.cloudapi.google", "stoker.cloudapi.aws", "http")) for name in top)


def _imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
