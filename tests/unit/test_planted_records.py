"""Records that others put into the store end no command: the job is named with the record, and can be removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker import client
from stoker.cli import main
from stoker.core.summary import summarize
from stoker.jobfile import Job
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record
from stoker.model.node_facts import Heartbeat, Manifest
from stoker.model.offerings import Offering
from stoker.read.metrics import read_metrics
from stoker.read.node_chunks import node_logs
from stoker.store import job_index, job_log
from stoker.store.base import RECORD_BYTES, Store, open_store
from stoker.store.checkpoint_manifests import ManifestKey, find_problem
from stoker.store.job_index import IndexRecord
from stoker.store.log_chunks import MetricsMark, Sample, decode_lines, encode_line
from stoker.store.node_facts import clamp_fact

DEEP = b"[" * 100_000 + b"]" * 100_000
HERE = Offering("local", "here", "here", spot=False, price=2.0, on_demand_price=2.0)
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
CLOSING = Closed(claim=2, outcome="succeeded", rule="finished")
RAN = (Claimed(HERE, 1), Launched(2, (NodeRef(0, "i-1"),)), Ended("succeeded", "finished", 2, closing=CLOSING))
TEXTS = [DEEP, b"[1]", b"", b"null", b"NaN", b"\xff", b"9" * 5000, b'{"a":' * 50_000]

Stoker = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Stoker:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capsys.readouterr()
        assert "unexpected" not in err, err
        return int(left.value.code or 0), out, err

    return run


def add(store: Store, *events: Event, name: str = "x", policy: str = "") -> str:
    job = client.submit(Job(run="true", name=name), store=store)
    for seq, event in enumerate(events, 2):
        record = Record(token=job_log.new_token(), by="test", reason="test", event=event, policy=policy)
        assert job_log.append(store, job, seq, record)
    old = datetime.now(timezone.utc).timestamp() - 4 * 3600
    for meta in store.list(keys.log_prefix(job)):
        os.utime(Path(os.environ["STOKER_STORE"]) / meta.key, (old, old))
    return job


def plant(store: Store, key: str, data: bytes) -> None:
    store.put(key, data)
    old = datetime.now(timezone.utc).timestamp() - 3 * 3600
    os.utime(Path(os.environ["STOKER_STORE"]) / key, (old, old))


def index(store: Store, job: str) -> None:
    state = job_log.read(store, job)
    assert state is not None
    summary = summarize(state, job_index.read_submission(store, state), {}, state.updated_at)
    job_index.write_index(store, IndexRecord(state, summary))


def unmark(store: Store, job: str) -> None:
    store.delete([meta.key for meta in store.list(f"{keys.ACTIVE}{job}/")])


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_planted_index_record_hides_no_job(store: Store, stoker: Stoker, text: bytes) -> None:
    good, other = add(store, *RAN, name="good"), add(store, *RAN, name="other")
    for job in (good, other):
        index(store, job)
        unmark(store, job)
    plant(store, keys.index(other, 4), text)
    code, out, _ = stoker("ps", "--all")
    assert code == 0 and good in out and other in out, "the log is the source"
    assert stoker("show", other)[0] == 0


def test_a_record_that_names_another_job_counts_for_nothing(store: Store, stoker: Stoker) -> None:
    one, other = add(store, *RAN, name="one"), add(store, *RAN, name="other")
    index(store, one)
    unmark(store, one)
    unmark(store, other)
    found = store.get(keys.index(one, 4))
    assert found is not None
    plant(store, keys.index(other, 4), found.data)
    assert job_index.read_summary(store, other) is None and job_index.read_index(store, other) is None
    assert other in stoker("ps", "--all")[1]


def test_a_record_without_end_is_not_read(store: Store, stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    job = add(store, *RAN)
    unmark(store, job)
    path = Path(os.environ["STOKER_STORE"]) / keys.index(job, 4)
    path.parent.mkdir(parents=True, exist_ok=True)
    for key in (path, Path(os.environ["STOKER_STORE"]) / keys.spec(job)):
        with key.open("wb") as file:
            file.truncate(RECORD_BYTES + 1)
    read: list[int] = []
    monkeypatch.setattr("stoker.store.folder.read_all", lambda _file, size: read.append(size) or b"{}")
    assert job_index.read_summary(store, job) is None and job_index.read_index(store, job) is None
    assert read == []
    monkeypatch.undo()
    monkeypatch.setenv("STOKER_HOME", str(path.parents[4] / "home"))
    monkeypatch.setenv("STOKER_STORE", store.url)
    code, _, err = stoker("ps", "--all")
    assert code == 0 and f"{job} cannot be read: {keys.spec(job)} has {RECORD_BYTES + 1} bytes" in err


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_planted_log_entry_is_named_and_its_job_can_be_removed(store: Store, stoker: Stoker, text: bytes) -> None:
    good, bad = add(store, name="good"), add(store, *RAN, name="bad")
    plant(store, keys.log_entry(bad, 3), text)
    code, out, err = stoker("ps")
    assert code == 0 and good in out and f"{bad} cannot be read: {keys.log_entry(bad, 3)}: not a log entry" in err
    for command in ("logs", "checkpoints", "explain", "compare", "pull", "show"):
        code, _, err = stoker(command, bad)
        assert code and keys.log_entry(bad, 3) in err, command
    assert stoker("rm", bad)[0] == 0
    assert bad not in stoker("ps", "--all")[2] and not list(store.list(f"{keys.JOBS}{bad}/"))


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("text", [DEEP, b"[1]", None], ids=["deep", "garbage", "missing"])
def test_a_job_with_a_planted_spec_can_be_removed(
    store: Store, stoker: Stoker, text: bytes | None, active: bool
) -> None:
    good, bad = add(store, name="good"), add(store, *RAN[: 0 if active else 3], name="bad")
    if text is None:
        store.delete([keys.spec(bad)])
    else:
        plant(store, keys.spec(bad), text)
    code, out, err = stoker("ps", "--all")
    assert code == 0 and good in out and f"{bad} cannot be read: {keys.spec(bad)}: " in err
    for command in ("checkpoints", "pull", "logs", "explain", "show", "compare"):
        stoker(command, bad)
    code, _, err = stoker("rm", bad)
    assert code == 0, err
    assert not list(store.list(f"{keys.JOBS}{bad}/")) and store.head(keys.removed(bad)) is not None


def test_another_job_that_cannot_be_read_stops_no_removal(store: Store, stoker: Stoker) -> None:
    bad, done = add(store, *RAN, name="bad"), add(store, *RAN, name="done")
    for job in (bad, done):
        index(store, job)
        unmark(store, job)
    plant(store, keys.log_entry(bad, 3), DEEP)
    plant(store, keys.spec(bad), DEEP)
    code, _, err = stoker("rm", "--older-than", "1h", "-y")
    assert code == 0 and f"{done} is deleted" in err and bad not in err.replace(keys.spec(bad), "")
    assert f"{keys.spec(bad)}: cannot be read" in err and "nothing is collected" in err


def test_a_policy_in_an_entry_steers_no_terminal(store: Store, stoker: Stoker) -> None:
    job = add(store, *RAN, policy="\x1b[2J\x1b]0;owned\x07\u202e")
    _, out, _ = stoker("explain", job)
    assert "policy: unknown version" in out and not {"\x1b", "\x07", "\u202e"} & set(out)


# ── Numbers and times of nodes ────────────────────────────────────────────────────────────────────────────────────────

LINES = [
    b'{"kind":"sample","at":1e308,"values":{"loss":1}}',
    b'{"kind":"sample","at":NaN,"values":{"loss":1}}',
    b'{"kind":"sample","at":"nan","values":{"loss":1}}',
    b'{"kind":"sample","at":"inf","values":{"loss":1}}',
    b'{"kind":"sample","at":-1,"values":{"loss":1}}',
    b'{"kind":"sample","at":1,"step":1' + b"0" * 30 + b',"values":{"loss":1}}',
    b'{"kind":"sample","at":1,"values":{"loss":1' + b"0" * 400 + b"}}",
    b'{"kind":"usage","at":1e300,"usage":{}}',
    b'{"kind":"mark","offset":-1}',
    b'{"kind":"mark","offset":1' + b"0" * 30 + b"}",
    b'{"kind":"mark","offset":1,"last_step":1' + b"0" * 30 + b"}",
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_samples_of_no_time_are_left_out(line: bytes) -> None:
    good = [Sample(at=1.0, step=3, values={"loss": 0.5}), MetricsMark(5)]
    assert list(decode_lines(line + b"\n" + b"".join(map(encode_line, good)))) == good


def test_curves_are_drawn_of_the_samples_that_make_sense(store: Store, stoker: Stoker) -> None:
    job = add(store, *RAN)
    good = encode_line(Sample(at=1.0, step=3, values={"loss": 0.5}))
    node = keys.node(job, 2, 0, keys.boot("i-1", 0))
    store.put(f"{node}/metrics/00000000/1", b"\n".join(LINES) + b"\n" + good)
    state = job_log.read(store, job)
    assert state is not None
    assert [point.value for point in read_metrics(store, job, node_logs(state)).series["loss"].points] == [0.5]
    for more in ((), ("--json",), ("--over", "time")):
        assert stoker("compare", job, *more)[0] == 0


def test_numbers_and_times_of_a_fact_are_clamped_where_it_is_read() -> None:
    far = datetime.max.replace(tzinfo=timezone.utc)
    beat = Heartbeat(10**30, "training", far, 1.0, training_since=datetime.min.replace(tzinfo=timezone.utc))
    beat = codec.loads(Heartbeat, codec.dumps(beat)[:-1] + b',"step":%d,"checkpoint_files":-%d}' % (10**30, 10**30))
    found = clamp_fact(beat)
    assert (found.beat, found.step, found.checkpoint_files) == (10**18, 10**18, -(10**18))
    assert found.training_since is not None and (found.at.year, found.training_since.year) == (2200, 2000)
    assert clamp_fact(codec.loads(Heartbeat, codec.dumps(found))) == found


@pytest.mark.parametrize("changes", [{"step": 10**30}, {"generation": -(10**30)}, {"pause_s": float("nan")}])
def test_a_manifest_with_absurd_numbers_is_none(changes: dict[str, object]) -> None:
    place = ManifestKey(2, 1, "a", 0)
    fields: dict[str, object] = {"name": "a", "job": "j", "claim": 2, "rank": 0, "ordinal": 1, "committed_at": NOW}
    assert find_problem(Manifest(**fields, files=()), "j", place) is None  # type: ignore[arg-type]
    assert find_problem(Manifest(**fields | changes, files=()), "j", place) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("at_s", [2**36, -(2**33)])
def test_a_file_of_no_time_breaks_no_listing(store: Store, at_s: int) -> None:
    store.put("work/x", b"1")
    path = Path(os.environ["STOKER_STORE"]) / "work/x"
    try:
        os.utime(path, (at_s, at_s))
    except OSError:
        pytest.skip("this filesystem has no such times")
    assert [meta.key for meta in store.list("work/")] == ["work/x"]
