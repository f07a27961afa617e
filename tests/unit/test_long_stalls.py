"""Hours of trainings that work and that hang, in virtual time: through recorder, heartbeat, store, rule and ladder."""

from __future__ import annotations

import pytest
from long_recordings import HOUR_S, LongJob

from stoker.model.log_entries import Draining
from stoker.model.spec import Limits
from tests.support.playback import AT_WORK, HUNG

pytestmark = pytest.mark.slow

# What a window, a heartbeat, a look of the governor's and the evidence may add.
LATE_S = 300


def found_after(job: LongJob, hung_at_s: int, least_s: float) -> None:
    assert job.ended_at is not None, "it was never ended"
    assert least_s <= job.ended_at - hung_at_s <= least_s + LATE_S, job.told


@pytest.mark.parametrize("name", sorted(AT_WORK))
def test_two_hours_of_work_are_no_stall(name: str) -> None:
    # Lines alone are progress only where no steps are reported.
    job = LongJob().live("steady", 600, steps=name != "talking").live(name, 2 * HOUR_S)
    assert job.ended_at is None and job.told == [], job.told


@pytest.mark.parametrize("name", sorted(HUNG))
def test_a_hang_after_hours_is_found_in_a_quarter_of_an_hour(name: str) -> None:
    job = LongJob().live("steady", 2 * HOUR_S).live(name, HOUR_S, steps=False)
    found_after(job, 2 * HOUR_S, 900)


@pytest.mark.parametrize("name", ["compiling", "evaluating", "checkpointing", "downloading"])
def test_what_works_without_a_step_has_two_hours_more(name: str) -> None:
    """The path of `working`, all of it."""
    job = LongJob().live("steady", HOUR_S).live(name, 3 * HOUR_S)
    found_after(job, HOUR_S, 900 + 2 * HOUR_S)
    reason = job.told[-1][2]
    assert reason.startswith("policy hangs: no step for 2 h 15 min") and "are at work, and for too long" in reason


def test_lines_of_a_side_thread_do_not_hide_a_hang_where_steps_are_reported() -> None:
    job = LongJob().live("steady", HOUR_S).live("deadlock", HOUR_S, line_every_s=30)
    found_after(job, HOUR_S, 900)
    own = (
        LongJob("max_nodes: 4", Limits(stall_s=900.0)).live("steady", HOUR_S).live("deadlock", HOUR_S, line_every_s=30)
    )
    found_after(own, HOUR_S, 900)
    assert own.told[-1][2] == "limits.stall: no step for 15 min"


def test_where_no_steps_are_reported_lines_are_progress() -> None:
    job = LongJob().live("steady", HOUR_S, steps=False).live("talking", 2 * HOUR_S)
    assert job.ended_at is None
    quiet = job.live("deadlock", HOUR_S)
    found_after(quiet, 3 * HOUR_S, 900 - 60)


@pytest.mark.parametrize("twitch_every_s", [20, 60, 240])
def test_a_core_that_twitches_does_not_reset_the_clock(twitch_every_s: int) -> None:
    job = LongJob().live("steady", HOUR_S).live("deadlock", HOUR_S, twitch_every_s=twitch_every_s)
    found_after(job, HOUR_S, 900)
    busy = LongJob().live("steady", HOUR_S).live("deadlock", HOUR_S, twitch_every_s=4)
    assert busy.ended_at is None, "a quarter of the time is work"


def test_a_hang_at_full_load_is_found_by_a_rule_about_steps() -> None:
    without = LongJob().live("steady", HOUR_S).live("spinning", 4 * HOUR_S, line_every_s=60)
    assert without.ended_at is None
    job = LongJob("stall: {steps: 30m}").live("steady", HOUR_S).live("spinning", 2 * HOUR_S, line_every_s=60)
    found_after(job, HOUR_S, 1800)
    assert job.told[-1][1] == Draining(claim=2, outcome="infrastructure", rule="policy:hangs")
    assert "no step for 30 min" in job.told[-1][2]


def test_a_rule_about_steps_says_nothing_of_jobs_that_report_none() -> None:
    assert LongJob("stall: {steps: 30m}").live("spinning", 4 * HOUR_S).ended_at is None


def test_a_job_whose_steps_are_long_has_twice_its_longest() -> None:
    job = LongJob("stall: {steps: 30m}")
    for _ in range(3):
        job.live("spinning", 1700).live("steady", 20)
    job.live("spinning", 2 * HOUR_S)
    # Whoever once took 1700 s for a step is not hung after 1800.
    found_after(job, 3 * 1720, 3400)


def test_a_first_step_may_compile_all_others() -> None:
    """It reports step 0, compiles for half an hour and more, and then trains."""
    job = LongJob("stall: {steps: 30m}")
    job.step = 0
    job.live("compiling", 90 * 60).live("steady", HOUR_S)
    assert job.ended_at is None, job.told
    stuck = LongJob("stall: {steps: 30m, working: 1h}")
    stuck.step = 0
    found_after(stuck.live("spinning", 3 * HOUR_S), 0, 90 * 60)


@pytest.mark.parametrize("length", [5, 10, 60])
def test_epochs_that_show_the_same_step_at_every_look_move(length: int) -> None:
    """They count anew, as long as the time between two heartbeats: each look finds the same step."""
    job = LongJob("stall: {steps: 30m}", Limits(stall_s=900.0), counted_in=length)
    job.live("steady", 3 * HOUR_S)
    assert job.ended_at is None and job.told == [], job.told
    found_after(job.live("deadlock", HOUR_S), 3 * HOUR_S, 900)


def test_ranks_that_repeat_their_steps_in_a_hang_do_not_hide_it() -> None:
    job = LongJob().live("steady", HOUR_S)
    found_after(job.live("deadlock", HOUR_S, repeats=(0, 1)), HOUR_S, 900)


def test_an_evaluation_is_no_hang_where_the_rule_allows_for_it() -> None:
    job = LongJob("stall: {steps: 1h}").live("steady", HOUR_S)
    for _ in range(3):
        job.live("evaluating", 40 * 60, steps=False).live("steady", 20 * 60)
    assert job.ended_at is None and job.told == [], job.told


@pytest.mark.parametrize("name", ["steady", "evaluating"])
def test_a_store_that_was_away_says_nothing_of_the_training(name: str) -> None:
    job = LongJob("stall: {steps: 30m}", Limits(stall_s=1800.0)).live("steady", HOUR_S)
    for _ in range(10):
        job.live(name, 150, heard=False).live("steady", 15)
    job.live("steady", HOUR_S)
    assert job.ended_at is None and job.told == [], job.told


def test_a_save_is_no_hang_and_is_not_given_for_ever() -> None:
    rule = "stall: {steps: 30m, working: 1h}"
    job = LongJob(rule).live("steady", HOUR_S).live("spinning", 85 * 60, saves=True).live("steady", HOUR_S)
    assert job.ended_at is None, job.told
    found_after(LongJob(rule).live("steady", HOUR_S).live("spinning", 3 * HOUR_S, saves=True), HOUR_S, 90 * 60)


def test_a_warning_comes_a_time_before_the_end() -> None:
    job = LongJob("stall: {warn_before: 20m}").live("steady", HOUR_S).live("deadlock", 2 * HOUR_S)
    found_after(job, HOUR_S, 900 + 1200)
    (word,) = job.words()
    assert job.ended_at is not None and job.ended_at - word >= 1200
    assert "it is asked to leave in 20 min" in job.told[0][2]


def test_one_that_goes_on_after_its_warning_is_warned_again_the_next_time() -> None:
    job = LongJob("stall: {window: 1m, windows: 3, warn_before: 10m}").live("steady", HOUR_S)
    job.live("deadlock", 300).live("steady", 60)
    assert len(job.words()) == 1 and job.ended_at is None
    job.live("deadlock", 2 * HOUR_S)
    first, second = job.words()
    assert job.ended_at is not None and job.ended_at - second >= 600 and second - first >= 180


def test_one_in_a_debugger_is_told_once_and_not_ended() -> None:
    rule = "stall: {steps: 30m}"
    job = LongJob(rule, Limits(stall_s=900.0)).live("steady", HOUR_S).live("deadlock", 5 * HOUR_S, debugged=True)
    assert job.ended_at is None
    ((at_s, _, reason),) = job.told
    assert at_s - HOUR_S < 60 and reason.startswith("a process of node 0 is stopped, or in a debugger")
    assert "max_runtime and max_cost still count" in reason
    job.live("steady", 600)
    assert job.ended_at is None, "it was let go"
    job.live("deadlock", HOUR_S)
    found_after(job, 6 * HOUR_S + 600, 900)


def test_one_that_is_let_go_and_still_hangs_has_all_of_its_time_again() -> None:
    job = LongJob().live("steady", HOUR_S).live("deadlock", 800).live("deadlock", HOUR_S, debugged=True)
    job.live("deadlock", HOUR_S)
    found_after(job, 2 * HOUR_S + 800, 900)


@pytest.mark.parametrize("calm", [True, False])
def test_heartbeats_that_are_rare_find_the_same_and_nothing_else(calm: bool) -> None:
    job = LongJob(calm=calm).live("steady", 2 * HOUR_S)
    assert job.told == []
    assert (job.beat.now.interval_s > 10) is calm and (job.beat.now.beat > 200) is not calm
    found_after(job.live("deadlock", HOUR_S, line_every_s=45), 2 * HOUR_S, 900)
