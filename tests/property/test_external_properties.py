"""Whatever happens to training jobs of others, and however events about it arrive: twice, late, out of order, about
nothing; and whatever is lost or breaks off in between, with two governors at once. No second clone, no more than the
policy allows, nothing stopped without a rule, no alarm left; and what was stopped to go on does, or it is told."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from external_world import HOUR_S, REGION, START, MemoryAccount, World

from stoker.core.governor_settings import DEFAULT
from stoker.external_jobs import chain_log, notifications
from stoker.external_jobs.clone_chain import GaveUp
from stoker.external_jobs.govern import ExternalJobGovernor
from stoker.external_jobs.notifications import JobContext
from stoker.model.errors import StoreUnavailable, Transient
from stoker.policy import versions
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sagemaker.jobs import ENDED

pytestmark = pytest.mark.slow

NAMES = ("a", "b")
TIMES = 2
POLICIES = (
    f"sagemaker: {{regions: [{REGION}]}}\n",
    f"sagemaker: {{regions: [{REGION}]}}\nrules: [{{max_nodes: 1}}]\n",
    f"sagemaker: {{regions: [{REGION}]}}\nrules: [{{stall: {{window: 1m}}}}, {{max_nodes: 1, audit: true}}]\n",
    f"sagemaker: {{regions: [{REGION}], clone: false}}\n",
    "rules: [{max_nodes: 1}]\n",
)
BOUND = f"resume: {{min_runtime: 1h, times: {TIMES}}}"
REASONS = ("InternalServerError: x", "AlgorithmError: , exit code: 1", "ClientError: x", "")
# What an operation of AWS's or of the store's does to whoever calls it: nothing, fails, or happens without a word; or
# another governor does all of its work right before; or who would call it is no more.
TROUBLES = ("", "fail", "lose", "rival", "crash")


class Crash(BaseException):
    """The governor's process ends here."""


@dataclass
class Life:
    """The world, and what is true of it by its own book."""

    account: MemoryAccount = field(default_factory=MemoryAccount)
    policy: int = 0
    # By what they are clones of; how many by origin.
    cloned: dict[str, int] = field(default_factory=dict)
    families: dict[str, int] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)
    stopped_by_a_person: set[str] = field(default_factory=set)
    stopped_by_anybody: set[str] = field(default_factory=set)
    number: int = 0

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.account.clock.now)
        self.legislate(0)
        self.watch_creations()
        self.watch_stops()

    def legislate(self, number: int) -> None:
        self.policy = number % len(POLICIES)
        self.number += 1
        text = POLICIES[self.policy]
        rule = f"- {BOUND}\n"
        text = text.replace("rules: [", f"rules: [{{{BOUND}}}, ") if "rules: [" in text else f"{text}rules:\n{rule}"
        versions.write(self.store, f"{text}# {self.number}\n", "jane")

    def watch_creations(self) -> None:
        answer = self.account.jobs.answer

        def watched(operation: str, region: str, request: dict[str, Any]) -> dict[str, Any]:
            tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", ())}
            of, origin = tags.get("stoker:clone-of"), tags.get("stoker:origin")
            found = answer(operation, region, request)
            if operation == "CreateTrainingJob" and of is not None and origin is not None:
                self.cloned[of] = self.cloned.get(of, 0) + 1
                self.families[origin] = self.families.get(origin, 0) + 1
                if of in self.account.names:
                    self.check_clone(of, request)
            return found

        self.account.jobs.answer = watched  # type: ignore[method-assign]

    def check_clone(self, of: str, request: dict[str, Any]) -> None:
        job = self.account.job(of)
        if job.status not in ("Failed", "Stopped"):
            self.wrongs.append(f"{of} was cloned while it was {job.status}")
        if of in self.stopped_by_a_person:
            self.wrongs.append(f"{of} was cloned although a person stopped it")
        if POLICIES[self.policy].find("clone: false") >= 0 or "sagemaker" not in POLICIES[self.policy]:
            self.wrongs.append(f"{of} was cloned against the policy")
        if job.status == "Failed" and str(job.reason).startswith("ClientError"):
            self.wrongs.append(f"{of} was cloned for an error of its own")
        for name in ("CheckpointConfig", "RoleArn", "OutputDataConfig", "ResourceConfig"):
            if request.get(name) != job.asked.get(name):
                self.wrongs.append(f"the clone of {of} has another {name}")

    def watch_stops(self) -> None:
        stop = self.account.stop

        def watched(name: str) -> bool:
            job = self.account.job(name) if name in self.account.names else None
            if job is not None and job.status == "InProgress" and not self.may_be_stopped(name):
                self.wrongs.append(f"{name} was stopped for no rule of {POLICIES[self.policy]}")
            return stop(name)

        self.account.stop = watched  # type: ignore[method-assign]

    def may_be_stopped(self, name: str) -> bool:
        job, policy = self.account.job(name), POLICIES[self.policy]
        if "sagemaker" not in policy:
            return False
        if "{max_nodes: 1}" in policy and int(job.resources["InstanceCount"]) > 1:
            return True
        if "stall" in policy and all(host.gpu and host.gpu[-1][1] == 0 for host in self.account.figures.values()):
            return True
        lost = sum(1 for each in job.transitions if each.status == "Interrupted")
        # Those of its family count, too: at least one of its own, and any number of others'.
        return job.spot and "clone: false" not in policy and (lost > 3 or name not in NAMES)

    # ── What happens to jobs ──────────────────────────────────────────────────────────────────────────────────────────

    def happen(self, what: str, name: str, number: int) -> None:
        account, job = self.account, None
        if name in account.names:
            job = account.job(name)
        if what == "submit":
            if job is None and name in NAMES:
                resources = {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 1 + number % 2, "VolumeSizeInGB": 1}
                account.start(name, ResourceConfig=resources, CheckpointConfig={"S3Uri": f"s3://bucket/{name}"})
        elif what == "pass":
            account.clock.move((60, 1800, HOUR_S, 3 * HOUR_S, 30 * HOUR_S)[number % 5])
        elif what == "legislate":
            self.legislate(number)
        elif job is None:
            return
        elif what == "delete":
            if job.status in ENDED:
                account.jobs.answer("DeleteTrainingJob", REGION, {"TrainingJobName": name})
        elif job.status in ENDED:
            return
        elif what == "train":
            if job.status == "InProgress" and job.secondary != "Uploading":
                account.train(name, (60, HOUR_S, 2 * HOUR_S)[number % 3])
        elif what == "advance":
            account.jobs.advance(job, None)
        elif what == "fail":
            account.fail(name, REASONS[number % len(REASONS)])
        elif what == "fail late":
            if job.status == "InProgress" and job.secondary != "Uploading":
                account.train(name, 2 * HOUR_S)
            account.fail(name, REASONS[number % 2])
        elif what == "interrupt":
            if job.secondary == "Training":
                account.interrupt(name, 1 + number % 4)
        elif what == "idle":
            account.measure(name, 400 * (number % 2))
            account.line_at = account.clock.now() - timedelta(hours=1)
            account.ring()
        elif what == "stop" and job.status == "InProgress":
            account.jobs.answer("StopTrainingJob", REGION, {"TrainingJobName": name})
            (self.stopped_by_anybody if self.asked_lately(name) else self.stopped_by_a_person).add(name)

    def asked_lately(self, name: str) -> bool:
        """Whether a governor that is no more may have asked the same of SageMaker a moment ago."""
        for region, origin in chain_log.find(self.store, name):
            chain = chain_log.read(self.store, region, origin)
            asked_at = chain.stops_at.get(name)
            if asked_at is not None and name not in chain.unanswered_stops:
                return self.account.clock.now() - asked_at <= timedelta(minutes=5)
        return False

    # ── Who looks ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def governor(self, name: str, store: MemoryStore) -> ExternalJobGovernor:
        return ExternalJobGovernor(store, lambda _region: self.account, name=name, now=self.account.clock.now)

    def look(self, name: str | None, trouble: str, after: int) -> None:
        """An event about that job, or a tick; the n-th call that it makes meets trouble."""
        calls = [after]

        def due() -> bool:
            calls[0] -= 1
            return calls[0] == 0

        def of_aws(_operation: str) -> bool:
            if not due():
                return False
            if trouble == "crash":
                raise Crash
            if trouble == "rival":
                rival = self.governor("two", self.store.client())
                self.account.trouble = lambda _each: False
                rival.wake(REGION, name) if name is not None else rival.tick()
                self.account.trouble = of_aws
            if trouble == "fail":
                raise Transient("nobody answers")
            return trouble == "lose"

        def of_store(_operation: str, _key: str) -> Fault | None:
            if trouble == "crash" and due():
                raise Crash
            return Fault(after=trouble == "lose") if trouble in ("fail", "lose") and due() else None

        self.account.trouble = of_aws
        one = self.governor("one", self.store.client(of_store))
        try:
            one.wake(REGION, name) if name is not None else one.tick()
        except (StoreUnavailable, Crash):
            pass
        finally:
            self.account.trouble = lambda _each: False

    def check(self) -> None:
        assert self.wrongs == []
        assert all(count == 1 for count in self.cloned.values()), self.cloned
        assert all(count <= TIMES + 1 for count in self.families.values()), self.families

    def settle(self) -> None:
        """Nothing goes wrong any more, and somebody looks."""
        if "sagemaker" not in POLICIES[self.policy]:
            self.legislate(0)
        for _ in range(3):
            self.look(None, "", 0)
        self.check()
        for alarm in self.account.rings.values():
            name = alarm.host.partition("/")[0]
            assert name in self.account.names and self.account.job(name).status == "InProgress"
        for name in self.account.names:
            assert self.goes_on_or_is_told_of(name), name

    def goes_on_or_is_told_of(self, name: str) -> bool:
        """Whether that is so of one that was stopped to go on, ended within the last day, and by no person's word."""
        job, policy = self.account.job(name), DEFAULT.policy
        if job.ended is None or job.status == "Completed" or name in self.stopped_by_a_person:
            return True
        for region, origin in chain_log.find(self.store, name):
            entries = list(chain_log.entries(self.store, region, origin))
            chain = chain_log.read(self.store, region, origin)
            stop = chain.stops.get(name)
            if stop is None or not stop.after or self.account.clock.now() - job.ended > timedelta(hours=24):
                continue
            goes_on = name in chain.clones and chain.clones[name].name in chain.made
            told = any(
                isinstance(entry.record.event, GaveUp)
                and entry.record.event.job == name
                and notifications.notification_of(entry, JobContext(origin, region), policy) is not None
                for entry in entries
            )
            if not goes_on and not told:
                return False
        return True


OFTEN = ("train", "advance", "fail late", "fail late", "interrupt", "idle")
HAPPENINGS = st.tuples(
    st.sampled_from(("submit", *OFTEN, "fail", "stop", "delete", "pass", "legislate")),
    st.integers(0, 3),
    st.integers(0, 11),
)
LOOKS = st.tuples(st.just("look"), st.integers(-3, 3), st.tuples(st.sampled_from(TROUBLES), st.integers(1, 25)))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(HAPPENINGS, LOOKS, LOOKS), max_size=50))
def test_however_events_come(steps: list[tuple[str, int, Any]]) -> None:
    life = Life()
    life.happen("submit", "a", 0)
    life.happen("train", "a", 2)
    for what, which, detail in steps:
        # What is newest is most alive.
        names = [*reversed(life.account.names), *NAMES]
        if what == "look":
            odd = {-1: None, -2: "nobody", -3: "../no name"}
            name = odd[which] if which < 0 else names[which % len(names)]
            life.look(name, *detail)
        else:
            life.happen(what, names[which % len(names)], detail)
        life.check()
    life.settle()


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(TROUBLES), st.integers(1, 25)), max_size=8),
    st.sampled_from(["fail", "interrupt", "stall"]),
    st.permutations(range(3)),
)
def test_a_clone_is_made_however_often_it_breaks_off(
    troubles: list[tuple[str, int]], why: str, order: list[int]
) -> None:
    life = Life()
    if why == "stall":
        life.legislate(2)
    life.happen("submit", "a", 0)
    life.happen("train", "a", 2)
    life.look("a", "", 0)
    if why == "interrupt":
        life.happen("interrupt", "a", 3)
    elif why == "stall":
        life.happen("pass", "a", 2)
        life.happen("idle", "a", 0)
    else:
        life.happen("fail", "a", order[0] % 2)
    for trouble in troubles:
        life.look("a", *trouble)
    for _ in range(2):
        life.look("a", "", 0)
    if why != "fail":
        assert life.account.job("a").status == "Stopping"
        life.account.jobs.advance(life.account.job("a"), "Stopped")
    for trouble in reversed(troubles):
        life.look("a", *trouble)
    life.settle()
    assert life.cloned == {"a": 1} and life.account.clock.now() > START


def until(life: Life, why: str, crash: int) -> int:
    """A job is stopped to go on, or fails; a governor ends at its n-th call, and others carry on. How many calls were
    left to that."""
    calls = [crash]

    def ends(_operation: str, _key: str = "") -> Literal[False]:
        calls[0] -= 1
        if calls[0] == 0:
            raise Crash
        return False

    def look() -> None:
        life.account.clock.move(60)
        life.account.trouble = ends
        with suppress(Crash):
            life.governor(f"g{calls[0]}", life.store.client(lambda *asked: ends(*asked) or None)).tick()
        life.account.trouble = lambda _each: False

    life.happen("submit", "a", 0)
    look()
    life.happen("train", "a", 2)
    look()
    life.happen({"spot": "interrupt", "stall": "idle", "fail": "fail"}[why], "a", 0 if why != "spot" else 3)
    for _ in range(4):
        look()
        if why == "stall" and life.account.job("a").status == "InProgress":
            life.happen("idle", "a", 0)
    if why != "fail":
        assert life.account.job("a").status == "Stopping"
        life.account.jobs.advance(life.account.job("a"), "Stopped")
    for _ in range(4):
        look()
    return calls[0]


@pytest.mark.parametrize("why", ["fail", "spot", "stall"])
def test_a_governor_may_end_at_any_point(why: str) -> None:
    for crash in count(1):
        life = Life()
        if why == "stall":
            life.legislate(2)
        left = until(life, why, crash)
        life.settle()
        assert life.cloned == {"a": 1}, crash
        if left > 0:
            break


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail late", "interrupt"]), st.tuples(st.sampled_from(TROUBLES), st.integers(1, 25))
        ),
        min_size=5,
        max_size=7,
    )
)
def test_clones_of_clones_are_bounded(ends: list[tuple[str, tuple[str, int]]]) -> None:
    life = Life()
    life.happen("submit", "a", 0)
    for why, trouble in ends:
        newest = life.account.names[-1]
        life.happen("train", newest, 2)
        life.look(newest, "", 0)
        life.happen(why, newest, 3 if why == "interrupt" else 0)
        life.look(newest, *trouble)
        life.look(newest, "", 0)
        if life.account.job(newest).status == "Stopping":
            life.account.jobs.advance(life.account.job(newest), "Stopped")
        life.look(newest, *trouble)
        life.settle()
    assert len(life.account.names) == 1 + sum(life.families.values())


def test_the_book_of_this_test_notices() -> None:
    """What it should catch, done by hand."""
    life = Life()
    life.happen("submit", "a", 0)
    life.account.stop("a")
    assert life.wrongs != []
    world = World()
    assert world.clones == []
