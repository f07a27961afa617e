"""A machine that never had an agent: what it said is in the job's log, and people are shown where to look further."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker import client
from stoker.cli import logs as logs_command
from stoker.cli import main
from stoker.governor.connected_providers import Fleet
from stoker.model import codec, keys
from stoker.model.errors import Transient
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record, Submitted
from stoker.model.node_facts import Heartbeat
from stoker.model.offerings import Offering
from stoker.model.spec import Logs, Spec
from stoker.model.submission import Submission
from stoker.providers import registry
from stoker.providers.base import LaunchOrder
from stoker.providers.console_links import NodeIdentity
from stoker.providers.ec2 import links, tags
from stoker.providers.gce import names
from stoker.read.logs import LogLine, NodeLog, follow, read_lines, read_tail, silent_nodes
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.store.log_chunks import Segment, encode_segment
from stoker.store.node_facts import BOOT_FAILED
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import at, make_spec, nodes

JOB = "sim-0001"
FIRST = NodeLog(attempt=1, claim=2, rank=0, instance="i-2-0")
SECOND = NodeLog(attempt=2, claim=5, rank=0, instance="i-5-0")
SAID = f"cloud-init runs\r\n\nstoker: found /usr/bin/python3 (3.9.2)\n{BOOT_FAILED}too old \xff\n"
SHOWN = [
    "[boot] cloud-init runs",
    "[boot] stoker: found /usr/bin/python3 (3.9.2)",
    f"[boot] {BOOT_FAILED}too old \xff",
]
OFFERING = Offering("ec2", "c7i.large", "us-east-1b", spot=False, region="us-east-1", price=0.1)


def folder(node: NodeLog, boot: int = 0) -> str:
    return keys.node(JOB, node.claim, node.rank, keys.boot(node.instance, boot))


def put_boot(store: Store, node: NodeLog, said: str = SAID) -> None:
    store.put(keys.boot_output(folder(node)), said.encode())


def put_log(store: Store, node: NodeLog, text: bytes) -> None:
    beat = Heartbeat(beat=1, phase="training", at=at(0), interval_s=1.0)
    store.put(keys.heartbeat(folder(node)), codec.dumps(beat))
    store.put(keys.log_chunk(folder(node), 0), encode_segment(Segment(2_000_000_000_000, 0, text)))


def texts(lines: Iterable[LogLine]) -> list[tuple[int, str]]:
    return [(line.attempt, line.text) for line in lines]


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(lambda: at(0), is_local=True)


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_stands_in_its_attempts_place(memory: MemoryStore) -> None:
    put_boot(memory, FIRST)
    put_log(memory, SECOND, b"hello\n")
    wanted = [*((1, line) for line in SHOWN), (2, "hello")]
    assert texts(read_lines(memory, JOB, [SECOND, FIRST])) == wanted
    assert texts(read_tail(memory, JOB, [FIRST, SECOND], 2)) == wanted[-2:]
    assert texts(read_tail(memory, JOB, [FIRST], 2)) == wanted[1:3]
    assert read_lines(memory, JOB, [FIRST]).__next__().at == at(0).timestamp()


def test_where_there_is_an_agent_its_log_counts(memory: MemoryStore) -> None:
    put_boot(memory, FIRST)
    put_log(memory, FIRST, b"hello\n")
    assert texts(read_lines(memory, JOB, [FIRST])) == [(1, "hello")]
    memory.delete([keys.log_chunk(folder(FIRST), 0)])
    assert texts(read_lines(memory, JOB, [FIRST])) == []


def test_only_the_end_of_a_long_one_is_read(memory: MemoryStore) -> None:
    put_boot(memory, FIRST, "x" * 3_000_000 + "\nthe end\n")
    *rest, last = read_lines(memory, JOB, [FIRST])
    assert last.text == "[boot] the end" and sum(len(line.text) for line in rest) < 1_100_000


def test_it_is_followed_and_comes_once(memory: MemoryStore) -> None:
    """First nothing, then the failed boot, then the next attempt."""
    steps: list[Callable[[], None]] = [
        lambda: None,
        lambda: put_boot(memory, FIRST),
        lambda: None,
        lambda: put_log(memory, SECOND, b"hello\n"),
        lambda: None,
    ]
    done = 0

    def watch() -> tuple[list[NodeLog], bool]:
        return [FIRST, SECOND] if done > 2 else [FIRST], done == len(steps)

    def sleep(_seconds: float) -> None:
        nonlocal done
        steps[done]()
        done += 1

    assert texts(follow(memory, JOB, watch, sleep=sleep)) == [*((1, line) for line in SHOWN), (2, "hello")]


def test_a_node_that_is_heard_of_costs_no_more_than_one_look(memory: MemoryStore) -> None:
    put_log(memory, FIRST, b"hello\n")
    asked: list[str] = []

    def note(_operation: str, key: str) -> None:
        asked.append(key)

    looking = memory.client(note)
    rounds = 0

    def watch() -> tuple[list[NodeLog], bool]:
        nonlocal rounds
        rounds += 1
        return [FIRST], rounds == 50

    list(follow(looking, JOB, watch, sleep=lambda _s: None))
    assert keys.boot_output(folder(FIRST)) not in asked


def test_who_never_wrote_a_word(memory: MemoryStore) -> None:
    put_boot(memory, FIRST)
    assert silent_nodes(memory, JOB, [SECOND, FIRST]) == [SECOND]


# ── The command line ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
        return capsys.readouterr().out

    return run


def put_job(store: Store, *events: Event, spec: Spec | None = None) -> None:
    spec = spec or make_spec()
    spec = replace(spec, resources=replace(spec.resources, provider="ec2"))
    data = codec.dumps(Submission(JOB, spec, "jane"))
    store.put(keys.spec(JOB), data)
    for seq, event in enumerate([Submitted(codec.digest(data), "jane"), *events], 1):
        assert job_log.append(store, JOB, seq, Record(token=job_log.new_token(), by="t", reason="because", event=event))


CLAIM = Claimed(OFFERING, 1)
TWICE: tuple[Event, ...] = (
    CLAIM,
    Launched(2, nodes(2)),
    Closed(2, "infrastructure", "boot-failed", restart=True),
    CLAIM,
    Launched(5, nodes(5)),
    Ended("failed", "boot-failed", 5, closing=Closed(5, "failed", "boot-failed", tail=("boot failed: too old",))),
)


class Console:
    """A provider that keeps consoles."""

    def __init__(self, outputs: dict[str, str]) -> None:
        self.outputs = outputs
        self.asked: list[tuple[str, str | None]] = []

    def console(self, instance: str, region: str | None = None) -> str | None:
        self.asked.append((instance, region))
        if instance not in self.outputs:
            raise Transient("not now")
        return self.outputs[instance]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    console = Console({})
    monkeypatch.setattr(Fleet, "provider", lambda self, name: console)
    return console


@pytest.mark.parametrize("following", [(), ("-f",)], ids=["logs", "logs -f"])
def test_logs_prints_the_boot_or_else_the_console(
    store: Store, stoker: Callable[..., str], console: Console, following: tuple[str, ...]
) -> None:
    put_job(store, *TWICE)
    put_boot(store, FIRST)
    console.outputs["i-5-0"] = "Linux boots\r\n\x1b[32mkernel panic\n"
    out = stoker("logs", JOB, *following)
    assert out.splitlines() == [*SHOWN, "[boot] Linux boots", "[boot] \x1b[32mkernel panic"]
    assert console.asked == [("i-5-0", "us-east-1")], "only of the one that left nothing in the store"


def test_logs_prints_what_it_can(store: Store, stoker: Callable[..., str], console: Console) -> None:
    put_job(store, *TWICE)
    put_boot(store, FIRST)
    assert stoker("logs", JOB).splitlines() == SHOWN
    assert stoker("logs", JOB, "--attempt", "2") == ""
    console.outputs["i-5-0"] = "one\ntwo\nthree\n"
    assert stoker("logs", JOB, "--attempt", "2", "--tail", "2").splitlines() == ["[boot] two", "[boot] three"]
    assert stoker("logs", JOB, "--tail", "0") == ""


def test_a_machine_that_trained_or_still_boots_is_not_asked_for(
    store: Store, stoker: Callable[..., str], console: Console
) -> None:
    trained = Closed(2, "lost", "gone", restart=True, trained_s=5.0)
    put_job(store, CLAIM, Launched(2, nodes(2)), trained, CLAIM, Launched(5, nodes(5)))
    assert stoker("logs", JOB) == ""
    assert console.asked == []


def test_a_provider_without_a_console_has_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put_job(store, *TWICE)
    monkeypatch.setattr(Fleet, "provider", lambda self, name: object())
    state = job_log.read(store, JOB)
    assert state is not None
    assert list(logs_command.consoles(store, state, [FIRST, SECOND])) == []


# ── Where to look further ─────────────────────────────────────────────────────────────────────────────────────────────


def test_show_names_the_machine_and_where_it_is(store: Store, stoker: Callable[..., str]) -> None:
    put_job(store, *TWICE, spec=replace(make_spec(), logs=Logs(cloudwatch="/stoker/jobs")))
    out = stoker("show", JOB)
    page = "https://us-east-1.console.aws.amazon.com/ec2/home?region=us-east-1#InstanceDetails:instanceId=i-5-0"
    stream = (
        "https://us-east-1.console.aws.amazon.com/cloudwatch/home?region=us-east-1"
        "#logsV2:log-groups/log-group/$252Fstoker$252Fjobs/log-events/sim-0001$252F2$252F0"
    )
    assert f"sim-0001-2-0 (i-5-0)  {page}" in out and stream in out and "boot failed: too old" in out
    found: dict[str, Any] = json.loads(stoker("show", JOB, "--json"))
    told = [node for attempt in found["attempts"] for node in attempt["nodes"]]
    assert [node["instance"] for node in told] == ["i-2-0", "i-5-0"]
    assert told[1]["link"] == page and told[1]["log_link"] == stream
    assert told[0]["log_link"].endswith("sim-0001$252F1$252F0")


def test_a_provider_without_a_page_has_no_link(store: Store, stoker: Callable[..., str]) -> None:
    local = replace(OFFERING, provider="local", region=None)
    put_job(store, Claimed(local, 1), Launched(2, nodes(2)))
    assert client.summary(JOB, store).attempts[0].nodes[0].link is None
    assert "https://" not in stoker("show", JOB)
    assert registry.links("local") is None and registry.links("not installed") is None


def test_show_names_machines_as_the_console_does(store: Store, stoker: Callable[..., str]) -> None:
    offering = Offering("gce", "n2-standard-2", "us-central1-a", True, region="vision-1/us-central1")
    pair = Launched(2, (NodeRef(0, "us-central1-a.41"), NodeRef(1, "us-central1-a.42")))
    put_job(store, Claimed(offering, 2), pair, spec=replace(make_spec(), nodes=2))
    order = LaunchOrder(JOB, "sim", 2, 2, 1, store.url, make_spec(), "jane", offering)
    out = stoker("show", JOB)
    for rank, name in enumerate(names.machines(order)):
        assert name.startswith(f"stoker-{JOB}-2-") and f"node {rank} {name} (us-central1-a.4{rank + 1})  https" in out


def test_names_are_those_that_were_asked_for() -> None:
    """Of one machine and of several, on EC2."""
    for count in (1, 2):
        order = LaunchOrder(JOB, "sim", 5, count, 3, "s3://b", make_spec(), "jane", OFFERING)
        asked = tags.of_order(order, 0 if count == 1 else None)["Name"]
        assert links.name(NodeIdentity("s3://b", JOB, 5, 3, count, 0)) == asked


def test_each_partition_has_its_console() -> None:
    assert links.machine("i-1", None) is None and links.log(Logs(cloudwatch="/g"), "job", 1, 0, None) is None
    assert "//cn-north-1.console.amazonaws.cn/ec2/home?region=cn-north-1#" in str(links.machine("i-1", "cn-north-1"))
    assert "//console.amazonaws-us-gov.com/ec2/home?region=us-gov-west-1#" in str(links.machine("i-1", "us-gov-west-1"))


def test_on_compute_engine_a_query_finds_what_is_gone() -> None:
    from stoker.providers.gce import links as google

    node = "us-central1-a.42"
    assert google.machine(node, "vision-1/us-central1") == (
        "https://console.cloud.google.com/compute/instancesDetail/zones/us-central1-a/instances/42?project=vision-1"
    )
    assert google.own_logs(node, None) == 'resource.type="gce_instance" AND resource.labels.instance_id="42"'
    assert google.own_logs_link(node, None) is None
    assert google.own_logs_link(node, "vision-1/us-central1") == (
        "https://console.cloud.google.com/logs/query;query=resource.type%3D%22gce_instance%22%20AND%20"
        "resource.labels.instance_id%3D%2242%22;duration=P30D?project=vision-1"
    )
    assert google.log(Logs(), "job", 1, 0, "vision-1/us-central1") is None
    shown = google.log(Logs(cloud_logging="stoker"), "job", 1, 0, "vision-1/us-central1")
    assert shown is not None and "labels.job%3D%22job%22" in shown and shown.endswith("?project=vision-1")
