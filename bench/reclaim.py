"""The cost of a reclaim."""

from __future__ import annotations

import os
import select
import time
from statistics import median

from bench.figures import Figure, Measurement, Size
from bench.sandbox import Sandbox, lines, sandbox, wait_for
from bench.startup import bare_start_s

GAPS = 3
RECLAIMS = 2
GRACE = "30s"
STEPS = 500
SAVE_EVERY = 100

# Tells when it began and who it is; ends when asked, after `save` seconds, and by itself once `done` is there.
GAP = """\
import time; first = time.time()
import os, signal, sys
said, done, save = sys.argv[1], sys.argv[2], float(sys.argv[3])
def leave(*_):
    time.sleep(save)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
with open(said, "a") as out:
    out.write(f"{first} {os.getpid()}\\n")
while not os.path.exists(done):
    time.sleep(0.02)
"""

# A training of 10 ms a step, which goes on until it was reclaimed so often, and makes a step in each attempt. It writes
# down each step that it has made, where no attempt can take it back.
STEPPING = """\
import sys, time
from stoker import train
trained, steps, reclaims = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
saved = train.latest()
step = int((saved / "step").read_text()) if saved else 0
while True:
    time.sleep(0.01)
    step += 1
    with open(trained, "a") as out:
        out.write(f"{train.attempt()} {step}\\n")
    train.report(step=step, loss=1 / step)
    stop = train.interrupted()
    if stop or step % SAVE_EVERY == 0:
        with train.checkpoint(f"step-{step}", step=step) as folder:
            (folder / "step").write_text(str(step))
    if stop or step >= steps and train.attempt() > reclaims:
        sys.exit(0)
""".replace("SAVE_EVERY", str(SAVE_EVERY))


def resume_gap(size: Size) -> dict[str, float]:
    """From the kernel's word that the old training process is gone to the first statement of the next attempt's,
    minus bare start-up; median over notices. The script leaves at once, so the next machine's whole start counts;
    beside it, without a target, one that saves for a second, as trainings do."""
    with sandbox() as place:
        bare_s = bare_start_s(place, size.choose(5, 1))
        gaps = size.choose(GAPS, 1)
        at_once = _gaps_s(place, gaps, save_s=0.0)
        saving = _gaps_s(place, gaps, save_s=1.0)
    return {"resume_gap_s": median(at_once) - bare_s, "resume_gap_saving_s": median(saving) - bare_s}


def _gaps_s(place: Sandbox, count: int, save_s: float) -> list[float]:
    said, done = place.root / f"said-{save_s}", place.root / f"done-{save_s}"
    place.script("gap.py", GAP)
    job = place.detach("--", "python", "gap.py", str(said), str(done), str(save_s))
    gaps = []
    for attempt in range(1, count + 1):
        wait_for(lambda n=attempt: len(lines(said)) >= n, f"attempt {attempt}")  # type: ignore[misc]
        pid = int(lines(said)[-1].split()[1])
        handle = os.pidfd_open(pid)
        try:
            place.stoker("interrupt", job, "--grace", GRACE)
            # Readable when the process has ended.
            if not select.select([handle], [], [], 60.0)[0]:
                raise TimeoutError(f"{pid} did not leave")
            gone = time.time()
        finally:
            os.close(handle)
        wait_for(lambda n=attempt: len(lines(said)) > n, f"attempt {attempt + 1}")  # type: ignore[misc]
        gaps.append(float(lines(said)[attempt].split()[0]) - gone)
    done.touch()
    place.finished(job)
    return gaps


def steps_lost(size: Size) -> dict[str, float]:
    """Steps that more than one attempt trained, by the script's own record of each, through two reclaims with 30 s
    grace; between them it saves too seldom to be saved by that. The job must end well, and no step be missing."""
    reclaims = size.choose(RECLAIMS, 1)
    least = size.choose(STEPS, 2 * SAVE_EVERY)
    with sandbox() as place:
        place.script("steps.py", STEPPING)
        trained = place.root / "trained"
        job = place.detach("--", "python", "steps.py", str(trained), str(least), str(reclaims))
        for attempt in range(1, reclaims + 1):
            # Far from the checkpoints that it makes by itself.
            reached = attempt * SAVE_EVERY + SAVE_EVERY // 2
            wait_for(lambda n=reached: len(lines(trained)) >= n, f"step {reached}")  # type: ignore[misc]
            place.stoker("interrupt", job, "--grace", GRACE)
            wait_for(lambda n=attempt: lines(trained)[-1].startswith(f"{n + 1} "), "the next attempt")  # type: ignore[misc]
        shown = place.finished(job)
        steps = [int(line.split()[1]) for line in lines(trained)]
    if len(shown["attempts"]) != reclaims + 1 or set(steps) != set(range(1, max(least, *steps) + 1)):
        raise RuntimeError(f"{len(shown['attempts'])} attempts, {len(set(steps))} of {max(steps)} steps")
    return {"steps_lost_on_notice": len(steps) - len(set(steps))}


MEASUREMENTS = (
    Measurement(
        (Figure("resume_gap_s", "s", 1.0, difference=True), Figure("resume_gap_saving_s", "s", difference=True)),
        resume_gap,
    ),
    Measurement((Figure("steps_lost_on_notice", "steps", 0.0),), steps_lost),
)
