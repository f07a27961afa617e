"""How soon a training that hangs is noticed, and whether one that does not is ever taken for one."""

from __future__ import annotations

from datetime import datetime, timezone

from bench.figures import Figure, Measurement, Size
from bench.sandbox import sandbox, wait_for
from stoker.store import job_log
from stoker.store.base import open_store
from tests.support.playback import AT_WORK, play

_HANGS = """
import ctypes, os, time
from pathlib import Path
print("begun", flush=True)
c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
c.pthread_mutex_init(mutex, None)
c.pthread_mutex_lock(mutex)
Path(os.environ["SIGN"]).write_text(str(time.time()))
c.pthread_mutex_lock(mutex)
"""
_RULES = "rules:\n- {{name: hangs, stall: {{window: {window}, windows: 1, after: 1s}}, then: stop}}\n"


def standstill(size: Size) -> dict[str, float]:
    """`stall_detect_s`: from the moment at which a training on `local` waits for a mutex that is never released, in
    native code, to the decision that it stands still, with a window of ten seconds. `false_stops`: how many of the
    recordings of a real GPU at work (training, downloading, compiling, evaluating, saving) a rule calls a stall."""
    with sandbox() as place:
        sign = place.root / "hung"
        place.script("train.py", _HANGS)
        (place.root / "policy.yaml").write_text(_RULES.format(window=size.choose("10s", "2s")))
        place.stoker("policy", "set", str(place.root / "policy.yaml"))
        job = place.detach("--set", f"env.SIGN={sign}", "--set", "checkpoints.grace=1s", "--", "python", "train.py")
        store = open_store(place.store)

        def noticed() -> datetime | None:
            state = job_log.read(store, job)
            return next(iter(state.warned_at.values()), None) if state is not None else None

        wait_for(sign.exists, f"{job} to hang")
        wait_for(lambda: noticed() is not None, f"{job} to be noticed", every_s=0.05)
        at = noticed()
        assert at is not None
        hung = datetime.fromtimestamp(float(sign.read_text()), timezone.utc)
        place.stoker("stop", job)
    return {
        "stall_detect_s": (at - hung).total_seconds(),
        "false_stops": float(sum(1 for name in AT_WORK if play(name))),
    }


MEASUREMENTS = (Measurement((Figure("stall_detect_s", "s", 15.0), Figure("false_stops", "", 0.0)), standstill),)
