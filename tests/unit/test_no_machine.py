"""What a person is told of a job that has no machine, never had one, or loses it at this moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google_project import BASE, NUMBER, PLACE, ZONE, Google, connected

from stoker import client
from stoker.cli import main
from stoker.governor import background
from stoker.jobfile import Job
from stoker.model.errors import NotFound, ProviderError, UserError
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record
from stoker.model.offerings import Offering
from stoker.providers import registry
from stoker.providers.base import ShellRequest
from stoker.providers.gce.errors import response_error
from stoker.store import job_log
from stoker.store.base import Store, open_store

OFFER = Offering(provider="local", machine="m", zone="z", spot=True, price=1.0)
WHY = "n1: Quota 'A2_CPUS' exceeded.  Limit: 0.0"
MACHINE = f"{BASE}/zones/{ZONE}/instances/{NUMBER}"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(background, "ensure_governed", lambda _store, _jobs: background.GovernorChoice())
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return open_store(str(tmp_path / "store"))


def submitted(store: Store, *events: Event) -> str:
    job = client.submit(Job(run="python train.py", name="train"), store=store)
    for seq, event in enumerate(events, 2):
        assert job_log.append(store, job, seq, Record(token=job_log.new_token(), by="t", reason=WHY, event=event))
    return job


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as left:
        main(words)
    return left.value.code, capsys.readouterr().err


REFUSED = (Claimed(OFFER, nodes=1), Closed(claim=2, outcome="refused", rule="QuotaExceeded"))


@pytest.mark.parametrize("following", [(), ("-f",)])
def test_the_log_of_a_job_that_never_had_a_machine_says_why(
    store: Store, capsys: pytest.CaptureFixture[str], following: tuple[str, ...]
) -> None:
    job = submitted(store, *REFUSED, Ended(outcome="failed", rule="no-offering"))
    assert run(capsys, "logs", *following, job) == (0, f"{job} never had a machine: {WHY}\n")


def test_the_log_of_a_job_that_waits_says_so(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    job = submitted(store, *REFUSED)
    assert run(capsys, "logs", job)[1].startswith(f"{job} has no machine yet; `stoker explain")


def test_a_log_without_lines_of_a_job_that_had_one_is_just_empty(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    job = submitted(store, Claimed(OFFER, nodes=1), Launched(claim=2, nodes=(NodeRef(0, "i-1"),)))
    assert run(capsys, "logs", job) == (0, "")


# ── `stoker interrupt` ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_that_is_gone_by_now_cannot_be_interrupted(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.providers.local.provider import LocalProvider

    def gone(*_: object) -> str:
        raise NotFound("/compute/v1/projects/p: The resource was not found (notFound)")

    monkeypatch.setattr(LocalProvider, "interrupt", gone)
    job = submitted(store, Claimed(OFFER, nodes=1), Launched(claim=2, nodes=(NodeRef(0, "i-1"),)))
    code, err = run(capsys, "interrupt", job)
    assert (code, err) == (2, f"stoker: {job} has no machine now; `stoker show {job}` shows why\n")
    with pytest.raises(UserError, match="has no machine now"):
        client.interrupt(job, store)


def test_a_job_that_has_ended_is_said_to_have_ended(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    job = submitted(store, Claimed(OFFER, nodes=1), Launched(claim=2, nodes=(NodeRef(0, "i-1"),)))
    state = job_log.read(store, job)
    assert state is not None
    ended = Record(token="t", by="t", reason="stopped", event=Ended("stopped", "stop", 2))
    assert job_log.append(store, job, state.seq + 1, ended)
    told = f"stoker: {job} has ended (stopped), and has no machine any more\n"
    for command in (("interrupt", job), ("exec", job, "--", "true")):
        assert run(capsys, *command) == (2, told)


@pytest.mark.parametrize(("nodes", "there"), [(1, "only node 0"), (3, "nodes 0 to 2")])
def test_a_node_that_there_is_not_is_told_with_those_there_are(store: Store, nodes: int, there: str) -> None:
    running = tuple(NodeRef(rank, f"i-{rank}") for rank in range(nodes))
    job = submitted(store, Claimed(OFFER, nodes=nodes), Launched(claim=2, nodes=running))
    with pytest.raises(UserError, match=f"{job} has no node 3; it has {there}$"):
        client.find_node(job, store, 3)
    assert [client.find_node(job, store, rank).instance for rank in range(nodes)] == [node.instance for node in running]
    assert client.find_node(job, store).instance == "i-0"


def test_the_newest_of_a_jobs_machines_is_the_one_that_is_meant(store: Store) -> None:
    job = submitted(
        store,
        *(Claimed(OFFER, nodes=1), Launched(claim=2, nodes=(NodeRef(0, "old"),))),
        Closed(claim=2, outcome="reclaimed", rule="reclaimed"),
        *(Claimed(OFFER, nodes=1), Launched(claim=5, nodes=(NodeRef(0, "new"),))),
    )
    found = client.find_node(job, store)
    assert (found.job, found.instance, found.offering) == (job, "new", OFFER)


def test_a_machine_that_was_asked_for_and_is_not_there_yet_is_none(store: Store) -> None:
    job = submitted(store, Claimed(OFFER, nodes=1))
    with pytest.raises(UserError, match="has no machine now"):
        client.find_node(job, store)


def test_a_notice_goes_to_the_node_with_the_time_that_it_has(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.providers.local.provider import LocalProvider

    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(LocalProvider, "interrupt", lambda _self, *args: asked.append(args))
    there = Offering(provider="local", machine="m", zone="z", spot=True, price=1.0, region="r")
    job = submitted(store, Claimed(there, nodes=2), Launched(claim=2, nodes=(NodeRef(0, "i-0"), NodeRef(1, "i-1"))))
    assert client.interrupt(job, store, 1, grace_s=7.0) == "i-1"
    assert client.interrupt(job, store) == "i-0"
    assert asked == [("i-1", 7.0, "r"), ("i-0", 30.0, "r")]


class Aloof:
    """A provider that can neither interrupt a machine nor lead to one."""

    capabilities = registry.capabilities("local")


def test_what_a_provider_cannot_do_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.providers.local.provider import LocalProvider

    found = client.JobMachine("job-bbbb", "i-1", OFFER, Aloof())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^local cannot rehearse a reclaim$"):
        client.interrupt_machine(found)
    with (
        pytest.raises(UserError, match=r"^local gives no access to its machines$"),
        client.open_shell(found, ShellRequest(()), store),
    ):
        pass
    job = submitted(store, Claimed(OFFER, nodes=1), Launched(claim=2, nodes=(NodeRef(0, "i-1"),)))
    unable = replace(registry.capabilities("local"), interrupts=False)
    monkeypatch.setattr(LocalProvider, "capabilities", unable)
    with pytest.raises(UserError, match=r"^local cannot rehearse a reclaim$"):
        client.interrupt(job, store)


def interrupted(google: Google, status: str = "RUNNING", **scheduling: Any) -> str:
    google.let("GET", MACHINE, {"status": status, "scheduling": {"provisioningModel": "SPOT"} | scheduling})
    google.let("POST", f"{MACHINE}/simulateMaintenanceEvent", {"status": "DONE"})
    return connected(google).interrupt(f"{ZONE}.{NUMBER}", 0.0, PLACE)


@pytest.mark.parametrize("status", ["STOPPING", "TERMINATED"])
def test_one_that_is_on_its_way_out_is_as_good_as_gone(status: str) -> None:
    with pytest.raises(NotFound, match="on its way out"):
        interrupted(Google(), status)


def test_on_compute_engine_the_notice_is_what_the_machine_was_launched_with() -> None:
    assert "notice is 120 s" in interrupted(Google(), preemptionNoticeDuration={"seconds": "120"})
    told = interrupted(Google())
    assert "notice is 30 s" in told and "--grace is not used" in told


def test_one_that_may_not_be_preempted_is_deleted() -> None:
    google = Google()
    refusal: ProviderError = response_error("x", 403, {"error": {"errors": [{"reason": "forbidden"}], "message": "no"}})
    google.let("POST", f"{MACHINE}/simulateMaintenanceEvent", refusal)
    google.let("DELETE", MACHINE, {"status": "RUNNING"})
    assert interrupted(google).startswith("deleted, since no maintenance could be simulated")


class Visited:
    """A provider whose machines can be gone to; `ended` are the visits that are over."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.ended: list[str] = []

    @contextmanager
    def shell_command(
        self, instance: str, shell_request: ShellRequest, spec: Any, region: str | None = None
    ) -> Iterator[str]:
        self.asked.append((instance, shell_request, spec.name, region))
        yield "the way"
        self.ended.append(instance)


def test_the_way_to_a_machine_is_its_providers_and_lasts_as_long_as_it_is_used(store: Store) -> None:
    job, provider, shell_request = submitted(store), Visited(), ShellRequest(command=("nvidia-smi",))
    duty = client.JobMachine(job, "i-1", replace(OFFER, region="r1"), provider)  # type: ignore[arg-type]
    with client.open_shell(duty, shell_request, store) as way:
        assert (way, provider.ended) == ("the way", [])
    assert provider.asked == [("i-1", shell_request, "train", "r1")] and provider.ended == ["i-1"]


def test_a_provider_without_ways_to_its_machines_is_named(store: Store) -> None:
    duty = client.JobMachine(submitted(store), "i-1", OFFER, object())  # type: ignore[arg-type]
    with (
        pytest.raises(UserError, match=r"^local gives no access to its machines$"),
        client.open_shell(duty, ShellRequest(), store),
    ):
        pass
    with pytest.raises(UserError, match=r"^local cannot rehearse a reclaim$"):
        client.interrupt_machine(duty)
