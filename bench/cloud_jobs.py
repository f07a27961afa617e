"""The cost of becoming a node on a machine of a cloud, and the calls that a job makes: the same for every cloud.

On clouds that boot what they are asked to boot (`tests.support`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from bench.figures import Size
from bench.sandbox import LIMIT_S, Sandbox, sandbox

REPEATS = 3
# The moment at which a machine begins with its boot script, by the clock that all machines here share.
BARE = "#!/bin/sh\necho boot script at $(date +%s.%N) >/dev/console\n"
FIRST = "import time\nprint('first line at', time.time(), flush=True)\n"


def boot_overhead_s(
    cloud: Any, scheme: str, resources: dict[str, Any], launch_bare: Callable[[], str], size: Size
) -> float:
    """From the launch to the first line of user code, minus from the launch to the first line of a bare boot script on
    the same kind of machine; the best of interleaved runs of each."""
    bare, node = [], []
    with sandbox() as place, mock.patch.dict(os.environ, cloud.env):
        place.env |= cloud.env
        for _ in range(size.choose(REPEATS, 1)):
            began_s = time.time()
            machine = cloud.machine(launch_bare())
            machine.wait_console("boot script at ", LIMIT_S)
            bare.append(_told(machine.console(), "boot script at ") - began_s)
            cloud.clear()
            node.append(_first_line_s(place, f"{scheme}://{cloud.new_bucket()}", resources))
    return min(node) - min(bare)


def calls_per_job(cloud: Any, scheme: str, resources: dict[str, Any]) -> float:
    """`stoker run` of a job of one node, without a fault, from the command to its end: calls to the cloud's APIs."""
    with sandbox() as place:
        place.env |= dict(cloud.env) | {"STOKER_STORE": f"{scheme}://{cloud.new_bucket()}"}
        place.script("train.py", FIRST)
        asked = [f"resources={json.dumps(resources)}", "limits.max_runtime=1h"]
        place.stoker("run", *(word for text in asked for word in ("--set", text)), "-y", "--", "python3", "train.py")
        return float(sum(cloud.calls().values()))


def job(place: Sandbox, resources: dict[str, Any]) -> Any:
    from stoker import Job

    return Job(
        name="bench",
        run="python3 train.py",
        code=str(place.code),
        resources=resources,
        limits={"max_runtime": "1h"},
    )


def _first_line_s(place: Sandbox, store: str, resources: dict[str, Any]) -> float:
    """From the call that launched to the first line that the script printed."""
    from stoker.client import submit
    from stoker.governor.loop import Governor
    from stoker.providers import registry
    from stoker.store.base import open_store

    place.script("train.py", FIRST)
    began: list[float] = []
    provider: Any = type(registry.connect(resources["provider"], registry.Context(store)))
    launch = provider.launch

    def noted(self: Any, requests: Any) -> Any:
        began.append(time.time())
        return launch(self, requests)

    with mock.patch.dict(os.environ, {"STOKER_HOME": str(place.home)}), mock.patch.object(provider, "launch", noted):
        submitted = submit(job(place, resources), store=store, detach=False)
        opened = open_store(store)
        governor = Governor(opened)
        deadline = time.monotonic() + LIMIT_S
        from stoker.store import job_log

        while (state := job_log.read(opened, submitted)) is None or state.ended is None:
            governor.run_pass()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{submitted} does not end")
            time.sleep(0.5)
        return _told(_printed(opened, submitted), "first line at ") - began[0]


def _printed(store: Any, job: str) -> str:
    from stoker.read.logs import read_lines
    from stoker.read.node_chunks import node_logs
    from stoker.store import job_log

    state = job_log.read(store, job)
    assert state is not None
    return "\n".join(line.text for line in read_lines(store, job, node_logs(state)))


def _told(text: str, what: str) -> float:
    return float(text.partition(what)[2].split()[0])
