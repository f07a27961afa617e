"""What a reclaim costs."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from statistics import median

from bench.figures import Figure, Measurement
from bench.sandbox import Sandbox, lines, sandbox, wait_for
from bench.startup import bare_start_s

GAPS = 3
RECLAIMS = 2
GRACE = "30s"
SPIRALS = Path(__file__).parents[1] / "examples" / "spirals"

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


def resume_gap() -> dict[str, float]:
    """From the kernel's word that the old training process is gone to the first statement of the next attempt's,
    minus bare start-up; median over notices. The script leaves at once, so the next machine's whole start counts;
    beside it, without a target, one that saves for a second, as trainings do."""
    with sandbox() as place:
        bare_s = bare_start_s(place)
        at_once = _gaps_s(place, save_s=0.0)
        saving = _gaps_s(place, save_s=1.0)
    return {"resume_gap_s": median(at_once) - bare_s, "resume_gap_saving_s": median(saving) - bare_s}


def _gaps_s(place: Sandbox, save_s: float) -> list[float]:
    said, done = place.root / f"said-{save_s}", place.root / f"done-{save_s}"
    place.script("gap.py", GAP)
    job = place.detach("--", "python", "gap.py", str(said), str(done), str(save_s))
    gaps = []
    for attempt in range(1, GAPS + 1):
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


def steps_lost() -> dict[str, float]:
    """Steps that more than one attempt of examples/spirals reported, through two reclaims with 30 s grace; the job
    must end well, with every step there."""
    from stoker import log
    from stoker.cli.following import node_logs
    from stoker.reading.metrics import read_metrics
    from stoker.store import open_store

    steps = 3000
    with sandbox() as place:
        store = open_store(place.store)
        settings = [f"params.steps={steps}", "params.batch=40"]
        job = place.detach(*(part for text in settings for part in ("--set", text)), cwd=SPIRALS)
        for reclaim in range(1, RECLAIMS + 1):
            # Well between two of the checkpoints that it makes by itself, and far from the end.
            wait_for(
                lambda n=reclaim: _attempt_and_step(place, job) >= (n, n * 300 + 25),  # type: ignore[misc]
                f"step {reclaim * 300} of attempt {reclaim}",
                every_s=0.1,
            )
            place.stoker("interrupt", job, "--grace", GRACE)
        shown = place.finished(job)
        state = log.read(store, job)
        assert state is not None
        metrics = read_metrics(store, job, node_logs(state))
    if len(shown["attempts"]) != RECLAIMS + 1:
        raise RuntimeError(f"{len(shown['attempts'])} attempts came of {RECLAIMS} reclaims")
    seen = {point.step for point in metrics.series["loss"].points}
    if seen != set(range(1, steps + 1)):
        raise RuntimeError(f"{steps - len(seen)} steps of {steps} were never reported")
    return {"steps_lost_on_notice": metrics.retrained_steps}


def _attempt_and_step(place: Sandbox, job: str) -> tuple[int, int]:
    import json

    shown = json.loads(place.stoker("show", job, "--json"))
    attempts = shown["attempts"]
    if not attempts or attempts[-1].get("training_since") is None:
        return (0, 0)
    return (len(attempts), attempts[-1].get("step") or 0)


MEASUREMENTS = (
    Measurement((Figure("resume_gap_s", "s", 1.0), Figure("resume_gap_saving_s", "s")), resume_gap),
    Measurement((Figure("steps_lost_on_notice", "steps", 0.0),), steps_lost),
)
