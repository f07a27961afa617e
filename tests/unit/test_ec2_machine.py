"""A machine on EC2 as its agent sees it: notices, hints, its address, the credentials of its role."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from aws_services import Metadata, bucket_service, metadata_service
from plain_store import wait_for
from watching_machines import closed_afterwards

from stoker.agent.node import AgentNode
from stoker.agent.notices import Notices
from stoker.cloudapi.aws.imds import Imds, ImdsError
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Event, Launched, NodeRef, Record, Submitted
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Exit, NoticeFact
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.providers import registry
from stoker.providers.ec2.machine import Ec2Machine
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.store.checkpoints import list_checkpoints
from stoker.store.node_facts import read_fact
from stoker.submit import agent_bundle
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.servers import isolated, pytest_isolated

pytestmark = pytest.mark.slow

SPOT = "meta-data/spot/instance-action"
REBALANCE = "meta-data/events/recommendations/rebalance"
MAINTENANCE = "meta-data/events/maintenance/scheduled"
NOW = datetime(2030, 5, 1, 12, 0, 0, tzinfo=timezone.utc)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_service() as told, closed_afterwards(Ec2Machine):
        told.values[MAINTENANCE] = "[]"
        yield told


def a_machine(metadata: Metadata, tmp_path: Path) -> Ec2Machine:
    return Ec2Machine(tmp_path, Imds(metadata.endpoint), poll_s=0.01)


def looks(metadata: Metadata, more: int = 12) -> None:
    """Until it has looked some more times, hints included."""
    before = len(metadata.asked)
    wait_for(lambda: len(metadata.asked) >= before + more)


def in_force(machine: Ec2Machine) -> NoticeFact:
    wait_for(lambda: machine.notice() is not None)
    found = machine.notice()
    assert found is not None
    return found


# ── Notices ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_news_is_no_notice(metadata: Metadata, tmp_path: Path) -> None:
    machine = a_machine(metadata, tmp_path)
    looks(metadata)
    assert machine.notice() is None


def test_a_reclaim_is_a_hard_notice_and_its_grace_is_by_ec2s_own_clock(metadata: Metadata, tmp_path: Path) -> None:
    metadata.date = NOW
    metadata.values[SPOT] = json.dumps({"action": "terminate", "time": "2030-05-01T12:01:48Z"})
    machine = a_machine(metadata, tmp_path)
    found = in_force(machine)
    assert found.hard and found.source == "EC2: spot terminate" and found.at == NOW
    assert 107 < found.grace_s <= 108
    metadata.values.clear()
    assert machine.notice() is found, "a notice is final, and its deadline does not move"


def test_the_grace_is_what_is_left_when_it_is_first_told(metadata: Metadata, tmp_path: Path) -> None:
    metadata.date = NOW
    metadata.values[SPOT] = json.dumps({"action": "terminate", "time": "2030-05-01T12:00:10Z"})
    machine = a_machine(metadata, tmp_path)
    wait_for(lambda: machine._reclaim is not None)
    time.sleep(0.3)
    assert in_force(machine).grace_s < 9.75


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", "not JSON", '{"action": "terminate", "time": "soon"}'])
def test_a_notice_that_cannot_be_read_is_one(metadata: Metadata, tmp_path: Path, text: str) -> None:
    metadata.values[SPOT] = text
    found = in_force(a_machine(metadata, tmp_path))
    assert found.hard and 0 < found.grace_s <= 60


def test_a_rebalance_recommendation_is_a_hint(metadata: Metadata, tmp_path: Path) -> None:
    metadata.values[REBALANCE] = json.dumps({"noticeTime": "2030-05-01T11:59:00Z"})
    machine = a_machine(metadata, tmp_path)
    found = in_force(machine)
    assert not found.hard and found.source == "EC2: rebalance recommendation"
    assert found.at == NOW - timedelta(minutes=1)
    looks(metadata)
    assert machine.notice() is found, "one hint asks once"


def test_maintenance_is_a_hint_unless_it_is_over(metadata: Metadata, tmp_path: Path) -> None:
    event = {"Code": "system-reboot", "EventId": "e-1", "NotBefore": "1 May 2030 13:00:00 GMT", "State": "completed"}
    metadata.values[MAINTENANCE] = json.dumps([event])
    machine = a_machine(metadata, tmp_path)
    looks(metadata)
    assert machine.notice() is None
    metadata.values[MAINTENANCE] = json.dumps([event | {"State": "active", "EventId": "e-2"}])
    found = in_force(machine)
    assert not found.hard and found.source == "EC2: maintenance, system-reboot"
    assert found.at == NOW + timedelta(hours=1)


def test_a_reclaim_wins_over_a_hint(metadata: Metadata, tmp_path: Path) -> None:
    metadata.values[REBALANCE] = json.dumps({"noticeTime": "2030-05-01T11:59:00Z"})
    machine = a_machine(metadata, tmp_path)
    assert not in_force(machine).hard
    metadata.values[SPOT] = json.dumps({"action": "terminate", "time": "2099-05-01T12:01:48Z"})
    wait_for(lambda: (found := machine.notice()) is not None and found.hard)


def test_a_service_that_fails_for_a_while_is_asked_again(metadata: Metadata, tmp_path: Path) -> None:
    metadata.trouble = [0, 500, 0, 503, 401]
    machine = a_machine(metadata, tmp_path)
    wait_for(lambda: not metadata.trouble)
    metadata.values[SPOT] = json.dumps({"action": "terminate", "time": "2099-05-01T12:01:48Z"})
    assert in_force(machine).hard


def test_one_that_is_closed_asks_nothing_any_more(metadata: Metadata, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    machine = a_machine(metadata, tmp_path)
    (asking,) = [one for one in set(threading.enumerate()) - before if one.name == "metadata"]
    machine.close()
    wait_for(lambda: not asking.is_alive())


def test_a_session_that_is_forgotten_is_begun_again(metadata: Metadata) -> None:
    imds = Imds(metadata.endpoint)
    assert imds.get("meta-data/instance-id") == "i-0123456789abcdef0"
    metadata.sessions.clear()
    assert imds.get("meta-data/instance-id") == "i-0123456789abcdef0"
    assert imds.get("meta-data/nothing") is None


def test_silence_is_an_error_and_not_an_answer() -> None:
    with pytest.raises(ImdsError, match="does not answer"):
        Imds("http://127.0.0.1:1").get("meta-data/instance-id")


def test_credentials_that_failed_are_none_of_use(metadata: Metadata) -> None:
    place = "meta-data/iam/security-credentials/"
    metadata.values[place + "stoker-node"] = json.dumps({"Code": "Failed", "Message": "AssumeRole denied"})
    with pytest.raises(ImdsError, match="AssumeRole denied"):
        Imds(metadata.endpoint).credentials()
    del metadata.values[place]
    assert Imds(metadata.endpoint).credentials() is None


def test_its_address_and_its_ports_are_its_own(metadata: Metadata, tmp_path: Path) -> None:
    metadata.trouble = [0, 500]
    machine = a_machine(metadata, tmp_path)
    assert machine.address() == "10.0.0.7"
    assert machine.master_port(29500) == 29500


def test_the_agent_gets_it_by_the_providers_name(
    metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
    for _ in range(2):
        assert isinstance(registry.machine("ec2", tmp_path), Ec2Machine)


# ── What the agent makes of them ──────────────────────────────────────────────────────────────────────────────────────


class Told:
    """A machine that says what the test says."""

    def __init__(self) -> None:
        self.now: NoticeFact | None = None

    def notice(self) -> NoticeFact | None:
        return self.now

    def master_port(self, preferred: int) -> int:
        return preferred

    def address(self) -> str:
        return "127.0.0.1"

    def wake_governors(self) -> None: ...

    def give_back(self) -> None: ...


def a_node(store: Store, machine: Told, root: Path) -> AgentNode:
    config = NodeConfig("memory://", "ec2", "job", 2, 0, 1, "i-1")
    return AgentNode(config, NodePaths(root), store, machine, keys.node("job", 2, 0, "i-1.0"))


def test_a_hint_counts_as_a_request_and_moves_no_deadline(tmp_path: Path) -> None:
    machine, store = Told(), MemoryStore(lambda: datetime.now(timezone.utc))
    notices = Notices(a_node(store, machine, tmp_path))
    for count in (1, 2):
        machine.now = NoticeFact(hard=False, source="hint", at=NOW + timedelta(seconds=count), grace_s=0.0)
        assert notices.poll() is None and notices.poll() is None
        assert notices.hints == count
    machine.now = NoticeFact(hard=True, source="reclaim", at=NOW, grace_s=60.0)
    assert notices.poll() is not None
    assert notices.hints == 2


def test_a_hint_does_not_make_it_deaf_to_a_shutdown(tmp_path: Path) -> None:
    machine, store = Told(), MemoryStore(lambda: datetime.now(timezone.utc))
    node = a_node(store, machine, tmp_path)
    notices = Notices(node)
    machine.now = NoticeFact(hard=False, source="hint", at=NOW, grace_s=0.0)
    assert notices.poll() is None
    notices.take_signal()
    deadline_s = notices.poll()
    assert deadline_s is not None and notices.poll() == deadline_s
    assert notices.notice is not None and notices.notice.hard
    assert notices.hints == 1
    assert notices._writer is not None
    notices._writer.join(60)
    found = read_fact(store, keys.notice(node.key), NoticeFact)
    assert isinstance(found, Known) and found.value is not None and found.value.value.hard


def test_a_slow_hint_does_not_hide_the_reclaim_that_follows_it(tmp_path: Path) -> None:
    hold = threading.Event()
    written: list[threading.Thread] = []

    def slow(method: str, key: str) -> Fault | None:
        if method == "put":
            written.append(threading.current_thread())
            if len(written) == 1:
                hold.wait(60)
        return None

    machine, store = Told(), MemoryStore(lambda: datetime.now(timezone.utc), faults=slow)
    node = a_node(store, machine, tmp_path)
    notices = Notices(node)
    machine.now = NoticeFact(hard=False, source="hint", at=NOW, grace_s=0.0)
    notices.poll()
    wait_for(lambda: len(written) == 1)
    machine.now = NoticeFact(hard=True, source="reclaim", at=NOW, grace_s=60.0)
    notices.poll()
    wait_for(lambda: len(written) == 2)
    hold.set()
    written[0].join(60)
    assert notices._writer is not None
    notices._writer.join(60)
    found = read_fact(store, keys.notice(node.key), NoticeFact)
    assert isinstance(found, Known) and found.value is not None and found.value.value.hard


SCRIPT = """
import sys, time
from stoker import train

heard = 0
while not train.interrupted():
    if train.save_requested():
        heard += 1
        with train.checkpoint(f"hint-{heard}", step=heard) as folder:
            (folder / "weights").write_text("x" * heard)
        print("asked to save", heard, flush=True)
    time.sleep(0.01)
print("leaving", flush=True)
"""


def append(store: Store, seq: int, event: Event) -> None:
    assert job_log.append(store, "job-abcd", seq, Record(job_log.new_token(), "test", "for the test", event))


def submit(store: Store, run: tuple[str, ...], instance: str) -> None:
    data = codec.dumps(Submission("job-abcd", Spec(name="job", run=run), "test"))
    store.put(keys.spec("job-abcd"), data)
    append(store, 1, Submitted(spec_digest=codec.digest(data), submitter="test"))
    append(store, 2, Claimed(Offering("ec2", "m5.large", "us-east-1a", spot=True), nodes=1))
    append(store, 3, Launched(claim=2, nodes=(NodeRef(0, instance),)))


def test_the_packed_agent_trains_saves_on_hints_and_leaves_on_a_reclaim(
    metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    with tarfile.open(agent_bundle.build_archive(agent_bundle.local_tag()).path) as archive:
        archive.extractall(tmp_path / "agent")
    (tmp_path / "train.py").write_text(SCRIPT)
    store = open_store(str(tmp_path / "store"))
    submit(store, (sys.executable, str(tmp_path / "train.py")), "i-1")
    root = tmp_path / "node"
    root.mkdir()
    (root / "node.json").write_bytes(codec.dumps(NodeConfig(store.url, "ec2", "job-abcd", 2, 0, 1, "i-1")))
    # As the service does it, but for how often the metadata are asked.
    code = """
import importlib, runpy, sys
sys.path.insert(0, sys.argv.pop(1))
importlib.import_module("stoker.providers.ec2.machine").POLL_S = 0.02
runpy.run_module("stoker.agent", run_name="__main__")
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "AWS_"))}
    environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = metadata.endpoint
    with (tmp_path / "agent.log").open("wb") as output:
        agent = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "agent"), str(root)],
            env=environ,
            stdout=output,
            stderr=output,
        )
    try:
        saved = lambda: [one.name for one in list_checkpoints(store, "job-abcd") if one.complete]  # noqa: E731
        key = keys.node("job-abcd", 2, 0, keys.boot("i-1", 0))
        wait_for(lambda: agent.poll() is None and store.head(keys.heartbeat(key)) is not None)
        metadata.values[REBALANCE] = json.dumps({"noticeTime": "2030-05-01T11:59:00Z"})
        wait_for(lambda: saved() == ["hint-1"])
        metadata.values[MAINTENANCE] = json.dumps([{"Code": "system-reboot", "EventId": "e-2"}])
        wait_for(lambda: saved() == ["hint-1", "hint-2"])
        assert agent.poll() is None
        metadata.date = NOW
        metadata.values[SPOT] = json.dumps({"action": "terminate", "time": "2030-05-01T12:00:30Z"})
        assert agent.wait(120) == 0, "exit 0 is what powers the machine off"
    finally:
        agent.kill()
        agent.wait()
    found = read_fact(store, keys.exit_(key), Exit)
    assert isinstance(found, Known) and found.value is not None
    left = found.value.value
    assert (left.outcome, left.why, left.started, left.commits) == ("interrupted", "notice", True, 2)
    assert "asked to save 2" in "\n".join(left.tail) and "asked to save 3" not in "\n".join(left.tail)
    assert any("notice from EC2: maintenance, system-reboot: asked to save, going on" in line for line in left.tail)
    notice = read_fact(store, keys.notice(key), NoticeFact)
    assert isinstance(notice, Known) and notice.value is not None and notice.value.value.hard


# ── The bucket, with the credentials of the role ──────────────────────────────────────────────────────────────────────

if isolated():

    def test_the_store_is_reached_with_the_roles_credentials(
        metadata: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint + "/")
        with bucket_service() as bucket:
            monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
            store = open_store("s3://bucket/prefix")
            store.put("work/a b", b"hello")
            found = store.get("work/a b")
            assert found is not None and found.data == b"hello"
            assert bucket.refused == [], "botocore would have signed it otherwise"
        assert metadata.sessions, "version 2 of the service was used"

    def test_keys_in_the_environment_win(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        with bucket_service() as bucket:
            monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
            with pytest.raises(Exception, match="SignatureDoesNotMatch"):
                open_store("s3://bucket/prefix").put("work/a", b"")
        assert metadata.asked == []

else:

    def test_the_store_on_a_node() -> None:
        """Where more than loopback can be reached, no cloud library is used."""
        pytest_isolated(f"{__file__}", "-k", "roles_credentials or keys_in_the_environment")
