"""The main job on this computer, through two reclaims and two kill -9, step by step. `make demo` runs it.

Everything is done with the public command line and `stoker.client`, on a store and nodes in a temporary folder. At the
end the weights are compared with those of a run that nothing interrupted, which trains beside it all the while.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from stoker import client
from stoker.core.summary import Summary

HERE = Path(__file__).resolve().parent
STOKER = str(Path(sys.executable).parent / "stoker")
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
PATIENCE_S = 120.0


def paint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


def title(text: str) -> None:
    print(f"\n{paint('1;36', '▌ ' + text)}", flush=True)


def note(text: str) -> None:
    print(f"  {text}", flush=True)


class Demo:
    """One run of the demo in its own home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "spirals"
        os.environ["STOKER_HOME"] = str(home / "home")
        os.environ.pop("STOKER_STORE", None)
        self.env = {**os.environ, "PATH": self._path(), "PYTHONUNBUFFERED": "1"}
        shutil.copytree(HERE / "spirals", self.project, ignore=shutil.ignore_patterns("checkpoints", "artifacts"))
        self.job = ""

    @staticmethod
    def _path() -> str:
        return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def stoker(self, *words: str, show: bool = False) -> str:
        if show:
            print(paint("2", f"  $ stoker {' '.join(words)}"), flush=True)
        done = subprocess.run(
            [STOKER, *words], cwd=self.project, env=self.env, text=True, capture_output=True, check=False
        )
        if done.returncode not in (0, 1):
            sys.exit(f"stoker {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        if show:
            for line in (done.stdout + done.stderr).rstrip().splitlines():
                note(line)
        return done.stdout

    def until(self, what: str, ready: Callable[[Summary], bool]) -> Summary:
        """Wait for the job. In this process: starting a command takes many steps of the training on a busy machine."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            job = client.summary(self.job)
            if ready(job):
                return job
            if job.phase in ("failed", "stopped", "succeeded") or time.monotonic() > deadline:
                sys.exit(f"the demo waited in vain for {what}; the job is {job.phase}: {job.reason}")
            time.sleep(0.05)

    def trains_past(self, step: int, attempt: int) -> Callable[[Summary], bool]:
        return lambda job: (job.step or 0) >= step and len(job.attempts) >= attempt and job.phase == "running"

    def has_stepped(self, attempt: int) -> Callable[[Summary], bool]:
        return lambda job: len(job.attempts) >= attempt and bool(job.attempts[attempt - 1].first_step)

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def processes(self, *words: str) -> list[int]:
        """Processes of this demo whose command line has all these words."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                ours = str(self.home).encode() in (folder / "environ").read_bytes()
            except OSError:
                continue
            if ours and all(word in line for word in words) and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return sorted(found)

    def kill(self, name: str, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        note(f"kill -9 {' '.join(map(str, pids))}   ({name})")

    def handover(self, attempt: int) -> str:
        """The line of `stoker show` that tells how an attempt gave way to the next."""
        lines = self.stoker("show", self.job).splitlines()
        for number, line in enumerate(lines):
            if line.strip().startswith(f"attempt {attempt} ") and number + 1 < len(lines):
                return lines[number + 1].strip()
        return ""

    # ── The story ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> int:
        title("A job file, and its plan")
        for line in (self.project / "stoker.yaml").read_text().splitlines():
            note(paint("33", line))
        print()
        self.show_plan()

        title("Training starts; a governor carries on in the background")
        bare = self.start_bare()
        self.job = self.stoker("run", "--detach", "-y", show=False).strip()
        print(paint("2", "  $ stoker run --detach"), flush=True)
        note(self.job)
        self.until("the first steps", self.trains_past(120, 1))
        self.stoker("logs", self.job, "--tail", "2", show=True)

        title("The cloud takes the machine back, with 30 seconds of notice")
        self.stoker("interrupt", self.job, "--grace", "30s", show=True)
        self.until("attempt 2", self.has_stepped(2))
        note(paint("1", self.handover(1)))

        self.until("more steps", self.trains_past(250, 2))
        title("kill -9 of the agent and of the governor")
        self.kill("the governor", self.processes("stoker.governor.background"))
        self.kill("the agent", self.processes("stoker.agent"))
        note("the training died with its agent; no governor runs now. Another pass simply carries on:")
        self.stoker("govern", show=True)
        watch = subprocess.Popen(
            [STOKER, "govern", "--watch", "--until-idle"],
            cwd=self.project, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.until("attempt 3", self.has_stepped(3))
        note(paint("1", self.handover(2)))

        self.until("more steps", self.trains_past(400, 3))
        title("A second notice, with three seconds of grace")
        self.stoker("interrupt", self.job, "--grace", "3s", show=True)
        self.until("attempt 4", self.has_stepped(4))
        note(paint("1", self.handover(3)))

        ended = self.until("the end", lambda job: job.phase == "succeeded")
        watch.wait(timeout=PATIENCE_S)
        return self.tell_the_end(ended, bare)

    def show_plan(self) -> None:
        """Show the plan that `stoker run` prints before it spends anything. (Its requests go to stdout.)"""
        print(paint("2", "  $ stoker run --dry-run"), flush=True)
        done = subprocess.run(
            [STOKER, "run", "--dry-run"], cwd=self.project, env=self.env, text=True, capture_output=True, check=True
        )
        for line in done.stderr.rstrip().splitlines():
            note(line)

    def start_bare(self) -> subprocess.Popen[str]:
        """The same script without interruptions, without Stoker."""
        folder = self.home / "bare"
        shutil.copytree(self.project, folder)
        command = [sys.executable, "train.py", "--lr", "0.05", "--steps", "900"]
        return subprocess.Popen(command, cwd=folder, env=self.env, text=True, stdout=subprocess.PIPE)

    def tell_the_end(self, job: Summary, bare: subprocess.Popen[str]) -> int:
        title("The end")
        self.stoker("compare", self.job, show=True)
        print()
        self.stoker("show", self.job, show=True)
        bare_digest = _digest(bare.communicate(timeout=PATIENCE_S)[0])
        digest = _digest(self.stoker("logs", self.job, "--tail", "1"))
        twice = _trained_twice(job)
        left = self.processes()
        saved = job.saved_share or 0.0
        title("Measured")
        note(f"steps trained twice after a notice: {twice} · processes left: {len(left)} · saved {saved:.0%}")
        verdict = "equal" if digest == bare_digest else "DIFFERENT"
        note(f"weights {digest}, uninterrupted run {bare_digest}: {verdict}")
        title("Why it did what it did")
        print(paint("2", f"  $ stoker explain {self.job} | tail -n 5"))
        for line in self.stoker("explain", self.job).rstrip().splitlines()[-5:-1]:
            note(line)
        print()
        return 0 if digest == bare_digest and not left and twice == 0 else 1


def _digest(text: str) -> str:
    found = re.search(r"weights (\w+)", text)
    return found[1] if found else "none"


def _trained_twice(job: Summary) -> int:
    """Steps that the attempt after a notice trained although the attempt before had trained them."""
    twice = 0
    for before, after in pairwise(job.attempts):
        if before.noticed_at and before.step is not None and after.first_step is not None:
            twice += max(0, before.step - after.first_step + 1)
    return twice


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stoker-demo-") as folder:
        demo = Demo(Path(folder))
        try:
            return demo.run()
        finally:
            for pid in demo.processes():
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
