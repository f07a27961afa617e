"""Whatever a training prints arrives: all bytes, in order."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness import World

HEAD = """\
import random, sys
out = sys.stdout.buffer
"""
SCRIPTS = {
    # 32 MB as fast as it can.
    "burst": """\
for block in range(300):
    out.write(b"".join(b"%08d %s\\n" % (block * 1000 + n, b"x" * 96) for n in range(1000)))
""",
    "one-line-of-10-MB": """\
for part in range(10):
    out.write(random.Random(part).randbytes(500_000).hex().encode())
out.write(b" end\\n")
""",
    "junk": """\
out.write(random.Random(1).randbytes(3_000_000))
""",
    "progress-bars": """\
for n in range(50_000):
    out.write(b"\\r%d%%" % n)
    n % 500 or out.flush()
""",
    "cut-inside-a-letter": """\
out.write(b"all is well\\n" + "überall".encode()[:1])
""",
}


def printed_bare(world: World) -> bytes:
    return subprocess.run([sys.executable, "train.py"], cwd=world.code, capture_output=True, check=True).stdout


@pytest.mark.parametrize("kind", SCRIPTS)
def test_all_bytes_arrive_in_order(world: World, kind: str) -> None:
    world.write(HEAD + SCRIPTS[kind] + "out.flush()\n")
    expected = printed_bare(world)
    summary = world.run()
    assert summary.phase == "succeeded", world.story(summary.id)
    found = world.printed(summary.id)
    # Before it the agent says which attempt this is; after a success it says nothing.
    introduction, newline, printed = found.partition(b"\n")
    assert introduction.startswith(b"[stoker] attempt 1") and newline
    assert len(printed) == len(expected)
    assert printed == expected, "the bytes differ"


def test_a_failure_is_found_behind_a_flood(world: World) -> None:
    world.write("for n in range(400_000):\n    print('line', n)\nraise SystemExit('the very last word')\n")
    summary = world.run()
    assert (summary.phase, summary.exit_code) == ("failed", 1)
    lines = world.lines(summary.id)
    assert [line for line in lines if line.startswith("line ")] == [f"line {n}" for n in range(400_000)]
    (claim,) = world.state(summary.id).attempts
    assert claim.closed is not None and "the very last word" in claim.closed.tail
