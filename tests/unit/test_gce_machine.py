"""A machine on Compute Engine as its agent sees it: three routes for a notice, hints, its address, its token."""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from google_services import ACCOUNT, Metadata, metadata_server
from plain_store import wait_for
from watching_machines import closed_afterwards

from stoker.cloudapi.google import metadata as google_metadata
from stoker.cloudapi.google.metadata import Metadata as Asking
from stoker.cloudapi.google.metadata import MetadataError, NoServiceAccount
from stoker.model.node_facts import NoticeFact
from stoker.providers import registry
from stoker.providers.gce.machine import GRACE_S, NOTICE_ATTRIBUTE, GceMachine

pytestmark = pytest.mark.slow

# By its name in the package there is the function.
gce_machine = importlib.import_module("stoker.providers.gce.machine")

PREEMPTED = "instance/preempted"
MAINTENANCE = "instance/maintenance-event"
UPCOMING = "instance/upcoming-maintenance"
ATTRIBUTE = f"instance/attributes/{NOTICE_ATTRIBUTE}"


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with metadata_server() as told, closed_afterwards(GceMachine):
        yield told


@pytest.fixture
def shutdown_file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "shutdown"


def a_machine(metadata: Metadata, shutdown_file: Path) -> GceMachine:
    machine = GceMachine(shutdown_file.parent, Asking(metadata.host), shutdown_file)
    # Both questions are held open, and the attribute was asked for.
    wait_for(lambda: metadata.waiting == 2 and ATTRIBUTE in metadata.asked)
    return machine


def in_force(machine: GceMachine) -> NoticeFact:
    wait_for(lambda: machine.notice() is not None)
    found = machine.notice()
    assert found is not None
    return found


def shut_down(path: Path, age_s: float = 0.0) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    os.utime(path, (time.time() - age_s, time.time() - age_s))


# ── The routes of a notice ────────────────────────────────────────────────────────────────────────────────────────────


def test_no_news_is_no_notice(metadata: Metadata, shutdown_file: Path) -> None:
    assert a_machine(metadata, shutdown_file).notice() is None


def test_preempted_is_heard_at_once_and_is_final(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    began_s = time.monotonic()
    metadata.put(PREEMPTED, "TRUE")
    found = in_force(machine)
    # Far sooner than the question would have been answered otherwise.
    assert time.monotonic() - began_s < gce_machine._POLL_S / 2
    assert found.hard and found.source == "Compute Engine: preempted" and 25 < found.grace_s <= GRACE_S
    metadata.put(PREEMPTED, "FALSE")
    assert machine.notice() is found


def test_a_preemption_before_the_first_question_is_heard(metadata: Metadata, shutdown_file: Path) -> None:
    metadata.values[PREEMPTED] = "TRUE"
    assert in_force(GceMachine(shutdown_file.parent, Asking(metadata.host), shutdown_file)).hard


def test_the_shutdown_script_is_heard_where_the_metadata_are_silent(shutdown_file: Path) -> None:
    machine = GceMachine(shutdown_file.parent, Asking("127.0.0.1:1"), shutdown_file)
    assert machine.notice() is None
    shut_down(shutdown_file)
    found = in_force(machine)
    assert found.hard and found.source == "Compute Engine: shutdown" and 25 < found.grace_s <= GRACE_S
    shutdown_file.unlink()
    assert machine.notice() is found


def test_what_has_passed_since_the_shutdown_is_gone(shutdown_file: Path) -> None:
    machine = GceMachine(shutdown_file.parent, Asking("127.0.0.1:1"), shutdown_file)
    shut_down(shutdown_file, age_s=19.0)
    assert 5 < in_force(machine).grace_s <= 11


@pytest.mark.parametrize("age_s", [-86400.0, 86400.0])
def test_a_clock_that_was_set_gives_no_more_than_there_is(shutdown_file: Path, age_s: float) -> None:
    machine = GceMachine(shutdown_file.parent, Asking("127.0.0.1:1"), shutdown_file)
    shut_down(shutdown_file, age_s=age_s)
    assert 0 <= in_force(machine).grace_s <= GRACE_S


def test_a_second_route_never_gives_more_time(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    metadata.put(PREEMPTED, "TRUE")
    first = in_force(machine)
    shut_down(shutdown_file)
    assert machine.notice() is first


def test_a_second_route_may_leave_less(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    metadata.put(PREEMPTED, "TRUE")
    assert in_force(machine).grace_s > 20
    shut_down(shutdown_file, age_s=20.0)
    found = in_force(machine)
    assert found.source == "Compute Engine: shutdown" and found.grace_s <= 10
    assert machine.notice() is found


def test_a_longer_notice_counts_where_it_was_asked_for_and_until_the_signal_comes(
    metadata: Metadata, shutdown_file: Path
) -> None:
    metadata.values[ATTRIBUTE] = "120"
    machine = a_machine(metadata, shutdown_file)
    wait_for(lambda: machine._notice_s is not None)
    metadata.put(PREEMPTED, "TRUE")
    assert 100 < in_force(machine).grace_s <= 120
    # The machine is being switched off all the same.
    shut_down(shutdown_file)
    assert in_force(machine).grace_s <= GRACE_S


@pytest.mark.parametrize(("text", "grace_s"), [("soon", 30), ("", 30), ("0", 30), ("-5", 30), ("20", 20), ("9e9", 120)])
def test_an_odd_notice_is_not_trusted(metadata: Metadata, shutdown_file: Path, text: str, grace_s: float) -> None:
    metadata.values[ATTRIBUTE] = text
    machine = a_machine(metadata, shutdown_file)
    wait_for(lambda: machine._notice_s is not None)
    metadata.put(PREEMPTED, "TRUE")
    assert grace_s - 10 < in_force(machine).grace_s <= grace_s


def test_a_server_that_fails_is_asked_again(
    metadata: Metadata, shutdown_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gce_machine, "_PAUSE_S", 0.01)
    metadata.trouble = [0, 500, 0, 503]
    machine = a_machine(metadata, shutdown_file)
    metadata.hang_up()
    wait_for(lambda: not metadata.trouble and metadata.waiting == 2)
    assert machine.notice() is None
    metadata.put(PREEMPTED, "TRUE")
    assert in_force(machine).hard


def test_a_server_that_does_not_wait_is_not_asked_all_the_time(
    metadata: Metadata, shutdown_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "wait", lambda *_: None)
    machine = GceMachine(shutdown_file.parent, Asking(metadata.host), shutdown_file)
    wait_for(lambda: metadata.asked.count(PREEMPTED) >= 2)
    before, began_s = metadata.asked.count(PREEMPTED), time.monotonic()
    wait_for(lambda: metadata.asked.count(PREEMPTED) >= before + 3)
    assert time.monotonic() - began_s > gce_machine._PAUSE_S
    metadata.put(PREEMPTED, "TRUE")
    assert in_force(machine).hard


# ── Hints ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_maintenance_that_ends_the_machine_is_a_hint_once_each_time(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    metadata.put(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    first = in_force(machine)
    assert not first.hard and first.source == "Compute Engine: maintenance"
    asked = metadata.asked.count(MAINTENANCE)
    metadata.put(MAINTENANCE, "NONE")
    wait_for(lambda: metadata.asked.count(MAINTENANCE) > asked)
    assert machine.notice() is first
    metadata.put(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    wait_for(lambda: machine.notice() is not first)
    assert machine.notice() != first, "or it would not be heard"


def test_a_migration_is_nobodys_business(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    asked = metadata.asked.count(MAINTENANCE)
    metadata.put(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    wait_for(lambda: metadata.asked.count(MAINTENANCE) > asked)
    assert machine.notice() is None


def upcoming(status: str, start: str) -> str:
    return json.dumps({"maintenance_status": status, "type": "SCHEDULED", "window_start_time": start})


def test_announced_maintenance_asks_for_a_save_when_told_when_moved_and_when_it_begins(
    metadata: Metadata, shutdown_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gce_machine, "UPCOMING_POLL_S", 0.01)
    machine = a_machine(metadata, shutdown_file)

    def asked_again() -> None:
        before = metadata.asked.count(UPCOMING)
        wait_for(lambda: metadata.asked.count(UPCOMING) > before + 1)

    sources = []
    for status, start in (("PENDING", "12:00"), ("PENDING", "14:00"), ("ONGOING", "14:00")):
        before = machine.notice()
        metadata.put(UPCOMING, upcoming(status, f"2030-05-01T{start}:00Z"))
        wait_for(lambda before=before: machine.notice() != before)
        found = in_force(machine)
        assert not found.hard
        sources.append(found.source)
        asked_again()
        assert machine.notice() is found, "each is told once"
    assert sources == [
        "Compute Engine: maintenance, announced for 2030-05-01T12:00:00Z",
        "Compute Engine: maintenance, announced for 2030-05-01T14:00:00Z",
        "Compute Engine: maintenance, begins",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "NONE",
        '"NONE"',
        "{}",
        "[]",
        '{"error": "no notifications have been received yet, try again later"}',
        '{"maintenance_status": "UNKNOWN"}',
        '{"Upcoming maintenance": "PENDING"}',
    ],
)
def test_what_announces_nothing_asks_for_nothing(metadata: Metadata, shutdown_file: Path, text: str) -> None:
    metadata.values[UPCOMING] = text
    machine = a_machine(metadata, shutdown_file)
    wait_for(lambda: UPCOMING in metadata.asked)
    machine._take_upcoming(text)
    assert machine.notice() is None


@pytest.mark.parametrize(
    "tree",
    [
        {"maintenanceStatus": "PENDING", "windowStartTime": "2030-05-01T12:00:00Z"},
        {"Upcoming maintenance": {"maintenance_status": "PENDING", "window_start_time": "2030-05-01T12:00:00Z"}},
    ],
)
def test_each_of_googles_spellings_announces(metadata: Metadata, shutdown_file: Path, tree: object) -> None:
    metadata.values[UPCOMING] = json.dumps(tree)
    found = in_force(a_machine(metadata, shutdown_file))
    assert found.source == "Compute Engine: maintenance, announced for 2030-05-01T12:00:00Z"


def test_a_preemption_wins_over_a_hint(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    metadata.put(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert not in_force(machine).hard
    metadata.put(PREEMPTED, "TRUE")
    wait_for(lambda: (found := machine.notice()) is not None and found.hard)


# ── The rest of the machine ───────────────────────────────────────────────────────────────────────────────────────────


def test_its_address_and_its_ports_are_its_own(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    metadata.trouble = [500]
    assert machine.address() == "10.0.0.7"
    assert machine.master_port(29500) == 29500


def test_the_agent_gets_it_by_the_providers_name(
    metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
    for _ in range(2):
        assert isinstance(registry.machine("gce", tmp_path), GceMachine)
    wait_for(lambda: metadata.waiting == 4)


def test_one_that_is_closed_asks_nothing_any_more(
    metadata: Metadata, shutdown_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gce_machine, "UPCOMING_POLL_S", 0.01)
    before = set(threading.enumerate())
    machine = a_machine(metadata, shutdown_file)
    asking = [one for one in set(threading.enumerate()) - before if one.name.startswith(("instance/", "upcoming"))]
    assert len(asking) == 3
    machine.close()
    metadata.hang_up()
    wait_for(lambda: not any(one.is_alive() for one in asking))


# ── The metadata server ───────────────────────────────────────────────────────────────────────────────────────────────


def test_where_it_is(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.delenv(name, raising=False)
    assert Asking()._host == google_metadata.LINK_LOCAL
    monkeypatch.setenv("GCE_METADATA_IP", metadata.host)
    assert Asking().get("instance/id") == metadata.values["instance/id"]
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    with pytest.raises(MetadataError, match="does not answer"):
        Asking().get("instance/id")


def test_absence_is_an_answer_and_anything_else_is_none(metadata: Metadata) -> None:
    asking = Asking(metadata.host)
    assert asking.get("instance/nothing") is None
    metadata.trouble = [500, 403, 0]
    for _ in range(3):
        with pytest.raises(MetadataError):
            asking.get("instance/id")
    metadata.flavor = None
    for path in ("instance/id", "instance/nothing"):
        with pytest.raises(MetadataError, match="is not Google's metadata server"):
            asking.get(path)


def test_a_wait_ends_with_a_change_or_its_time(metadata: Metadata) -> None:
    asking = Asking(metadata.host)
    value, etag = asking.wait(PREEMPTED, "", 60.0)
    assert value == "FALSE" and etag
    began_s = time.monotonic()
    assert asking.wait(PREEMPTED, etag, 1.0) == ("FALSE", etag)
    assert time.monotonic() - began_s >= 0.9
    metadata.put(PREEMPTED, "TRUE")
    changed, other = asking.wait(PREEMPTED, etag, 60.0)
    assert changed == "TRUE" and other != etag


def test_a_token_is_kept_until_shortly_before_its_end(metadata: Metadata) -> None:
    asking = Asking(metadata.host)
    first, left_s = asking.token()
    assert first == "ya29.token-1" and 3500 < left_s <= 3600
    assert asking.token()[0] == first and metadata.tokens == 1
    assert asking.token(fresh=True)[0] == "ya29.token-2"
    metadata.token_s = 60
    asking.token(fresh=True)
    assert asking.token()[0] == "ya29.token-4", "it ends too soon to be kept"


def test_an_old_token_is_better_than_none(metadata: Metadata) -> None:
    asking = Asking(metadata.host)
    metadata.token_s = 60
    first = asking.token()[0]
    metadata.trouble = [503, 503]
    assert asking.token()[0] == first
    with pytest.raises(MetadataError):
        asking.token(fresh=True)


def test_without_a_service_account_there_is_no_token(metadata: Metadata) -> None:
    metadata.has_account = False
    with pytest.raises(NoServiceAccount):
        Asking(metadata.host).token()
    metadata.values[ACCOUNT + "token"] = "{}"
    with pytest.raises(MetadataError, match="cannot be read") as caught:
        Asking(metadata.host).token()
    assert not isinstance(caught.value, NoServiceAccount)


def test_times_are_utc(metadata: Metadata, shutdown_file: Path) -> None:
    machine = a_machine(metadata, shutdown_file)
    metadata.put(PREEMPTED, "TRUE")
    assert abs((in_force(machine).at - datetime.now(timezone.utc)).total_seconds()) < 60
