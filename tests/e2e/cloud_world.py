"""A world whose machines are a cloud's, and really boot (`tests.support`). A thread of the test governs it.

`CloudWorld` is what tests of every cloud use; each cloud says how it does what they ask for.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness import World, until

from stoker.core.summary import Summary
from stoker.governor.loop import Governor
from stoker.governor.observe import active_jobs
from stoker.model.errors import StokerError
from tests.support.machines.harness import Handle

# Boots, on two busy cores with other tests' boots beside them.
BOOT_S = 240.0
# A governor in the test's own process: far more eager than one that is paid for by the call. Where its passes are
# slow, on a busy computer, it leaves the cores to the machines that boot.
_PASS_EVERY_S = 1.0
# Between two looks at a job on machines: they boot for seconds.
_LOOK_EVERY_S = 0.5
_STEP = re.compile(r"a(\d+) r(\d+) s(\d+) ([0-9a-f]{8}) ")


@dataclass(frozen=True)
class Step:
    """A step that a script printed."""

    attempt: int
    rank: int
    step: int
    link: str


class CloudWorld(World):
    """One test's bucket and code. What a script did is known by what it printed: its disk is the machine's."""

    # What a job asks for, and where it can be had: two zones.
    resources: dict[str, Any]
    zones: tuple[str, str]
    # The image whose Python is too old.
    old_image: str
    # The image that has a docker.
    docker_image: str
    # The image that has PyTorch.
    torch_image: str
    provider: type

    def __init__(self, root: Path, cloud: Any, url: str) -> None:
        super().__init__(root)
        self.cloud = cloud
        self.url = url
        self.problems: list[str] = []
        # The cloud is shared with other tests, one after the other.
        self._before = set(cloud.instances())

    def share(self, packed: Path) -> None:
        """Keep agents and programs for machines in this folder, which homes of other tests use as well."""
        for name in ("bundles", "tools"):
            (packed / name).mkdir(parents=True, exist_ok=True)
            (self.home / name).symlink_to(packed / name)

    def job(self, **fields: Any) -> Any:
        resources = self.resources | fields.pop("resources", {})
        fields.setdefault("run", ["python3", "train.py"])
        fields.setdefault("limits", {"max_runtime": "1h"})
        fields["env"] = {"TRUTH": "/tmp"} | fields.get("env", {})
        return super().job(resources=resources, **fields)

    def submit(self, *, detach: bool = False, **fields: Any) -> str:
        return super().submit(detach=detach, **fields)

    # ── What each cloud does in its own way ───────────────────────────────────────────────────────────────────────────

    def notice(self, job: str, in_s: float | None = None) -> None:
        """Take a spot machine away, with the notice that this cloud gives; with none where `in_s` is 0."""
        raise NotImplementedError

    def hint(self, job: str) -> None:
        """Let the machine know that something may happen to it some day."""
        raise NotImplementedError

    def refuse_launch(self, what: Literal["quota", "permission"]) -> str:
        """No launch goes through from now on. Answers the code that a person is told."""
        raise NotImplementedError

    def lose_launch_replies(self) -> None:
        """Launches happen, and nobody hears of it."""
        raise NotImplementedError

    def launches(self) -> int:
        """How many launches were asked for since the calls were last counted anew."""
        raise NotImplementedError

    # ── What all do alike ─────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def governed(self) -> Iterator[None]:
        """Somebody governs meanwhile."""
        stop = threading.Event()

        def loop() -> None:
            governor = Governor(self.store)
            while not stop.is_set():
                began = time.monotonic()
                try:
                    self.problems += governor.run_pass().problems.values()
                except StokerError as error:
                    self.problems.append(str(error))
                stop.wait(max(_PASS_EVERY_S, 2 * (time.monotonic() - began)))

        thread = threading.Thread(target=loop, name="governor")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def ended(self, job: str, timeout_s: float = BOOT_S) -> Summary:
        """Wait until the job has ended, and is forgotten. One with a claim that got no machine is remembered for
        minutes, in case that a launch comes late; then its machines have to be gone."""

        def over() -> bool:
            state = self.state(job)
            unsure = any(claim.launched is None for claim in state.claims)
            gone = set(self.machines().values()) <= {"terminated"}
            return state.ended is not None and (gone if unsure else job not in active_jobs(self.store))

        self.until(job, over, f"{job} ends", timeout_s)
        return self.summary(job)

    def steps(self, job: str) -> list[Step]:
        """What was trained, in the order of the log."""
        found = (_STEP.match(line) for line in self.lines(job))
        return [Step(int(one[1]), int(one[2]), int(one[3]), one[4]) for one in found if one]

    def trained(self, job: str, step: int, attempt: int = 1) -> None:
        """Wait until this step of this attempt is in the log."""
        self.until(
            job, lambda: any(one.attempt >= attempt and one.step >= step for one in self.steps(job)), f"step {step}"
        )

    def until(self, job: str, condition: Any, what: str, timeout_s: float = BOOT_S) -> None:
        try:
            until(condition, what, timeout_s, _LOOK_EVERY_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(job)}") from None

    def machines(self) -> dict[str, str]:
        """The state of every machine that this test's jobs ever had."""
        return {name: state for name, state in self.cloud.instances().items() if name not in self._before}

    def machine(self, job: str, rank: int = 0) -> Handle:
        found: Handle = self.cloud.machine(self.instance(job, rank))
        return found

    def has_machine(self, job: str) -> bool:
        """Whether the job has a machine that it may use."""
        return any(claim.launched for claim in self.state(job).open_claims)

    def story(self, job: str) -> str:
        consoles = []
        for instance, state in self.machines().items():
            lines = self.cloud.machine(instance).console().splitlines()
            told = [line for line in lines if "stoker" in line.lower() or "cloud-init" in line]
            consoles += [f"── console of {instance} ({state})", *told[-25:]]
        return "\n".join([super().story(job), *consoles, "── problems", *self.problems[-5:]])

    def left_nothing(self) -> None:
        """Nothing is paid for any more. Clouds take their time with what hangs on a machine."""
        deadline = time.monotonic() + 60
        while left := self.cloud.left():
            assert time.monotonic() < deadline, f"{left} is left"
            time.sleep(0.1)
