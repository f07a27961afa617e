"""Sixteen processes append to one log at once; nothing is lost, nothing is there twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from stoker.model import codec, keys
from stoker.model.log_entries import Record, Submitted, Warned
from stoker.store import job_log
from stoker.store.base import Store, open_store
from tests.support.gcs import GcsServer
from tests.support.servers import isolated, pytest_isolated

WRITERS = 16
APPENDS = 10
JOB = "race"
# Only so that a race that never ends fails; it takes seconds.
LIMIT_S = 300

# Each in an interpreter of its own: a forked copy of obstore's threads would not run.
WRITER = """
import sys, time
from pathlib import Path
from stoker.store import job_log as log
from stoker.model.log_entries import Warned
from stoker.store.base import open_store

url, job, me, count, gate = sys.argv[1:]
store = open_store(url)
Path(gate, me).touch()
while not Path(gate, "go").exists():
    time.sleep(0.01)
state = None
for n in range(int(count)):
    event = Warned(code=f"{me}/{n}")
    state = log.append_next(store, job, state, lambda _: (event, "racing"), me)
"""


def race(url: str, gate: Path) -> None:
    """Let all writers go at the same moment, and wait until each has made its appends."""
    gate.mkdir()
    assert job_log.append(open_store(url), JOB, 1, Record("submitted", "test", "", Submitted("digest", "test")))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, JOB, f"w{me}", str(APPENDS), str(gate)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for me in range(WRITERS)
    ]
    try:
        while sum(1 for _ in gate.iterdir()) < WRITERS and all(writer.poll() is None for writer in writers):
            time.sleep(0.01)
        (gate / "go").touch()
        for writer in writers:
            _, errors = writer.communicate(timeout=LIMIT_S)
            assert writer.returncode == 0, errors
    finally:
        for writer in writers:
            if writer.poll() is None:
                writer.kill()
                writer.wait()


def check(store: Store) -> None:
    key_list = [meta.key for meta in store.list(keys.log_prefix(JOB))]
    assert key_list == [keys.log_entry(JOB, seq) for seq in range(1, 1 + WRITERS * APPENDS + 1)]
    records = []
    for key in key_list[1:]:
        found = store.get(key)
        assert found is not None
        records.append(codec.loads(Record, found.data))
    assert len({record.token for record in records}) == WRITERS * APPENDS
    codes = Counter(record.event.code for record in records if isinstance(record.event, Warned))
    assert codes == Counter(f"w{me}/{n}" for me in range(WRITERS) for n in range(APPENDS))
    # Everybody's own entries are in the order they were appended in.
    for me in range(WRITERS):
        mine = [record.event.code for record in records if isinstance(record.event, Warned) and record.by == f"w{me}"]
        assert mine == [f"w{me}/{n}" for n in range(APPENDS)]
    state = job_log.read(store, JOB)
    assert state is not None
    assert state.seq == 1 + WRITERS * APPENDS


def test_sixteen_processes_append_to_a_folder(tmp_path: Path) -> None:
    race(str(tmp_path / "store"), tmp_path / "gate")
    check(open_store(str(tmp_path / "store")))


if isolated():

    def test_sixteen_processes_append_to_s3(s3_url: str, tmp_path: Path) -> None:
        race(s3_url, tmp_path / "gate")
        check(open_store(s3_url))

    @pytest.mark.parametrize("limited", [False, True], ids=["at_once", "one_a_second"])
    def test_sixteen_processes_append_to_gcs(gcs: GcsServer, gcs_url: str, tmp_path: Path, limited: bool) -> None:
        # Cloud Storage may tell the losers that they write too often, and not that they lost.
        gcs.rate_limit(limited)
        gcs.requests(reset=True)
        race(gcs_url, tmp_path / "gate")
        check(open_store(gcs_url))
        assert gcs.requests().get("PUT 429" if limited else "PUT 412", 0) > 0

else:

    def test_buckets_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__, "-k", "append_to_s3 or append_to_gcs")
