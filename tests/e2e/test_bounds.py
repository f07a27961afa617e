"""Nothing is unbounded: time, money, waiting, stopping, and failing."""

from __future__ import annotations

from harness import World, chain, fields, until

from stoker import client


def saved_last(world: World, job: str) -> int:
    """The step of the newest durable checkpoint: it must be the very last step that was trained."""
    last = [record.step for record in world.journal("step")][-1]
    assert world.checkpoints(job)[-1].step == last, world.story(job)
    assert world.summary(job).last_checkpoint is not None
    return last


# ── Time, money, waiting ──────────────────────────────────────────────────────────────────────────────────────────────


def test_max_runtime_saves_first(world: World) -> None:
    world.script("counter.py")
    summary = world.run(params={"steps": 10_000, "every": 7}, limits={"max_runtime": "3s"})
    assert (summary.phase, summary.rule) == ("failed", "max_runtime"), world.story(summary.id)
    assert fields(summary, "outcome") == [("limit",)]
    saved_last(world, summary.id)


def test_max_runtime_counts_attempts_together(world: World) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 10_000, "every": 7}, limits={"max_runtime": "6s"})
    world.training(job, step=5)
    # An agent that dies takes its count with it, unless somebody picks it up.
    until(lambda: world.summary(job).trained_s > 2.0, "two seconds were trained")
    assert world.kill("agent")
    summary = world.ended(job)
    assert (summary.phase, summary.rule) == ("failed", "max_runtime"), world.story(job)
    assert fields(summary, "outcome") == [("infrastructure",), ("limit",)]
    first, second = summary.attempts
    assert first.trained_s >= 2.0 and second.save is not None and second.save.ended_s is not None
    # Had the first attempt not been counted, the second would have been asked to go after six seconds of its own.
    assert second.trained_s - second.save.ended_s < 5.0


def test_max_cost_saves_first(world: World) -> None:
    world.script("counter.py")
    # A dollar a second; what saving may take at most, a minute and a half, is set aside. The rest is for the start.
    summary = world.run(
        params={"steps": 10_000, "every": 7}, resources={"local": {"price": 3600}}, limits={"max_cost": 105}
    )
    assert (summary.phase, summary.rule) == ("failed", "max_cost"), world.story(summary.id)
    assert summary.cost is not None and 0 < summary.cost <= 105
    saved_last(world, summary.id)


def test_max_wait(world: World) -> None:
    world.script("counter.py")
    one = {"local": {"capacity": 1}}
    holder = world.submit(params={"steps": 10_000}, resources=one)
    world.training(holder)
    summary = world.run(params={"steps": 1}, resources=one, limits={"max_wait": "3s"})
    assert (summary.phase, summary.rule, summary.attempts) == ("failed", "max_wait", ()), world.story(summary.id)
    assert world.summary(holder).phase == "running"
    client.stop(holder, world.url)
    assert world.ended(holder).phase == "stopped"


def test_what_waits_for_room_gets_it(world: World) -> None:
    world.script("counter.py")
    one = {"local": {"capacity": 1}}
    holder = world.submit(params={"steps": 10_000}, resources=one)
    world.training(holder)
    job = world.submit(params={"steps": 2}, resources=one)
    until(lambda: "capacity" in world.summary(job).reason, "it says what it waits for")
    client.stop(holder, world.url)
    assert world.ended(holder).phase == "stopped"
    assert world.ended(job).phase == "succeeded"
    assert not world.journal("overlap")


def test_jobs_that_wait_for_room_start_in_order_and_without_a_pause(world: World) -> None:
    world.write("print('hello')\n")
    one = {"local": {"capacity": 1}}
    jobs = [world.submit(name=name, resources=one) for name in ("d", "c", "b", "a")]
    # Several governors at once: the background's, and one that a person runs.
    world.start("govern", "--watch")
    for job in jobs:
        assert world.ended(job).phase == "succeeded", world.story(job)
    states = [world.state(job) for job in jobs]
    assert [len(state.claims) for state in states] == [1, 1, 1, 1], "no claim was made that found no room"
    began = [state.claims[0].at for state in states]
    over = [state.ended.at for state in states if state.ended is not None]
    assert began == sorted(began)
    assert all(next_began >= before for before, next_began in zip(over, began[1:], strict=False))


# ── Stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_stop_saves_and_resume_goes_on(world: World) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 80, "every": 50})
    world.training(job, step=5)
    assert client.stop(job, world.url)
    summary = world.ended(job)
    assert (summary.phase, summary.rule) == ("stopped", "stop"), world.story(job)
    last = saved_last(world, job)
    assert 5 <= last < 80
    assert not client.stop(job, world.url)

    assert world.cli("resume", job).returncode == 0
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    assert [record.step for record in world.journal("start")] == [0, last]
    assert world.journal("finish")[0].text == chain(80)


def test_stopping_what_ignores_it_is_bounded(world: World) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 10_000, "every": 5, "stubborn": 1}, checkpoints={"grace": "2s"})
    world.training(job, step=11)
    client.stop(job, world.url)
    summary = world.ended(job, timeout_s=60)
    assert (summary.phase, len(summary.attempts)) == ("stopped", 1), world.story(job)
    saves = [record.step for record in world.journal("save")]
    # It may have been killed between a save and the note of it.
    assert (world.checkpoints(job)[-1].step or 0) >= saves[-1], "the last save was not made durable"


def test_stop_before_it_trains(world: World) -> None:
    world.script("counter.py")
    job = world.submit(setup="sleep 300", params={"steps": 5})
    until(lambda: "[stoker] running setup" in world.lines(job), "set-up runs")
    client.stop(job, world.url)
    summary = world.ended(job)
    assert summary.phase == "stopped", world.story(job)
    assert not world.journal()


# ── Failing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_user_error_ends_the_job_and_is_quoted(world: World) -> None:
    world.write("print('loading')\nraise ValueError('the learning rate is a fish')\n")
    summary = world.run()
    assert (summary.phase, summary.rule, summary.exit_code) == ("failed", "user-error", 1)
    assert fields(summary, "outcome") == [("failed",)]
    (claim,) = world.state(summary.id).attempts
    assert claim.closed is not None
    assert any("ValueError: the learning rate is a fish" in line for line in claim.closed.tail)
    assert "the learning rate is a fish" in world.cli("show", summary.id).stdout


def test_a_user_error_is_tried_again_when_asked(world: World) -> None:
    world.write(
        "import os, sys\nfrom stoker import train\n"
        "train.report(step=train.attempt())\n"
        "sys.exit(4 if train.attempt() == 1 else 0)\n"
    )
    summary = world.run(retry={"user_errors": 1})
    assert summary.phase == "succeeded", world.story(summary.id)
    assert fields(summary, "outcome", "exit_code") == [("failed", 4), ("succeeded", 0)]


def test_failing_right_after_the_start_never_loops(world: World) -> None:
    world.write("raise SystemExit(4)\n")
    summary = world.run(retry={"user_errors": 50})
    assert (summary.phase, summary.exit_code, len(summary.attempts)) == ("failed", 4, 2), world.story(summary.id)


def test_a_program_that_is_not_there(world: World) -> None:
    summary = world.run(run=["sh", "-c", "exec ./nowhere"])
    assert (summary.phase, summary.exit_code, len(summary.attempts)) == ("failed", 127, 1), world.story(summary.id)
    assert any("nowhere" in line for line in world.lines(summary.id))


def test_failing_setup_is_the_users(world: World) -> None:
    summary = world.run(run="true", setup="echo no such package; exit 7")
    assert (summary.phase, summary.exit_code, len(summary.attempts)) == ("failed", 7, 1), world.story(summary.id)
    assert "no such package" in summary.reason


def test_a_poisoned_checkpoint_is_passed_over(world: World) -> None:
    world.write(
        "import os, sys\n"
        "from stoker import train\n"
        "saved = train.latest()\n"
        "print('starts from', saved and saved.name)\n"
        "if saved is not None and saved.name == 'bad': sys.exit('cannot read this')\n"
        "if saved is not None: sys.exit(0)\n"
        "for name in ('good', 'bad'):\n"
        "    with train.checkpoint(name) as folder: (folder / 'x').write_text(name)\n"
        "    assert train.wait_durable(60)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    summary = world.run()
    assert summary.phase == "succeeded", world.story(summary.id)
    assert fields(summary, "rule") == [("killed",), ("checkpoint",), ("checkpoint",), ("finished",)]
    assert [line for line in world.lines(summary.id) if line.startswith("starts from")] == [
        "starts from None",
        "starts from bad",
        "starts from bad",
        "starts from good",
    ]
