"""Nothing is claimed to be saved that is not in the store, and people are warned of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from stoker.cli.job_report import job_text
from stoker.cli.ps import note
from stoker.cli.timeline import handover_line
from stoker.core.attempt_evidence import AttemptEvidence
from stoker.core.attempt_verdict import judge
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.saved_work import (
    cause_of_end,
    lost_everything,
    nothing_saved,
    nothing_saved_yet,
    save_entry,
    saved_part,
    with_step,
    without_saved_part,
)
from stoker.core.snapshot import Append
from stoker.core.summary import Summary, summarize
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, Warned, Waste
from stoker.model.node_facts import CheckpointRef, NodeFacts, OmittedOutput, SavedOutputs, SaveTimes
from stoker.model.path_patterns import PathFilter, entries_of
from stoker.model.submission import Submission
from stoker.read.decision_text import news
from tests.support.sim_data import (
    JOB,
    ON_DEMAND,
    SPOT_A,
    at,
    make_beat,
    make_exit,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

RUNNING: tuple[Event, ...] = (Claimed(SPOT_A, 1), Launched(2, nodes(2)))
NOTHING = "nothing was saved: no file was written to checkpoints/"


def case(beat: dict[str, Any] | None = None, *, noticed: bool = True, **left: Any) -> AttemptEvidence:
    state = make_state(*RUNNING)
    claim = state.claim(2)
    assert claim is not None
    told = make_exit("interrupted", "notice", started=True, step=40, at_s=100.0, **left)
    heartbeat = make_beat(90.0, **beat).value if beat is not None else None
    return AttemptEvidence(claim, (told,), (heartbeat,), noticed, state, make_spec(), DEFAULT)


# ── What a reclaim says ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reclaim_says_what_is_in_the_store_of_which_step_and_when() -> None:
    ref = CheckpointRef("00000002/000003-step-38", "step-38", 38, at(88.0))
    assert judge(case(checkpoint=ref, waste=Waste(lost_s=12.0))).reason == (
        "reclaimed after a notice at step 40; in the store: step 38, saved 12 s before its end"
    )
    asked = judge(case(checkpoint=ref, waste=Waste(lost_s=0.0))).reason
    assert asked.endswith("step 38, saved at its end"), "the save that the notice asked for"
    absurd = judge(case(checkpoint=ref, waste=Waste(lost_s=float("nan")))).reason
    assert absurd.endswith("step 38, saved at its end")
    silent = replace(case(beat={"trained_s": 50.0, "checkpoint": ref, "waste": Waste(lost_s=9.0)}), exits=(None,))
    assert judge(silent).reason.endswith("in the store: step 38, saved 9 s before its last heartbeat")
    unnumbered = CheckpointRef("00000002/000003-ckpt", "ckpt")
    assert judge(case(checkpoint=unnumbered)).reason.endswith("; in the store: ckpt (1.3)")


def test_a_reclaim_that_saved_nothing_says_so() -> None:
    assert judge(case()).reason.startswith(f"reclaimed after a notice at step 40; {NOTHING}; `checkpoints.dir` in")
    found = judge(case(saves_elsewhere=("out/ckpt.pt",))).reason
    assert found.endswith(
        f"{NOTHING}; out/ckpt.pt looks like a save: write `checkpoints: {{dir: out}}` in the job file"
    )
    torn = judge(case(beat={"checkpoint_files": 2})).reason
    assert torn.endswith("nothing was saved: what was written to checkpoints/ was not whole in time")
    again = judge(case(restored_from="00000002/000001-step-7")).reason
    assert again.endswith("; nothing new was saved: the store has step-7 (1.1), from which it began")


def test_what_was_lost_or_killed_without_a_checkpoint_says_so_too() -> None:
    killed = make_exit("failed", signal=9, started=True, trained_s=50.0)
    state = case().state
    claim = state.claims[0]
    found = judge(AttemptEvidence(claim, (killed,), (None,), False, state, make_spec(), DEFAULT))
    assert found.rule == "killed" and NOTHING in found.reason
    beat = make_beat(90.0, trained_s=50.0).value
    lost = judge(AttemptEvidence(claim, (None,), (beat,), False, state, make_spec(), DEFAULT))
    assert lost.rule == "gone" and NOTHING in lost.reason
    never = judge(
        AttemptEvidence(claim, (make_exit("interrupted", "waited"),), (None,), False, state, make_spec(), DEFAULT)
    )
    assert "saved" not in never.reason, "it never trained"


@pytest.mark.parametrize(
    ("paths", "entry"),
    [
        (("out/ckpt.pt",), "out"),
        (("out/checkpoint-500/", "out/checkpoint-1000/"), "out"),
        (("runs/a/x.pt", "runs/b/y.pt"), "runs"),
        (("out/models/x.pt", "out/models/y.pt"), "out/models"),
        (("lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt",), "lightning_logs"),
        (("outputs/2026-11-18/04-02-11/last.ckpt",), "outputs"),
        (("model.pt",), '"model.pt"'),
        (("model-1.h5", "model-2.h5"), '"model-*.h5"'),
        (("checkpoint-500/", "checkpoint-1000/"), '"checkpoint-*"'),
        (("out/deep/x.pt", "y.pt"), '[out, "y.pt"]'),
    ],
)
def test_what_to_write_is_where_the_saves_lie(paths: tuple[str, ...], entry: str) -> None:
    assert save_entry(paths) == entry
    for told in (nothing_saved("checkpoints", paths), nothing_saved_yet("checkpoints", 300.0, paths)):
        assert told.endswith(f"write `checkpoints: {{dir: {entry}}}` in the job file")
        assert all(path in told for path in paths)
    written = yaml.safe_load(f"{{dir: {entry}}}")["dir"]
    takes = PathFilter(entries_of(written)).takes
    assert all(takes(path.rstrip("/")) or path.startswith(f"{written}/") for path in paths)


def test_a_reason_is_parted_into_the_cause_and_what_the_store_has() -> None:
    for found in (case(), case(restored_from="00000002/000001-step-7"), case(checkpoint=KEPT)):
        reason = judge(found).reason
        assert cause_of_end(reason) == "reclaimed after a notice at step 40"
        assert f"{cause_of_end(reason)}; {saved_part(reason)}" == reason
    assert lost_everything(judge(case()).reason) and not lost_everything(judge(case(checkpoint=KEPT)).reason)
    assert (cause_of_end("it broke; twice"), saved_part("it broke; twice")) == ("it broke; twice", "")


def test_an_attempt_adds_up_what_its_nodes_kept_and_left_out() -> None:
    large, small = OmittedOutput("large.bin", 500, "too large"), OmittedOutput("small.bin", 5, "too many files")
    kept = (SavedOutputs(2, 20, 1, 500, (large,)), SavedOutputs(1, 7, 1, 5, (small,)))
    facts = tuple(
        make_facts(2, rank, left=make_exit("succeeded", outputs=outputs)) for rank, outputs in enumerate(kept)
    )
    state = make_state(Claimed(SPOT_A, 2), Launched(2, nodes(2, 2)))
    (attempt,) = summarize(state, Submission(JOB, make_spec(), "jane"), {2: facts}, at(60)).attempts
    assert attempt.outputs == SavedOutputs(3, 27, 2, 505, (large, small))
    (running,) = summarize(state, Submission(JOB, make_spec(), "jane"), {}, at(60)).attempts
    assert running.outputs is None


def test_a_title_has_the_step_unless_its_name_tells_it() -> None:
    assert with_step("ckpt (1.3)", 900) == "ckpt (1.3), step 900"
    assert with_step("ckpt (1.3)", 3) == "ckpt (1.3), step 3", "a reference is no step"
    assert with_step("step-900 (1.3)", 900) == "step-900 (1.3)"
    assert with_step("last", None) == "last"


# ── The timeline ──────────────────────────────────────────────────────────────────────────────────────────────────────


def line(save: SaveTimes | None, beat: dict[str, Any] | None = None, **left: Any) -> str:
    """The line below an attempt that was reclaimed, from the facts of its node."""
    from tests.support.sim_data import hard_notice

    exit_ = make_exit("interrupted", "notice", step=412, started=True, at_s=21.0, save=save, **left)
    facts = {2: (make_facts(2, beat=make_beat(15.0, **beat or {}), notice=hard_notice(20.0), left=exit_),)}
    state = make_state(
        *RUNNING, Closed(2, "reclaimed", "notice", restart=True, restored_from=left.get("restored_from"))
    )
    found = summarize(state, Submission(JOB, make_spec(), "jane"), facts, at(60))
    return handover_line(found.attempts[0], None, found.checkpoint_dir, {2: 1})


GRACE = SaveTimes(saved_s=0.0, durable_s=0.0, ended_s=0.1)
KEPT = CheckpointRef("00000002/000003-step-400", "step-400", 400, at(14.0))


def test_the_timeline_claims_no_save_without_one() -> None:
    assert line(replace(GRACE, commits=0)).startswith(f"notice → {NOTHING}")
    assert line(GRACE).startswith(f"notice → {NOTHING}"), "of an agent that did not count"
    named = line(replace(GRACE, commits=0), saves_elsewhere=("out/ckpt.pt",))
    assert named.endswith("out/ckpt.pt looks like a save: write `checkpoints: {dir: out}` in the job file")
    torn = line(replace(GRACE, commits=0), beat={"checkpoint_files": 1})
    assert torn == "notice → nothing was saved: what was written to checkpoints/ was not whole in time"
    again = line(replace(GRACE, commits=0), restored_from="00000002/000001-step-7")
    assert again == "notice → nothing new was saved: the store has step-7 (1.1)"
    assert "durable 0.0 s" not in again


def test_the_timeline_says_of_which_step_and_when() -> None:
    assert line(replace(GRACE, commits=1, durable_s=0.2), checkpoint=KEPT) == "notice → saved 400 → durable 0.2 s"
    lost = Waste(lost_s=6.0)
    early = line(replace(GRACE, commits=0), checkpoint=KEPT, waste=lost)
    assert early == "notice → nothing new to save: the store has 400, saved 6 s before its end"
    late = line(replace(GRACE, commits=0, durable_s=None), checkpoint=KEPT, waste=lost)
    torn = line(replace(GRACE, commits=1, durable_s=None, torn=True), checkpoint=KEPT)
    assert torn == "notice → saved 400 → its last save was not whole"
    assert late == "notice → its last save was not durable in time: the store has 400, saved 6 s before its end"
    partly = line(replace(GRACE, commits=1, durable_s=None), checkpoint=KEPT)
    assert partly == "notice → saved 400 → not all of it durable in time"


def test_an_attempt_without_a_checkpoint_began_from_the_beginning() -> None:
    first = (*RUNNING, Closed(2, "lost", "gone", restart=True))
    state = make_state(*first, Claimed(SPOT_A, 1), Launched(5, nodes(5)))
    facts = {2: (make_facts(2),), 5: (make_facts(5, beat=make_beat(50, training_since=at(45), first_step=1)),)}
    one, two = summarize(state, Submission(JOB, make_spec(), "jane"), facts, at(60)).attempts
    assert handover_line(one, two) == "lost → attempt 2 from the beginning"


# ── The warning ───────────────────────────────────────────────────────────────────────────────────────────────────────


def warned(now_s: float, *events: Event, spot: bool = True, **told: Any) -> str | None:
    """What the governor warns of, by a heartbeat."""
    claimed = Claimed(SPOT_A if spot else ON_DEMAND, 1)
    state = make_state(claimed, Launched(2, nodes(2)), *events)
    facts = make_facts(2, beat=make_beat(now_s, trained_s=now_s - 20.0, **told))
    plan = decide_job(make_snapshot(state, facts), DEFAULT, at(now_s))
    found = [action for action in plan.actions if isinstance(action, Append) and isinstance(action.event, Warned)]
    assert all(isinstance(one.event, Warned) and one.event.code == "no-checkpoint:2" for one in found)
    return found[0].reason if found else None


def test_a_folder_that_stays_empty_is_warned_of_after_the_first_minutes() -> None:
    assert warned(200.0) is None
    assert warned(330.0) is None, "the agent looks for saves elsewhere first"
    found = warned(400.0, saves_elsewhere=("out/ckpt.pt",))
    assert found is not None and "checkpoints/ is empty" in found and "{dir: out}" in found
    assert warned(400.0, Warned("no-checkpoint:2")) is None, "once"
    assert warned(400.0, checkpoint_files=1) is None
    assert warned(400.0, restored_from="00000001/000001-x") is None
    assert warned(400.0, checkpoint=CheckpointRef("00000002/000001-x", "x")) is None


def test_an_empty_folder_is_warned_of_on_demand_too() -> None:
    assert "checkpoints/ is empty, and losing the machine would lose everything" in str(warned(400.0, spot=False))
    assert warned(4000.0, spot=False, checkpoint_files=1) is None
    assert "out/ckpt.pt" in str(warned(4000.0, spot=False, saves_elsewhere=("out/ckpt.pt",)))


def test_a_folder_that_is_not_committed_is_warned_of_later_and_loses_what_it_would() -> None:
    assert warned(1700.0, checkpoint_files=1) is None
    assert "a reclaim would lose everything" in str(warned(1900.0, checkpoint_files=1))
    assert "what was trained since its start" in str(warned(1900.0, restored_from="00000001/000001-x"))


def test_after_a_reclaim_that_saved_nothing_people_are_told_once_the_next_machine_is_on_its_way() -> None:
    closed = Closed(2, "reclaimed", "notice", restart=True, trained_s=50.0)
    gone = make_snapshot(make_state(*RUNNING, closed))
    (first, *_) = decide_job(gone, DEFAULT, at(100)).actions
    assert isinstance(first, Append) and isinstance(first.event, Claimed), "the next machine comes first"
    coming = (*RUNNING, closed, Claimed(SPOT_A, 1), Launched(5, nodes(5)))
    (action,) = decide_job(make_snapshot(make_state(*coming)), DEFAULT, at(100)).actions
    assert isinstance(action, Append) and action.event == Warned("no-checkpoint:2")
    assert action.reason.startswith("attempt 1: ") and action.reason.endswith(
        "the next attempt starts from the beginning"
    )
    told = "attempt 1 left no checkpoint: the next attempt starts from the beginning"
    assert news(Entry(7, at(100), action.reason, action.event), None) == told, "followers see it in short"
    for outcome in ("lost", "infrastructure", "abandoned"):
        events = (*RUNNING, replace(closed, outcome=outcome), Claimed(SPOT_A, 1), Launched(5, nodes(5)))
        (action,) = decide_job(make_snapshot(make_state(*events)), DEFAULT, at(100)).actions
        assert isinstance(action, Append) and action.event == Warned("no-checkpoint:2"), "however it ended"
    for other in (
        replace(closed, checkpoint="00000002/000001-x"),
        replace(closed, restored_from="00000001/000001-x"),
        replace(closed, trained_s=0.0),
        replace(closed, outcome="dry"),
        replace(closed, outcome="failed"),
    ):
        events = (*RUNNING, other, Claimed(SPOT_A, 1), Launched(5, nodes(5)))
        assert not decide_job(make_snapshot(make_state(*events)), DEFAULT, at(100)).actions
    told = (*coming, Warned("no-checkpoint:2"))
    assert not decide_job(make_snapshot(make_state(*told)), DEFAULT, at(100)).actions


def test_ps_shows_the_warning_of_an_agent() -> None:
    beat = make_beat(400, training_since=at(40), warnings=("nothing has been saved in 5 min of training",))
    state = make_state(*RUNNING)
    summary = summarize(state, Submission(JOB, make_spec(), "jane"), {2: (make_facts(2, beat=beat),)}, at(400))
    assert note(summary, {JOB}, at(400)).startswith("warning: nothing has been saved")
    assert "nothing has been saved" in job_text(summary)
    ended = make_state(*RUNNING, Closed(2, "stopped", "stop"), Ended("stopped", "stop", 2))
    over = summarize(ended, Submission(JOB, make_spec(), "jane"), {2: (make_facts(2, beat=beat),)}, at(400))
    assert "has been saved" not in job_text(over), "an ended job has nothing to lose"


def test_ps_and_show_tell_that_the_attempt_before_left_nothing_until_there_is_a_checkpoint() -> None:
    closed = Closed(2, "infrastructure", "killed", restart=True, trained_s=50.0)
    advice = "`checkpoints.dir` in the job file names the folder that the script saves to"
    reason = f"the training was killed from outside (SIGKILL); {NOTHING}; {advice}"
    state = make_state(*RUNNING, closed, Claimed(SPOT_A, 1), Launched(5, nodes(5)))
    state = replace(state, claims=(replace(state.claims[0], closed_reason=reason), *state.claims[1:]))

    def look(**told: Any) -> Summary:
        beat = make_beat(90.0, training_since=at(80), **told)
        facts: dict[int, tuple[NodeFacts, ...]] = {2: (make_facts(2),), 5: (make_facts(5, beat=beat),)}
        return summarize(state, Submission(JOB, make_spec(), "jane"), facts, at(100))

    assert look().warnings == (f"attempt 1: {NOTHING}; {advice}",)
    assert note(look(), {JOB}, at(100)).startswith(f"warning: attempt 1: {NOTHING}")
    assert job_text(look()).count(NOTHING) == 1, "the line below the attempt says it"
    assert look(checkpoint=CheckpointRef("00000005/000001-x", "x")).warnings == ()
    own = ("nothing has been saved in 5 min of training: …",)
    assert look(warnings=own).warnings == own, "said once"


@pytest.mark.parametrize(
    ("outcome", "why", "warning"),
    [
        ("succeeded", "finished", "no checkpoint was made: no file was written to checkpoints/"),
        ("failed", "user-error", NOTHING),
    ],
)
def test_an_ended_job_that_saved_elsewhere_is_warned_of(outcome: Any, why: str, warning: str) -> None:
    def look(*events: Event, **told: Any) -> Summary:
        left = make_exit(outcome, started=True, trained_s=25.0, **told)
        state = make_state(*RUNNING, Closed(2, outcome, why, restart=len(events) > 1, trained_s=25.0), *events)
        return summarize(state, Submission(JOB, make_spec(), "jane"), {2: (make_facts(2, left=left),)}, at(60))

    over = Ended(outcome, why, 2)
    ended = look(over, saves_elsewhere=("out/ckpt.pt",))
    advice = "out/ckpt.pt looks like a save: write `checkpoints: {dir: out}` in the job file"
    assert ended.warnings == (f"attempt 1: {warning}; {advice}",)
    assert f"warning: attempt 1: {warning}; {advice}" in job_text(ended)
    assert (f"warning: attempt 1: {warning}"[:50] in note(ended, set(), at(60))) is (outcome == "succeeded")
    assert look(over).warnings == (), "a short job that saves nothing is not nagged"
    kept = CheckpointRef("00000002/000001-x", "x")
    assert look(over, saves_elsewhere=("out/ckpt.pt",), checkpoint=kept).warnings == ()
    if outcome == "failed":
        again = look(Claimed(SPOT_A, 1), Launched(5, nodes(5)), saves_elsewhere=("out/ckpt.pt",))
        assert again.warnings == (f"attempt 1: {warning}; {advice}",)
        assert f"failed → {warning}; {advice} → attempt 2" in job_text(again)


def test_the_same_sentence_is_said_once_in_a_report() -> None:
    advice = "`checkpoints.dir` in the job file names the folder that the script saves to"
    closed = Closed(2, "infrastructure", "stall", restart=True, trained_s=50.0)
    reason = f"no step for 20 s; {NOTHING}; {advice}"
    ended = f"{reason}; 2 attempts in a row made no progress"
    state = make_state(
        *RUNNING, closed, Claimed(SPOT_A, 1), Launched(5, nodes(5)), replace(closed, claim=5, restart=False)
    )
    state = replace(state, claims=tuple(replace(claim, closed_reason=reason) for claim in state.claims))
    save = SaveTimes(saved_s=0.1, durable_s=0.2, ended_s=0.3, commits=0)
    left = make_exit("interrupted", "drain", started=True, trained_s=50.0, save=save)
    facts: dict[int, tuple[NodeFacts, ...]] = {n: (make_facts(n, left=left),) for n in (2, 5)}
    found = summarize(state, Submission(JOB, make_spec(), "jane"), facts, at(100))
    text = job_text(replace(found, phase="failed", rule="stall", reason=ended))
    assert "trained 50 s · stalled: no step for 20 s\n" in text
    assert text.count(NOTHING) == 1 and "stalled → nothing was saved" in text and "as before" not in text
    assert "no step for 20 s; 2 attempts in a row made no progress" in text
    three = (*found.attempts, replace(found.attempts[1], n=3, claim=9))
    assert "stalled → nothing was saved, as before → attempt 3" in job_text(replace(found, attempts=three))
    assert without_saved_part(ended) == "no step for 20 s; 2 attempts in a row made no progress"
    assert without_saved_part("it broke") == "it broke"


def test_followers_read_once_that_nothing_was_saved() -> None:
    reason = f"no step for 20 s; {NOTHING}; write it"
    said = (f"[stoker] {NOTHING}; write it",)
    closed = Closed(2, "infrastructure", "stall", restart=True, tail=said)
    state = make_state(*RUNNING, closed)
    assert news(Entry(7, at(100), reason, closed), state) == "attempt 1 stalled: no step for 20 s"
    silent = replace(closed, tail=("step 7",))
    assert news(Entry(7, at(100), reason, silent), state) == f"attempt 1 stalled: {reason}", "its log did not say it"
    assert news(Entry(8, at(101), reason, Ended("failed", "stall", 2)), state) == "failed: no step for 20 s"


def test_the_step_is_that_of_the_metrics() -> None:
    """An attempt that resumed from step 6 and reached step 18 follows one that reached step 30."""
    closed = Closed(2, "lost", "gone", restart=True, trained_s=50.0, step=30)
    state = make_state(*RUNNING, closed, Claimed(SPOT_A, 1), Launched(5, nodes(5)))
    facts: dict[int, tuple[NodeFacts, ...]] = {
        2: (make_facts(2, beat=make_beat(40, step=30, metrics={"loss": 3.0})),),
        5: (make_facts(5, beat=make_beat(50, training_since=at(45), step=18, metrics={"loss": 1.8})),),
    }
    found = summarize(state, Submission(JOB, make_spec(), "jane"), facts, at(60))
    assert (found.step, found.metrics) == (18, {"loss": 1.8})
    facts[5] = (make_facts(5, beat=make_beat(50, training_since=at(45))),)
    found = summarize(state, Submission(JOB, make_spec(), "jane"), facts, at(60))
    assert (found.step, found.metrics) == (30, {"loss": 3.0}), "nothing newer is known"


@pytest.mark.parametrize(
    ("waste", "at_risk_s"), [(Waste(lost_s=11.0), 15.0), (Waste(lost_s=900.0), 34.0), (None, 34.0), (Waste(), 34.0)]
)
def test_what_a_reclaim_would_lose_is_what_the_node_reported_and_the_time_since(
    waste: Waste | None, at_risk_s: float
) -> None:
    """The node's clock is an hour off, and its time of the commit is in the future."""
    ref = CheckpointRef("00000002/000001-x", "x", committed_at=at(3700))
    beat = make_beat(56.0, training_since=at(3630), trained_s=30.0, checkpoint=ref, waste=waste)
    beat = replace(beat, value=replace(beat.value, at=at(3656)))
    state = make_state(*RUNNING)
    found = summarize(state, Submission(JOB, make_spec(), "jane"), {2: (make_facts(2, beat=beat),)}, at(60))
    assert found.at_risk_s == at_risk_s
