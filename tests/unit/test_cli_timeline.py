"""The story of a job, in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from stoker.cli.format import clock
from stoker.cli.job_report import cost_text, job_text
from stoker.cli.timeline import attempt_line, handover_line, timeline
from stoker.core.summary import AttemptSummary, NodeSummary, Summary, summarize
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Launched, Submitted, Waste
from stoker.model.node_facts import CheckpointRef, NodeFacts, SaveTimes
from stoker.model.offerings import Offering
from stoker.model.submission import Code, Submission
from stoker.read.decision_text import describe, news, outcome_text
from tests.support.sim_data import JOB, make_exit, make_facts, make_spec, make_state, nodes

START = datetime(2026, 11, 16, 12, 0, tzinfo=timezone.utc)

RECLAIMED = AttemptSummary(
    n=1,
    claim=2,
    provider="local",
    machine="local",
    zone="this-computer",
    spot=True,
    started_at=START,
    nodes=(NodeSummary(rank=0, instance="i-1", phase="exited"),),
    outcome="reclaimed",
    reason="reclaimed after a notice at step 412",
    trained_s=12.0,
    step=412,
    price=0.32,
    price_source="job file",
    noticed_at=START + timedelta(seconds=12),
    save=SaveTimes(saved_s=0.1, durable_s=0.2, ended_s=0.3, grace_s=None, commits=1),
    checkpoint=CheckpointRef("00000002/000003-step-412", "step-412", step=412),
    left_at=START + timedelta(seconds=13),
)
SECOND = replace(
    RECLAIMED,
    n=2,
    claim=4,
    outcome="succeeded",
    reason="the training finished",
    restored_from="00000002/000003-step-412",
    first_step=413,
    step=900,
    noticed_at=None,
    save=None,
    training_since=START + timedelta(seconds=13.6),
)
SUMMARY = Summary(
    id="gpt-7f3k",
    name="gpt",
    phase="succeeded",
    submitted_at=START,
    updated_at=START,
    submitter="jane@box",
    provider="local",
    nodes=1,
    reason="the training finished",
    attempts=(RECLAIMED, SECOND),
    interruptions=1,
    cost=0.02,
    on_demand_cost=0.0625,
    saved_share=0.68,
)


def test_a_reclaim_is_told_as_one_line() -> None:
    expected = "notice → saved 412 → durable 0.2 s → attempt 2 at 413, gap 0.6 s"
    assert handover_line(RECLAIMED, SECOND) == expected
    assert timeline(SUMMARY) == [
        (
            "attempt 1  local in this-computer, spot $0.32/h · trained 12 s to step 412 · "
            "reclaimed after a notice at step 412"
        ),
        f"  {expected}",
        (
            "attempt 2  local in this-computer, spot $0.32/h · from step-412 (1.3) · trained 12 s to step 900 · "
            "succeeded: the training finished"
        ),
    ]


def test_what_is_not_known_yet_is_left_out() -> None:
    waiting = replace(SECOND, first_step=None, training_since=None, restored_from=None, outcome=None)
    assert handover_line(RECLAIMED, waiting) == "notice → saved 412 → durable 0.2 s → attempt 2"
    assert handover_line(replace(RECLAIMED, save=None, outcome=None), None) == "notice → saving"
    unsaved = replace(RECLAIMED, save=SaveTimes(grace_s=3.0, commits=0))
    assert handover_line(unsaved, None) == "notice (3.0 s) → its last save was not durable in time: the store has 412"
    torn = replace(unsaved, save=SaveTimes(grace_s=3.0, commits=0, torn=True), waste=Waste(lost_s=9.0))
    told = "its last save was not whole: the store has 412, saved 9 s before its end"
    assert handover_line(torn, None) == f"notice (3.0 s) → {told}"
    assert handover_line(SECOND, None) == ""


def test_a_loss_without_a_notice_is_told_too() -> None:
    lost = replace(RECLAIMED, outcome="lost", noticed_at=None, save=None)
    kept = "the store has step-412 (1.3)"
    assert handover_line(lost, SECOND, attempts={2: 1}) == f"lost → {kept} → attempt 2 at 413, gap 0.6 s"
    aged = replace(lost, waste=Waste(lost_s=3.0))
    assert "412 (1.3), saved 3 s before its end → " in handover_line(aged, SECOND, "c", {2: 1})
    silent = handover_line(replace(aged, left_at=None), SECOND, "c", {2: 1})
    assert "412 (1.3), saved 3 s before its last heartbeat → " in silent
    again = replace(lost, checkpoint=None, restored_from="00000001/000002-ckpt", restored_step=7)
    told = handover_line(replace(again, outcome="infrastructure"), SECOND, "c", {1: 1})
    assert told.startswith("cut off → nothing new was saved: the store has ckpt (1.2), step 7 → attempt 2")
    nothing = replace(lost, checkpoint=None, saves_elsewhere=("out/x.pt",))
    assert "nothing was saved: no file was written to ck/; out/x.pt looks" in handover_line(nothing, SECOND, "ck")
    never = replace(nothing, trained_s=0.0)
    assert handover_line(never, SECOND) == "lost → attempt 2 at 413, gap 0.6 s"


def test_an_attempt_that_a_rule_asked_to_leave_was_not_cut_off() -> None:
    stalled = replace(RECLAIMED, outcome="infrastructure", rule="stall", noticed_at=None)
    assert handover_line(stalled, SECOND).startswith("stalled → saved 412 → durable 0.2 s → attempt 2")
    empty = handover_line(replace(stalled, checkpoint=None), SECOND)
    assert empty.startswith("stalled → nothing was saved: no file was written to checkpoints/")
    assert handover_line(replace(stalled, save=None), SECOND).startswith("stalled → the store has step-412 →")
    other = replace(stalled, rule="policy:idle")
    assert handover_line(other, SECOND).startswith("asked to leave → saved 412")
    assert handover_line(replace(other, save=None), SECOND).startswith("cut off → ")


def test_a_stop_tells_what_became_of_its_work() -> None:
    stopped = replace(RECLAIMED, outcome="stopped", noticed_at=None, reason="stopped by me; in the store: step 412")
    assert handover_line(stopped, None) == "stopped → saved 412 → durable 0.2 s"
    empty = replace(stopped, checkpoint=None)
    assert handover_line(empty, None).startswith("stopped → nothing was saved: no file was written to checkpoints/")
    assert attempt_line(stopped).endswith(" · stopped by me")


def test_checkpoints_of_one_name_are_told_apart() -> None:
    first = replace(RECLAIMED, outcome="failed", noticed_at=None, save=None)
    second = replace(SECOND, restored_from="00000002/000003-ckpt", restored_step=60, first_step=None)
    assert handover_line(first, second, attempts={2: 1}) == ("failed → attempt 2 from ckpt (1.3), step 60, gap 0.6 s")
    assert "· from ckpt (1.3), step 60 ·" in attempt_line(second, {2: 1})
    ref = CheckpointRef("00000002/000003-ckpt", "ckpt", 60, START)
    assert "ckpt (1.3), step 60, stored" in job_text(replace(SUMMARY, last_checkpoint=ref))


def test_clocks_that_differ_make_no_negative_gap() -> None:
    early = replace(SECOND, training_since=START)
    assert handover_line(RECLAIMED, early).endswith("gap 0.0 s")


def test_cost_names_the_saving_and_where_prices_come_from() -> None:
    assert cost_text(SUMMARY) == "$0.0200, on-demand $0.0625: saved 68% (prices: job file)"
    assert "unknown" in cost_text(replace(SUMMARY, cost=None))
    # In short, and without a saving that is none.
    table = replace(
        SECOND, spot=False, price_source="table of 2026-02-09 (AWS price list, by way of a long story (x.go))"
    )
    plain = replace(SUMMARY, attempts=(table,), cost=0.02, on_demand_cost=0.02, saved_share=0.0)
    assert cost_text(plain) == "$0.0200 (prices: table of 2026-02-09)"
    dearer = replace(SUMMARY, attempts=(table,), cost=0.03, on_demand_cost=0.02, saved_share=-0.5)
    assert cost_text(dearer) == "$0.0300, on-demand $0.0200 (prices: table of 2026-02-09)"


def test_the_price_of_one_node_of_several_is_said_to_be_that() -> None:
    offering = Offering(provider="ec2", machine="c7i.large", zone="us-east-1a", spot=True, price=0.05)
    claim = Entry(2, START, "spot first", Claimed(offering, nodes=2))
    assert news(claim, None) == "getting 2 × c7i.large in us-east-1a, spot $0.0500/h each (spot first)"
    assert describe(claim.event, None) == "asked for 2 × c7i.large in us-east-1a, spot $0.0500/h each"
    single = replace(claim, event=Claimed(replace(offering, zone=""), nodes=1))
    assert news(single, None) == "getting c7i.large in any zone, spot $0.0500/h (spot first)"
    pair = replace(SECOND, nodes=SECOND.nodes * 2)
    assert attempt_line(pair).startswith("attempt 2  2 × local in this-computer, spot $0.32/h each")


def test_a_running_job_tells_what_a_reclaim_now_would_cost() -> None:
    running = replace(
        SUMMARY,
        phase="running",
        at_risk_s=90.0,
        nodes=2,
        last_checkpoint=CheckpointRef(key="00000004/000001-step-800", name="step-800", committed_at=START),
    )
    text = job_text(running)
    assert "step-800 (2.1), stored" in text
    # 90 s of two nodes at $0.32/h.
    assert "a reclaim now would lose 1m 30s of training ($0.0160)" in text
    assert "a reclaim now" not in job_text(SUMMARY)


def test_a_failure_names_its_rule_and_quotes_the_log() -> None:
    failed = replace(SUMMARY, phase="failed", rule="user-error", reason="the script broke", exit_code=3)
    text = job_text(failed, ("Traceback …", "ValueError: no"))
    assert "rule `user-error`: the script broke (exit code 3)" in text
    assert text.endswith("    Traceback …\n    ValueError: no")
    # A script that was asked to leave ends by SIGTERM: that explains nothing.
    bound = replace(SUMMARY, phase="failed", rule="max_runtime", reason="limits.max_runtime is reached", exit_code=143)
    assert "143" not in job_text(bound)


def test_a_long_reason_is_told_in_full_once() -> None:
    reason = "setup: exited with 1: " + "ERROR: no matching distribution | " * 9
    last = replace(SECOND, outcome="failed", reason=reason)
    text = job_text(replace(SUMMARY, phase="failed", rule="user-error", reason=reason, attempts=(last,)))
    assert text.count(reason) == 1
    assert text.count("failed") == 3 and text.count("…\n") == 2


def test_parameters_and_counts_are_written_as_people_write_them() -> None:
    text = job_text(
        replace(
            SUMMARY,
            code=Code(digest="d", size=480, files=1),
            params={"flag": True, "lr": 0.001, "name": "a b", "none": None},
            ended_at=START,
        )
    )
    assert "1 file, 480 B" in text and "with 1 reclaim\n" in text
    assert "flag=true  lr=0.001  name=a b  none=null" in text
    assert text.splitlines()[5].endswith("  none")


def test_what_was_saved_is_the_checkpoint_and_not_the_step_that_some_node_had_reached() -> None:
    ahead = replace(RECLAIMED, step=413, checkpoint=CheckpointRef("00000002/000003-step-412", "step-412", step=412))
    assert handover_line(ahead, SECOND).startswith("notice → saved 412 → durable")
    unnumbered = replace(ahead, checkpoint=CheckpointRef("00000002/000003-last", "last"))
    assert handover_line(unnumbered, SECOND, attempts={2: 1}).startswith("notice → saved last (1.3) → durable")


def test_of_several_nodes_the_newest_checkpoint_is_the_attempts() -> None:
    older, newer = (CheckpointRef(f"00000002/00000{n}-step-{n}", f"step-{n}", step=n) for n in (3, 4))
    facts: dict[int, tuple[NodeFacts, ...]] = {
        2: (
            make_facts(2, rank=0, left=make_exit("interrupted", "notice", step=4, checkpoint=newer)),
            make_facts(2, rank=1, left=make_exit("interrupted", "notice", step=5, checkpoint=older)),
        )
    }
    offering = Offering(provider="p", machine="m", zone="z", spot=True)
    state = make_state(Claimed(offering, nodes=2), Launched(2, nodes(2, 2)))
    (found,) = summarize(state, Submission(JOB, make_spec(nodes=2), "jane"), facts, START).attempts
    assert found.checkpoint == newer and found.step == 5


def test_followers_are_told_what_matters() -> None:
    def told(event: object) -> str | None:
        return news(Entry(seq=1, at=START, reason="because", event=event), None)  # type: ignore[arg-type]

    assert told(Submitted(spec_digest="", submitter="")) is None
    assert told(Closed(claim=4, outcome="reclaimed", rule="notice")) == "claim 4 reclaimed: because"
    assert told(Closed(claim=4, outcome="dry", rule="no-capacity")) == "no capacity: because"
    assert told(Ended(outcome="failed", rule="x")) == "failed: because"


def test_what_never_got_a_machine_is_told_by_what_was_asked_for() -> None:
    offering = Offering(provider="gce", machine="n1-standard-4", zone="us-central1-a", spot=True)
    refused = Closed(claim=2, outcome="refused", rule="QuotaExceeded")
    state = make_state(Claimed(offering, nodes=1), refused)
    asked = "the request for n1-standard-4 spot in us-central1-a"
    assert describe(refused, state) == f"{asked} was refused [QuotaExceeded: a quota of the account is reached]"
    assert news(Entry(3, START, "because", refused), state) == f"{asked} was refused: because"
    short = Closed(claim=2, outcome="dry", rule="QuotaExceeded")
    assert news(Entry(3, START, "because", short), state) == f"{asked} came to nothing: because", (
        "it is not for lack of machines"
    )


def test_rules_are_explained() -> None:
    assert describe(Ended(outcome="failed", rule="no-offering"), None) == (
        "failed [no-offering: no offering can be launched]"
    )
    assert describe(Ended(outcome="failed", rule="user-error"), None) == "failed [user-error]"
    text = job_text(replace(SUMMARY, phase="failed", rule="no-offering", reason="quota"))
    assert "failed by the rule `no-offering` (no offering can be launched): quota" in text
    text = job_text(replace(SUMMARY, phase="failed", rule="user-error", reason="it broke"))
    assert "failed by the rule `user-error`: it broke" in text


def test_a_machines_own_logs_are_a_link_where_there_is_one() -> None:
    node = NodeSummary(0, "z.7", name="stoker-gpt-0", logs_query="instance_id=7", logs_link="https://logs.example/7")
    text = job_text(replace(SUMMARY, attempts=(replace(SECOND, nodes=(node,)),)))
    assert any("logs of the machine" in line and "https://logs.example/7" in line for line in text.splitlines())
    assert "instance_id=7" not in text


def test_an_outcome_is_not_said_twice() -> None:
    assert outcome_text("stopped", "stopped by jane@box") == "stopped by jane@box"
    assert outcome_text("limit", "limits.max_cost is reached") == "limit: limits.max_cost is reached"
    assert outcome_text("lost", "") == "lost"


def test_the_clock_tells_the_date_of_another_day() -> None:
    assert len(clock(START, START + timedelta(seconds=1))) == len("12:00:00")
    assert clock(START, START + timedelta(days=2)).startswith("2026-11-1")


# ── On one's own computer, where nothing is paid for ──────────────────────────────────────────────────────────────────

OWN = Offering(provider="local", machine="local", zone="this-computer", spot=False, price=0.0, on_demand_price=0.0)


def test_a_free_machine_has_no_price() -> None:
    claimed = Claimed(offering=OWN, nodes=1)
    assert describe(claimed, None) == "asked for 1 × local in this-computer"
    assert describe(Claimed(offering=replace(OWN, spot=True), nodes=1), None) == (
        "asked for 1 × local in this-computer, spot"
    )
    free = replace(SUMMARY.attempts[0], price=0.0, price_source="", spot=False)
    assert attempt_line(free).startswith("attempt 1  local in this-computer · ")
    assert cost_text(replace(SUMMARY, cost=0.0, on_demand_cost=0.0, saved_share=None, attempts=(free,))) == (
        "nothing: no price is set"
    )


def test_no_price_is_said_to_be_from_a_job_file_that_names_none() -> None:
    from stoker.model.resources import LocalResources, Resources
    from stoker.providers.local.offers import offerings

    def sources(local: LocalResources | None) -> set[str]:
        return {each.price_source for each in offerings(Resources(provider="local", local=local))}

    assert sources(None) == sources(LocalResources(capacity=1)) == {""}
    assert sources(LocalResources(price=1.2)) == sources(LocalResources(spot_price=0.4)) == {"job file"}


def test_a_launch_that_found_no_room_is_told_in_plain_words() -> None:
    dry = Closed(claim=2, outcome="dry", rule="no-capacity")
    state = make_state(Claimed(OWN, nodes=1), dry)
    told = describe(dry, state)
    assert told == "the request for local on-demand in this-computer found no machine [no-capacity]"
    assert "sold out" not in told and "dry" not in told


def test_a_job_without_a_checkpoint_says_so_once() -> None:
    running = replace(SUMMARY, phase="running", ended_at=None, last_checkpoint=None, at_risk_s=3.9)
    assert "none in the store yet; a reclaim now would lose 3.9 s of training" in job_text(running)
    own = replace(SUMMARY.attempts[-1], spot=False, price=0.0)
    text = job_text(replace(running, attempts=(own,)))
    assert "none in the store yet; losing the machine now would lose 3.9 s of training\n" in text
