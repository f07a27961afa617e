"""`stoker costs`: what jobs cost, saved and wasted; what nobody knows is never nothing."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path

import pytest

from stoker import client
from stoker.cli import main
from stoker.core.costs import Cost
from stoker.core.daily_costs import DaySums, KnownSum
from stoker.core.summary import summarize
from stoker.governor.cost_ledger import DailyCost, read_daily_costs, record_job_costs
from stoker.jobfile import Job
from stoker.maintenance.delete import remove_job
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Record, Waste
from stoker.model.offerings import Offering
from stoker.model.submission import Submission
from stoker.policy import versions
from stoker.read.cost_records import read_accounts
from stoker.read.costs import AMOUNTS, CostRow, WasteShares, report, shares_of
from stoker.store import job_log
from stoker.store.base import open_store
from stoker.store.job_index import IndexRecord, write_index
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import EPOCH, ON_DEMAND, SPOT_A, at, make_beat, make_facts, make_spec, make_state, nodes

HOUR = 3600.0


def wasted(row: CostRow) -> float:
    """The known part of the waste, in dollars."""
    return sum(each.known or 0.0 for each in (row.idle, row.lost, row.startup, row.waiting))


def ran(
    hours: float = 10.0,
    *,
    job: str = "job-1",
    offering: Offering = SPOT_A,
    trained_h: float = 8.0,
    waste: Waste | None = None,
    start_s: float = 0.0,
    **tags: str,
) -> IndexRecord:
    """A job with one attempt, which was reclaimed, and is over."""
    events: list[Event | tuple[Event, float]] = [
        (Claimed(offering=offering, nodes=2), start_s),
        (Launched(2, nodes(2, 2)), start_s),
        (
            Closed(claim=2, outcome="reclaimed", rule="notice", trained_s=trained_h * HOUR, waste=waste),
            start_s + hours * HOUR,
        ),
        Ended(outcome="stopped", rule="stop"),
    ]
    state = make_state(*events, job=job)
    spec = replace(make_spec(2), tags=tags)
    submission = Submission(job=job, spec=spec, submitter="jane")
    return IndexRecord(state, summarize(state, submission, {}, at(start_s + hours * HOUR)))


WASTE = Waste(waited_s=HOUR, idle_s=2 * HOUR, lost_s=0.5 * HOUR)
NOW = at(30 * 24 * HOUR)


def known(row: CostRow) -> dict[str, float | None]:
    names = ("spent", "on_demand", "saved", "idle", "lost", "startup", "waiting")
    return {name: getattr(row, name).known for name in names}


def test_money_and_where_it_went() -> None:
    found = report([ran(waste=WASTE)], [], "job", NOW)
    (row,) = found.rows
    assert (row.name, row.jobs) == ("job-1", {"job-1"})
    # Two machines at $1/h; on-demand they are $3/h. Of ten hours, eight trained and one waited.
    expected = {
        "spent": 20.0,
        "on_demand": 60.0,
        "saved": 40.0,
        "idle": 4.0,
        "lost": 1.0,
        "startup": 2.0,
        "waiting": 2.0,
    }
    assert known(row) == pytest.approx(expected) == known(found.total)
    assert found.total.name == "total"
    assert row.saved_share == pytest.approx(2 / 3) and wasted(row) == pytest.approx(9.0)
    assert all(getattr(row, name).complete for name in expected)


def test_what_is_not_known_is_not_nothing() -> None:
    unpriced = replace(SPOT_A, price=None)
    found = report([ran(offering=unpriced, waste=WASTE), ran(job="job-2", waste=None)], [], "job", NOW)
    rows = {row.name: row for row in found.rows}
    assert rows["job-1"].spent.known is None and not rows["job-1"].spent.complete
    assert rows["job-1"].on_demand.known == pytest.approx(60.0)
    assert rows["job-1"].saved_share is None and rows["job-1"].idle.known is None
    assert rows["job-2"].spent.complete and rows["job-2"].idle.known is None and not rows["job-2"].lost.complete
    assert rows["job-2"].startup.known == pytest.approx(4.0), "that it did not train is in the log"
    assert found.total.spent.known == pytest.approx(20.0) and not found.total.spent.complete
    assert found.total.saved_share == pytest.approx(2 / 3), "of what both are known of"


def test_rows_by_tag_provider_machine_and_day() -> None:
    records = [
        ran(team="vision"),
        ran(job="job-2", team="nlp", start_s=20 * HOUR),
        ran(job="job-3", offering=ON_DEMAND),
    ]

    def names(by: str) -> dict[str, float | None]:
        return {row.name: row.spent.known for row in report(records, [], by, NOW).rows}

    assert names("team") == pytest.approx({"(none)": 60.0, "vision": 20.0, "nlp": 20.0})
    assert names("nobody-has-it") == pytest.approx({"(none)": 100.0})
    assert names("provider") == pytest.approx({"sim": 100.0})
    assert names("machine") == pytest.approx({"m1": 100.0})
    assert names("day") == pytest.approx({"2026-01-01": 88.0, "2026-01-02": 12.0})
    assert next(iter(names("team"))) == "(none)", "the dearest first"


def test_since_a_moment_counts_what_came_after_it() -> None:
    found = report([ran(waste=WASTE)], [], "job", NOW, since=at(5 * HOUR))
    assert known(found.total) == pytest.approx(
        {"spent": 10.0, "on_demand": 30.0, "saved": 20.0, "idle": 2.0, "lost": 0.5, "startup": 1.0, "waiting": 1.0}
    )
    assert report([ran()], [], "job", NOW, since=at(50 * HOUR)).rows == ()


def test_jobs_that_were_removed_are_in_the_sum() -> None:
    gone = DailyCost(
        "old-1", date(2026, 1, 3), 9, DaySums(KnownSum(5.0), KnownSum(8.0), KnownSum(5.0)), {"team": "nlp"}
    )
    found = report([ran(waste=WASTE, team="nlp")], [gone], "team", NOW)
    (row,) = found.rows
    assert row.spent.known == pytest.approx(25.0) and row.spent.complete
    assert not row.idle.complete, "what of it was wasted went with the job"
    by_machine = {row.name for row in report([], [gone], "machine", NOW).rows}
    assert by_machine == {"(removed)"}
    assert report([], [gone], "day", NOW, since=at(30 * 24 * HOUR)).rows == ()


@pytest.mark.parametrize(
    ("trained_h", "waste", "shares"),
    [
        # Of ten hours.
        (6.0, WASTE, (0.2, 0.05, 0.3, 0.1)),
        (6.0, None, (None, None, 0.4, None)),
        (0.0, None, (0.0, 0.0, 1.0, None)),
        (6.0, Waste(waited_s=HOUR), (None, None, 0.3, 0.1)),
        (6.0, Waste(waited_s=HOUR, idle_s=5 * HOUR, lost_s=9 * HOUR), (0.5, 0.1, 0.3, 0.1)),
        (6.0, Waste(waited_s=HOUR, idle_s=9 * HOUR, lost_s=9 * HOUR), (0.6, 0.0, 0.3, 0.1)),
        (12.0, Waste(waited_s=4 * HOUR, idle_s=0.0, lost_s=0.0), (0.0, 0.0, 0.0, 0.4)),
        (1.0, Waste(waited_s=40 * HOUR, idle_s=1.0, lost_s=1.0), (0.0, 0.0, 0.0, 1.0)),
    ],
)
def test_shares_of_an_attempt_that_is_over(
    trained_h: float, waste: Waste | None, shares: tuple[float | None, ...]
) -> None:
    claim = ran(trained_h=trained_h, waste=waste).state.claims[0]
    found = shares_of(claim, None, NOW, None)
    assert (found.idle, found.lost, found.startup, found.waiting) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("heard_h", "shares"),
    [
        (8.0, (0.2, 0.0, 0.1, 0.1)),
        (None, (0.2, 0.0, 0.3, 0.1)),
        (3.0, (0.2, 0.0, 0.0, 0.1)),
        (99.0, (0.2, 0.0, 0.3, 0.1)),
        (-1.0, (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_shares_of_an_attempt_that_runs_are_of_what_was_heard(
    heard_h: float | None, shares: tuple[float | None, ...]
) -> None:
    """Ten hours ago it was launched. What it has not saved yet is not lost yet."""
    state = make_state((Claimed(SPOT_A, 1), 0.0), (Launched(2, nodes(2)), 0.0))
    short = summarize(state, Submission("job-1", make_spec(), "jane"), {}, at(0.0))
    attempt = replace(short.attempts[0], trained_s=6 * HOUR, waste=WASTE)
    heard = None if heard_h is None else at(heard_h * HOUR)
    found = shares_of(state.claims[0], attempt, at(10 * HOUR), heard)
    assert (found.idle, found.lost, found.startup, found.waiting) == pytest.approx(shares)
    assert shares_of(state.claims[0], attempt, at(0.0), heard) == WasteShares(), "no time has passed"
    alone = shares_of(state.claims[0], None, at(10 * HOUR), at(4 * HOUR))
    assert (alone.idle, alone.lost, alone.startup, alone.waiting) == (0.0, 0.0, 0.4, None)


def test_what_is_known_of_a_row() -> None:
    row = CostRow("x")
    assert row.saved_share is None and wasted(row) == 0.0
    row.add("a", Cost(spent=1.0, on_demand=4.0))
    row.add("b", Cost(spent=2.0, on_demand=None))
    row.add("c", Cost(spent=None, on_demand=8.0))
    assert (row.jobs, row.spent.known, row.on_demand.known, row.saved.known) == ({"a", "b", "c"}, 3.0, 12.0, 3.0)
    assert not (row.spent.complete or row.on_demand.complete or row.saved.complete)
    assert row.saved_share == 0.75, "of those where both are known"
    row.waste(WasteShares(0.5, None, 0.25, 0.0), 2.0)
    row.waste(WasteShares(0.0, 0.0, 0.0, 0.5), None)
    assert [getattr(row, name).known for name in ("idle", "lost", "startup", "waiting")] == [1.0, 0.0, 0.5, 0.0]
    assert [getattr(row, name).complete for name in ("idle", "lost", "startup", "waiting")] == [
        True,
        False,
        True,
        False,
    ]
    assert wasted(row) == 1.5


@pytest.mark.parametrize(
    ("spent", "on_demand", "known", "saved"),
    [
        (KnownSum(1.0, True), KnownSum(4.0, True), (1.0, True, 4.0, True), (3.0, True)),
        (KnownSum(1.0, False), KnownSum(4.0, True), (1.0, False, 4.0, True), (None, False)),
        (KnownSum(0.0, False), KnownSum(0.0, False), (None, False, None, False), (None, False)),
        (KnownSum(0.0, True), KnownSum(0.0, True), (0.0, True, 0.0, True), (0.0, True)),
    ],
)
def test_sums_of_a_day_are_known_as_far_as_they_are_whole(
    spent: KnownSum, on_demand: KnownSum, known: tuple[object, ...], saved: tuple[object, ...]
) -> None:
    row = CostRow("x")
    row.add_sums("a", DaySums(spent, on_demand))
    found = (row.spent.known, row.spent.complete, row.on_demand.known, row.on_demand.complete)
    assert (found, (row.saved.known, row.saved.complete), row.jobs) == (known, saved, {"a"})
    assert row.saved_share == (0.75 if saved == (3.0, True) else None)


def test_the_dearest_row_comes_first_and_days_come_in_order() -> None:
    records = [ran(hours, job=job) for job, hours in (("b", 5.0), ("a", 5.0), ("c", 30.0))]
    assert [row.name for row in report(records, [], "job", NOW).rows] == ["c", "a", "b"]
    days = [row.name for row in report(records, [], "day", NOW).rows]
    assert len(days) == 2 and days == sorted(days)


def test_a_running_job_counts_so_far() -> None:
    state = make_state(Claimed(offering=SPOT_A, nodes=1), (Launched(2, nodes(2)), 0.0))
    beat = make_beat(10 * HOUR, trained_s=9 * HOUR, waste=Waste(waited_s=0.0, idle_s=HOUR, lost_s=HOUR))
    submission = Submission(job="job-1", spec=make_spec(), submitter="jane")
    facts = {2: (make_facts(2, beat=beat),)}
    record = IndexRecord(state, summarize(state, submission, facts, at(10 * HOUR)))
    row = report([record], [], "job", at(20 * HOUR)).total
    assert known(row) == pytest.approx(
        {"spent": 20.0, "on_demand": 60.0, "saved": 40.0, "idle": 1.0, "lost": 0.0, "startup": 1.0, "waiting": 0.0}
    ), "nothing is lost as long as it may be saved, and nobody knows of what was not heard"


def test_a_machine_that_was_held_is_paid_for_and_not_wasted() -> None:
    state = make_state(
        Claimed(offering=SPOT_A, nodes=1),
        (Launched(2, nodes(2)), 0.0),
        (Closed(claim=2, outcome="failed", rule="user-error", trained_s=HOUR, waste=Waste(0.0, 0.0, 0.0)), HOUR),
        Ended(outcome="failed", rule="user-error", claim=2),
    )
    submission = Submission(job="job-1", spec=make_spec(), submitter="jane")
    facts = {2: (make_facts(2, beat=make_beat(3 * HOUR, "held")),)}
    record = IndexRecord(state, summarize(state, submission, facts, at(9 * HOUR)))
    row = report([record], [], "job", at(9 * HOUR)).total
    assert (row.spent.known, wasted(row)) == pytest.approx((3.0, 0.0))
    assert row.spent.known == pytest.approx(record.summary.cost)


@pytest.mark.parametrize(
    "waste",
    [
        Waste(waited_s=1e18, idle_s=1e18, lost_s=1e18),
        Waste(waited_s=float("nan"), idle_s=float("inf"), lost_s=-5.0),
        Waste(waited_s=0.0, idle_s=9 * HOUR, lost_s=9 * HOUR),
    ],
)
def test_facts_that_cannot_be_waste_no_more_than_there_was(waste: Waste) -> None:
    record = ran(waste=waste, trained_h=1e9)
    claim = record.state.claims[0]
    shares = shares_of(claim, None, NOW, None)
    parts = [shares.idle or 0.0, shares.lost or 0.0, shares.startup or 0.0, shares.waiting or 0.0]
    assert all(0.0 <= part <= 1.0 for part in parts) and sum(parts) <= 1.0 + 1e-9
    row = report([record], [], "job", NOW).total
    assert wasted(row) <= (row.spent.known or 0.0) + 1e-9


# ── What is kept ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_spent_is_in_the_names_of_keys(tmp_path: Path) -> None:
    stores = (MemoryStore(lambda: EPOCH), open_store(str(tmp_path / "store")))
    long = {f"tag-{n}": "ü/=&" * 30 for n in range(10)}
    for store in stores:
        for tags in ({}, {"team": "v/1 & 2.0", "who": ""}, long):
            record = ran(hours=30.0, job=f"job-{len(tags)}")
            spec = replace(make_spec(2), tags=tags)
            for _ in range(2):
                record_job_costs(store, record.state, spec, NOW)
            found = [each for each in read_daily_costs(store, [keys.SPENT]) if each.job == record.state.job]
            assert [(each.day, each.sums.spent.known) for each in found] == [
                (date(2026, 1, 1), pytest.approx(48.0)),
                (date(2026, 1, 2), pytest.approx(12.0)),
            ]
            assert all(dict(each.tags) == tags for each in found)
        (one,) = read_daily_costs(store, [keys.spent_day(date(2026, 1, 2))])[:1]
        assert one.day == date(2026, 1, 2)
        store.put(f"{keys.SPENT}2026-01/01/job/nonsense", b"")
        assert len(read_daily_costs(store, [keys.spent_month(date(2026, 1, 1))])) == 6


def test_one_that_was_resumed_is_counted_once_and_the_dearest_is_right() -> None:
    store = MemoryStore(lambda: EPOCH)
    day = date(2026, 1, 1)
    for key in ("00000005.3000000.9000000.", "00000009.7000000.9000000.", "00000009.6900000.9000000."):
        store.put(f"{keys.spent_day(day)}job-1/{key}", b"")
    (only,) = read_daily_costs(store, [keys.SPENT])
    assert only.sums == DaySums(KnownSum(7.0), KnownSum(9.0), KnownSum(7.0))
    store.put(f"{keys.spent_day(day)}job-1/00000012.x.9500000.", b"")
    (only,) = read_daily_costs(store, [keys.SPENT])
    assert only.sums == DaySums(KnownSum(0.0, whole=False), KnownSum(9.5), KnownSum(9.5)), "what is not known stays so"


def test_accounts_are_of_all_jobs_that_are_there_or_were() -> None:
    store = MemoryStore(lambda: NOW)
    there, gone = ran(), ran(job="gone-1")
    for record in (there, gone):
        record_job_costs(store, record.state, make_spec(2), NOW)
    write_index(store, there)
    found = read_accounts(store, NOW)
    assert [record.state.job for record in found.records] == ["job-1"]
    assert [each.job for each in found.removed] == ["gone-1"]
    later = read_accounts(store, NOW, since=NOW + timedelta(days=1))
    assert (later.records, later.removed) == ((), ()), "it ended before"
    assert codec.dumps(there)


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return str(tmp_path / "store")


def costs(store_url: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["--store", store_url, "costs", *arguments])
    told = capsys.readouterr()
    return told.out + told.err if left.value.code == 0 else f"{left.value.code}: {told.err}"


def test_the_command(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing was spent in file:///" in costs(store_url, capsys)
    assert costs(store_url, capsys, "--since", "all").startswith("nothing was spent in file:///")
    store = open_store(store_url)
    job = client.submit(Job(run="true", tags={"team": "vision"}), store=store)
    events: tuple[Event, ...] = (
        Claimed(offering=replace(ON_DEMAND, provider="local"), nodes=1),
        Launched(2, nodes(2)),
    )
    for seq, event in enumerate(events, 2):
        assert job_log.append(store, job, seq, Record(token=job_log.new_token(), by="test", reason="test", event=event))
    text = costs(store_url, capsys, "--by", "team")
    assert text.splitlines()[0].split() == [
        *("TEAM", "JOBS", "SPENT", "ON-DEMAND", "SAVED", "IDLE", "LOST", "START-UP", "WAITING")
    ]
    assert text.splitlines()[1].startswith("vision") and text.splitlines()[2].startswith("total")
    assert "--by teem: no job has a tag of that name\n" in costs(store_url, capsys, "--by", "teem")
    assert "no job has a tag of that name; did you mean machine?" in costs(store_url, capsys, "--by", "machines")
    both = costs(store_url, capsys, "--by", "team, project").splitlines()
    assert any(line.startswith("vision, (none) ") for line in both)
    assert "no job has a tag project\n" in costs(store_url, capsys, "--by", "team,project")
    assert "day stands alone; the tag is tags.day" in costs(store_url, capsys, "--by", "team,day")
    found = json.loads(costs(store_url, capsys, "--by", "tags.team", "--json"))
    assert [row["name"] for row in found["rows"]] == ["vision"] and found["total"]["spent"] > 0
    assert found["total"]["saved_share"] == pytest.approx(0.0) and found["total"]["incomplete"] == ["waiting"]


def test_a_table_for_spreadsheets(store_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store, since = open_store(store_url), "2020-01-01"
    began_s = (datetime.now(timezone.utc) - EPOCH).total_seconds() - 11 * HOUR
    for job, tags in (("job-1", {"team": "vision"}), ("job-2", {"team": '=HYPERLINK("x"),a'})):
        record = ran(start_s=began_s, job=job, **tags)
        record_job_costs(store, record.state, replace(make_spec(2), tags=tags), NOW)
    text = costs(store_url, capsys, "--by", "team", "--since", since, "--csv")
    rows = list(csv.reader(text.splitlines()))
    assert rows[0] == ["team", "jobs", *AMOUNTS, "incomplete"]
    assert [row[:4] for row in rows[1:]] == [
        ['\'=HYPERLINK("x"),a', "1", "20.0", "60.0"],
        ["vision", "1", "20.0", "60.0"],
    ]
    assert rows[2][5] == "" and "idle" in rows[2][-1].split(), "what is not known is empty"
    both = costs(store_url, capsys, "--by", "tags.team,project", "--since", since, "--csv")
    columns = [row[:3] for row in csv.reader(both.splitlines())]
    assert ["tags.team", "project", "jobs"] in columns and ["vision", "(none)", "1"] in columns
    file = tmp_path / "costs.csv"
    assert "2 rows in " in costs(store_url, capsys, "--by", "team", "--since", since, "--csv", str(file))
    assert file.read_text() == text
    assert costs(store_url, capsys, "--csv", "--json").startswith("2: stoker: --csv and --json: give one of them")
    assert "--by teem: no job has a tag of that name\n" in costs(store_url, capsys, "--by", "teem", "--csv")
    assert "cannot be written" in costs(store_url, capsys, "--csv", str(tmp_path / "no" / "x.csv"))


def test_what_was_removed_is_still_in_the_total(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(store_url)
    record = ran(start_s=(datetime.now(timezone.utc) - EPOCH).total_seconds() - 11 * HOUR)
    write_index(store, record)
    record_job_costs(store, record.state, make_spec(2), NOW)
    before = json.loads(costs(store_url, capsys, "--json"))
    remove_job(store, "job-1")
    after = json.loads(costs(store_url, capsys, "--json"))
    assert after["total"]["spent"] == pytest.approx(before["total"]["spent"]) == pytest.approx(20.0)
    assert after["total"]["on_demand"] == pytest.approx(60.0)


def test_how_the_budgets_stand(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store, today = open_store(store_url), datetime.now(timezone.utc).date()
    rules = (
        "- {name: all, budget: {dollars: 4000, period: day}}\n"
        "- {name: each-team, budget: {dollars: 20, period: day, by: team}}\n"
        "- {name: students, budget: {dollars: 5, period: day}, for: {stage: student}}\n"
    )
    versions.write(store, f"rules:\n{rules}", "jane")
    tomorrow = (today + timedelta(days=1)).isoformat()
    lines = costs(store_url, capsys).splitlines()
    untouched = "$0.00 of $4,000.00 (0%), $0.00 reserved, $4,000.00 left"
    assert lines[0] == f"budget all: {untouched}, until {tomorrow}", "also where nothing was spent"
    began_s = (datetime.combine(today, time(), timezone.utc) - EPOCH).total_seconds()
    for job, hours, tags in (("job-1", 15.79, {"team": "vision"}), ("job-2", 1.0, {})):
        record = ran(hours, job=job, start_s=began_s, **tags)
        record_job_costs(store, record.state, replace(make_spec(2), tags=tags), NOW)
    shown = costs(store_url, capsys)
    assert [line for line in shown.splitlines() if line.startswith("budget")] == [
        f"budget all: $33.58 of $4,000.00 (1%), $0.00 reserved, $3,966.42 left, until {tomorrow}",
        f"budget each-team, jobs without team: $2.00 of $20.00 (10%), $0.00 reserved, $18.00 left, until {tomorrow}",
        f"budget each-team, team=vision: $31.58 of $20.00 (158%), $0.00 reserved, $0.00 left, until {tomorrow}",
        f"budget students: $0.00 of $5.00 (0%), $0.00 reserved, $5.00 left, until {tomorrow}",
    ]
    told = json.loads(costs(store_url, capsys, "--json"))["budgets"]
    assert told[2] == {
        "rule": "each-team",
        "by": "team",
        "value": "vision",
        "spent": pytest.approx(31.58),
        "reserved": 0.0,
        "left": 0.0,
        "forecast": pytest.approx(told[2]["forecast"]),
        "dollars": 20.0,
        "period": "day",
        "until": tomorrow,
        "incomplete": False,
    }
    store.put(keys.rules(2), codec.dumps(versions.PolicyText("rules: [{vibes: 3}]", "joe")))
    assert "the state of the budgets is not known: policy version 2" in costs(store_url, capsys)
    assert json.loads(costs(store_url, capsys, "--json"))["budgets"] is None


@pytest.mark.parametrize("when", ["7", "7.5", "yesterday", "", "2026-13-01", "99999999999999w"])
def test_a_moment_that_is_none(store_url: str, capsys: pytest.CaptureFixture[str], when: str) -> None:
    told = costs(store_url, capsys, "--since", when)
    assert told.startswith(f"2: stoker: --since {when}".rstrip()) and "expected a span such as 7d" in told
