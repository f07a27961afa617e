"""Curves of several jobs: the axis is what all of them tell, and their values can be exported."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from command_line import run

from stoker import client
from stoker.core.summary import AttemptSummary, Summary
from stoker.jobfile import Job
from stoker.model import keys
from stoker.model.errors import NoSuchJob, UserError
from stoker.model.log_entries import Claimed, Event, Launched, NodeRef, Record
from stoker.model.node_facts import BlobRef, Manifest
from stoker.model.offerings import Offering
from stoker.read.curves import ComparedJob, choose_axis, drawing
from stoker.read.metrics import Metrics, Point, series_of
from stoker.store import job_log, log_chunks
from stoker.store.base import Store, open_store
from stoker.store.checkpoint_manifests import encode

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=timezone.utc)
START = NOW.timestamp()
HERE = Offering(provider="local", machine="local", zone="this-computer", spot=False, price=0.0)


def compared(name: str, **series: list[Point]) -> ComparedJob:
    summary = Summary(f"{name}-abcd", name, "running", NOW, NOW, "jane", "local", 1)
    found = {metric: series_of(metric, {1: points}) for metric, points in series.items()}
    return ComparedJob(summary, Metrics(found))


def stepped(*values: float) -> list[Point]:
    return [Point(step, START + 60.0 * step, value, 1) for step, value in enumerate(values)]


def timed(*values: float, every_s: float = 60.0) -> list[Point]:
    return [Point(None, START + every_s * n, value, 1) for n, value in enumerate(values)]


def test_steps_are_the_axis_where_all_jobs_tell_them() -> None:
    jobs = [compared("a", loss=stepped(3, 2, 1)), compared("b", loss=stepped(2, 1))]
    assert choose_axis(jobs, "loss") == "step"
    drawn = drawing(jobs, "loss", "step")
    assert (drawn.label, [curve.label for curve in drawn.curves]) == ("step", ["a-abcd", "b-abcd"])
    assert list(drawn.curves[1].points) == [(0.0, 2.0), (1.0, 1.0)]


def test_time_is_called_time() -> None:
    jobs = [compared("a", loss=timed(3, 2, 1))]
    assert choose_axis(jobs, "loss") == "time"
    drawn = drawing(jobs, "loss", "time")
    assert drawn.label == "seconds since the first value"
    assert list(drawn.curves[0].points) == [(0.0, 3.0), (60.0, 2.0), (120.0, 1.0)]
    long = drawing([compared("a", loss=timed(3, 2, 1, every_s=1800))], "loss", "time")
    assert long.label == "minutes since the first value" and long.curves[0].points[-1] == (60.0, 1.0)


@pytest.mark.parametrize(
    ("span_s", "unit", "last"),
    [
        (179.0, "seconds", 179.0),
        (180.0, "minutes", 3.0),
        (10_799.0, "minutes", 10_799 / 60),
        (10_800.0, "hours", 3.0),
        (259_199.0, "hours", 259_199 / 3600),
        (259_200.0, "days", 3.0),
    ],
)
def test_a_span_is_shown_in_a_unit_that_keeps_numbers_small(span_s: float, unit: str, last: float) -> None:
    drawn = drawing([compared("a", loss=timed(3, 2, every_s=span_s))], "loss", "time")
    assert drawn.label == f"{unit} since the first value"
    assert [x for x, _ in drawn.curves[0].points] == [0.0, pytest.approx(last)]


def test_one_job_without_steps_moves_all_to_time() -> None:
    jobs = [compared("a", loss=stepped(3, 2)), compared("b", loss=timed(2, 1))]
    assert choose_axis(jobs, "loss") == "time"
    with pytest.raises(UserError, match=r"--over step: b-abcd does not report it for loss; it has time"):
        choose_axis(jobs, "loss", "step")


def test_epochs_are_the_axis_where_nothing_tells_steps() -> None:
    epochs = timed(1.0, 1.5, 2.0)
    jobs = [compared("a", loss=timed(3, 2, 1), epoch=epochs), compared("b", **{"train/epoch": epochs, "loss": epochs})]
    assert choose_axis(jobs, "loss") == "epoch"
    drawn = drawing(jobs, "loss", "epoch")
    assert drawn.label == "epoch" and list(drawn.curves[0].points) == [(1.0, 3.0), (1.5, 2.0), (2.0, 1.0)]
    assert choose_axis(jobs, "loss", "time") == "time"


def test_reclaims_are_marked_where_they_were_on_that_axis() -> None:
    job = compared("a", loss=stepped(3, 2, 1))
    at = datetime.fromtimestamp(START + 60, timezone.utc)
    failed = AttemptSummary(1, 2, "local", "m", "z", True, NOW, (), outcome="infrastructure", step=2, left_at=at)
    reclaimed = replace(failed, n=2, claim=5, outcome="reclaimed", step=1)
    job = replace(job, summary=replace(job.summary, attempts=(failed, reclaimed)))
    assert drawing([job], "loss", "step").marks == (1.0,)
    assert drawing([job], "loss", "time").marks == (60.0,)
    assert drawing([job], "loss", "epoch").marks == ()


# ── From a store ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


def trained(store: Store, name: str, *samples: log_chunks.Sample) -> str:
    job = client.submit(Job(run="python train.py", name=name), store=store)
    events: tuple[Event, ...] = (Claimed(offering=HERE, nodes=1), Launched(2, (NodeRef(0, "i-2"),)))
    for seq, event in enumerate(events, start=2):
        assert job_log.append(store, job, seq, Record(token=job_log.new_token(), by="t", reason="test", event=event))
    folder = keys.node(job, 2, 0, keys.boot("i-2", 0))
    store.put(f"{folder}/metrics/{0:08d}/0", b"".join(log_chunks.encode_line(sample) for sample in samples))
    text = b"hello\nbye\n"
    store.put(keys.log_chunk(folder, 0), log_chunks.encode_segment(log_chunks.Segment(0, 0, text)))
    return job


def sample(step: int | None, loss: float, at: float = START) -> log_chunks.Sample:
    return log_chunks.Sample(at, step, {"loss": loss, "acc": 1 - loss})


def test_a_name_means_all_of_its_jobs(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    twins = sorted(trained(store, "gpt", sample(0, 0.5), sample(1, 0.4)) for _ in range(2))
    other = trained(store, "other", sample(0, 0.3))
    code, out, err = run(capsys, "compare", "gpt")
    assert code == 0, err
    assert all(job in out.splitlines()[0] for job in twins) and other not in out
    assert all(job in out.splitlines()[-1] for job in twins), "the legend tells them apart"
    assert [job.id for job in client.compare("gpt").jobs] == twins
    assert [job.id for job in client.compare(["other", "g*"]).jobs] == [other, *twins]
    assert [job.id for job in client.compare([twins[1], "gpt"]).jobs] == [twins[1], twins[0]], "each once"
    with pytest.raises(NoSuchJob, match="no job fits the pattern"):
        client.compare("x*")


def test_the_axis_of_a_picture_is_labelled(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    trained(store, "steps", sample(0, 0.5), sample(1, 0.4))
    trained(store, "times", sample(None, 0.5), sample(None, 0.4, START + 30))
    assert run(capsys, "compare", "steps")[1].splitlines()[-2].strip() == "step"
    assert run(capsys, "compare", "times")[1].splitlines()[-2].strip() == "seconds since the first value"
    code, _, err = run(capsys, "compare", "times", "--over", "epoch")
    assert (code, err.count("\n")) == (2, 1) and "does not report it for loss; it has time" in err


def test_curves_are_exported(store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = trained(store, "gpt", sample(0, 0.5), sample(1, float("nan"), START + 2))
    target = tmp_path / "curves.csv"
    code, out, err = run(capsys, "compare", "gpt", "--csv", str(target))
    assert (code, out) == (0, "") and f"4 values of 1 job in {target}" in err
    rows = list(csv.DictReader(target.open()))
    assert {row["metric"] for row in rows} == {"loss", "acc"}
    first = next(row for row in rows if row["metric"] == "loss")
    assert first == {
        "job": job,
        "name": "gpt",
        "metric": "loss",
        "attempt": "1",
        "step": "0",
        "epoch": "",
        "seconds": "0.0",
        "at": "2026-11-16T12:00:00Z",
        "value": "0.5",
    }
    only = run(capsys, "compare", "gpt", "--metric", "loss", "--csv", "-")[1].splitlines()
    assert len(only) == 3 and only[0].startswith("job,name,metric,")
    (told,) = json.loads(run(capsys, "compare", "gpt", "--json")[1])
    assert [point["value"] for point in told["series"]["loss"]] == [0.5, None]
    assert told["series"]["loss"][1]["seconds"] == 2.0
    code, _, err = run(capsys, "compare", "gpt", "--csv", str(tmp_path / "no" / "such" / "file"))
    assert (code, err.count("\n")) == (2, 1) and "cannot be written" in err
    assert run(capsys, "compare", "gpt", "--csv", "-", "--json")[0] == 2


def test_jobs_logs_metrics_and_checkpoints_from_python(store: Store) -> None:
    job = trained(store, "gpt", sample(0, 0.5), sample(1, 0.4, START + 1))
    other = client.submit(Job(run="python train.py", name="other", tags={"team": "nlp"}))
    assert {summary.id for summary in client.jobs()} == {job, other}
    assert [summary.id for summary in client.jobs(tags="team=nlp")] == [other]
    assert [summary.id for summary in client.jobs(names=["gp*"], phases=["launching", "queued"])] == [job]
    with pytest.raises(UserError, match="did you mean running"):
        client.jobs(phases="runing")
    assert [line.text for line in client.logs("gpt")] == ["hello", "bye"]
    assert [line.text for line in client.logs(job, tail=1)] == ["bye"]
    with pytest.raises(UserError, match=r"^attempt 2: .* has had 1 attempt so far"):
        client.logs(job, attempt=2)
    last = client.metrics("gpt").series["loss"].last
    assert last is not None and (last.step, last.value) == (1, 0.4)
    assert client.checkpoints("gpt") == []
    with pytest.raises(UserError, match="has no checkpoint"):
        client.pull("gpt")
    comparison = client.compare(["gpt"])
    assert comparison.metric_names == ["acc", "loss"]
    assert [point.value for point in comparison.points("loss")] == [0.5, 0.4]
    both = client.compare(["gpt", "other"])
    assert [point.job for point in both.points("loss")] == [job, job], "the other has none"


def test_a_checkpoint_is_pulled_from_python(store: Store, tmp_path: Path) -> None:
    job = trained(store, "gpt", sample(0, 0.5))
    for ordinal, text in enumerate((b"one", b"two"), 1):
        digest = hashlib.sha256(text).hexdigest()
        store.put(keys.blob(job, 0, digest), text)
        manifest = Manifest(
            name=f"step-{ordinal}",
            job=job,
            claim=2,
            rank=0,
            ordinal=ordinal,
            committed_at=datetime.fromtimestamp(START, timezone.utc),
            files=(BlobRef(path="model.pt", digest=digest, size=3, mode=0o644),),
        )
        store.put(keys.manifest(job, keys.checkpoint_key(2, ordinal, manifest.name)), encode(manifest))
    newest, older = client.checkpoints("gpt")
    assert (newest.name, older.name, newest.complete) == ("step-2", "step-1", True)
    assert client.pull("gpt") == Path(job)
    assert (Path(job) / "model.pt").read_bytes() == b"two"
    assert client.pull("gpt", tmp_path / "older", checkpoint=older.ref) == tmp_path / "older"
    assert (tmp_path / "older" / "model.pt").read_bytes() == b"one"


def test_pulling_from_python_goes_to_a_folder_of_the_jobs_name(store: Store, tmp_path: Path) -> None:
    job = trained(store, "gpt", sample(0, 0.5))
    store.put(f"{keys.outputs(job, 2)}result.txt", b"done")
    assert client.pull_outputs("gpt") == Path(job)
    assert (Path(job) / "result.txt").read_bytes() == b"done"
    assert (Path(job) / ".stokerignore").read_text() == "*\n", "the next job does not pack it"
    assert not (client.pull_outputs(job, tmp_path / "named") / ".stokerignore").exists()
    other = trained(store, "other", sample(0, 0.5))
    store.put(f"{keys.outputs(other, 2)}result.txt", b"done")
    (tmp_path / "elsewhere").mkdir()
    Path(other).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link; name the folder"):
        client.pull_outputs("other")
    assert list((tmp_path / "elsewhere").iterdir()) == []
