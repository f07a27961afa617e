"""Bad input on the command line and from Python: one line that names what is wrong, and what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from command_line import Stoker, stoker, store

from stoker import client
from stoker.jobfile import Job, env_file
from stoker.maintenance import delete
from stoker.maintenance.reindex import reindex
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.log_entries import Claimed, Ended, Event, Launched, NodeRef, Record
from stoker.model.offerings import Offering
from stoker.store import job_log
from stoker.store.base import Store

__all__ = ["stoker", "store"]

DAY = timedelta(days=1)


def submit(store: Store, name: str = "train", *events: Event) -> str:
    job = client.submit(Job(run="python train.py", name=name), store=store)
    for event in events:
        state = job_log.read(store, job)
        assert state is not None
        record = Record(token=job_log.new_token(), by="t", reason="test", event=event)
        assert job_log.append(store, job, state.seq + 1, record)
    reindex(store)
    return job


FAILED = Ended("failed", "test", None)


# ── rm ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_named_job_is_deleted_only_if_it_is_old_enough(
    stoker: Stoker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    young, old, other = (submit(store, name, FAILED) for name in ("young", "old", "other"))
    active = submit(store, "active")
    assert stoker("rm", young, active, "--older-than", "1d") == (
        0,
        "",
        "".join(f"{job} is kept: it did not end more than 1d ago\n" for job in (young, active))
        + "nothing is deleted\n",
    )
    monkeypatch.setattr(delete, "ended_before", lambda _store, _age: [old, other])
    code, _, err = stoker("rm", old, young, "--older-than", "30d")
    assert code == 0 and f"{old} is deleted" in err and f"{young} is kept" in err and other not in err
    assert {summary.id for summary in client.jobs(store=store)} == {young, other, active}


@pytest.mark.parametrize(
    ("age", "words"), [("0s", "selects every ended job"), ("0", "selects every ended job"), ("30", "write 30d, 30h")]
)
def test_an_age_that_selects_too_much_is_refused(stoker: Stoker, store: Store, age: str, words: str) -> None:
    job = submit(store, "train", FAILED)
    code, _, err = stoker("rm", "-y", "--older-than", age)
    assert code == 2 and err.startswith(f"stoker: --older-than {age[0]}") and words in err
    assert [summary.id for summary in client.jobs(store=store)] == [job]


# ── The place of a mistake ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["", "# nothing\n", "name: x\n", "\n\nname: x\n"])
def test_a_file_without_a_command_is_named(stoker: Stoker, store: Store, text: str) -> None:
    Path("j.yaml").write_text(text)
    wanted = "stoker: j.yaml: run: is missing; say what to run, such as `run: python train.py`\n"
    assert stoker("run", "j.yaml") == (2, "", wanted)
    assert stoker("run", "j.yaml", "--nodes", "2", "--set", "name=y") == (2, "", wanted)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("prices", "--provider", "foo"), "--provider: "),
        (("offers", "--provider", "foo"), "command line: resources.provider: "),
        (("run", "--provider", "foo", "--", "true"), "command line: resources.provider: "),
        (("run", "--set", "resources.provider=foo", "--", "true"), "--set: resources.provider: "),
        (("run", "j.yaml"), "j.yaml:2: resources.provider: "),
        (("check", "foo"), ""),
        (("iam", "foo"), ""),
    ],
)
def test_a_provider_that_does_not_exist_is_said_with_its_place(
    stoker: Stoker, store: Store, arguments: tuple[str, ...], place: str
) -> None:
    Path("j.yaml").write_text("run: 'true'\nresources: {provider: foo}\n")
    code, out, err = stoker(*arguments)
    assert (code, out) == (2, "")
    assert err == f"stoker: {place}there is no provider 'foo'; choose one of: ec2, gce, local, sagemaker\n"


def test_one_job_file_is_taken(stoker: Stoker, store: Store) -> None:
    code, _, err = stoker("run", "a.yaml", "b.yml")
    assert code == 2 and err == "stoker: a.yaml b.yml: run takes one job file; submit each with a command of its own\n"
    assert "two dashes" in stoker("run", "echo", "b.yaml")[2]


# ── From Python, as on the command line ───────────────────────────────────────────────────────────────────────────────


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_metric_that_no_job_has_is_refused(store: Store, tmp_path: Path) -> None:
    found, file = client.compare([submit(store)], store=store), tmp_path / "curves.csv"
    file.write_text("kept")
    wanted = "metric lossy: none of these jobs has it; there are: none"
    assert refusal(lambda: found.to_csv(file, "lossy")) == wanted and file.read_text() == "kept"
    assert refusal(lambda: found.points("lossy")) == wanted
    assert list(found.points()) == []


def test_lines_that_cannot_be_there_are_refused(store: Store) -> None:
    job = submit(store)
    assert refusal(lambda: client.logs(job, attempt=9, store=store)) == f"attempt 9: {job} has had 0 attempts so far"
    assert refusal(lambda: client.logs(job, attempt=0, following=True, store=store)).startswith("attempt 0: ")
    assert refusal(lambda: client.logs(job, node=9, store=store)) == f"node 9: {job} has only node 0"
    assert refusal(lambda: client.logs(job, node=-1, store=store)).startswith("node -1: ")
    assert refusal(lambda: client.logs(job, tail=-2, store=store)).startswith("tail -2: give the number")
    assert list(client.logs(job, tail=2, store=store)) == []


def test_a_single_text_is_one_setting(store: Store) -> None:
    job = client.submit(Job(run="python train.py"), sets="name=other", store=store)
    assert job.startswith("other-")
    with client.prepare_clone(job, store, "params.lr=1") as found:
        assert found.spec.params == {"lr": 1}
    assert [one.id for one in client.jobs(names="other", store=store)] == [job]


def test_other_things_than_jobs_are_refused(store: Store) -> None:
    wanted = "expected a `stoker.Job`, a `Spec` or the path of a job file, found a dict; write stoker.Job(run=…)"
    assert refusal(lambda: client.submit({"run": "x"}, store=store)) == wanted  # type: ignore[arg-type]
    job = submit(store)
    for wrong in (None, 5, client.summary(job, store)):
        kind = type(wrong).__name__
        for call in (client.stop, client.logs, client.compare):
            wanted = f"name a job by its id, as text; found a {kind}"
            assert refusal(lambda: call([wrong] if call is client.compare else wrong, store=store)) == wanted  # type: ignore[operator] # noqa: B023


# ── Which job ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["show", "logs", "checkpoints", "explain", "stop"])
def test_which_of_several_jobs_with_a_name_is_taken_is_said(stoker: Stoker, store: Store, command: str) -> None:
    old, new = submit(store, "res", FAILED), submit(store, "res")
    store.delete([meta.key for meta in store.list(f"{keys.ACTIVE}{old}/")])
    code, _, err = stoker(command, "res")
    assert code == 0 and err.startswith(f"{new} is taken: of 2 jobs called res, only this one is active\n")
    assert "is taken" not in stoker(command, new)[2]


def test_resuming_what_succeeded_keeps_the_wish(stoker: Stoker, store: Store) -> None:
    job = submit(store, "res", Ended("succeeded", "test", None))
    hint = f"`stoker clone {job}` starts a new job like it, with `--set resume_from={job}"
    assert stoker("resume", job)[2] == f"stoker: {job} has succeeded; {hint}`, from its last checkpoint\n"
    assert stoker("resume", job, "--checkpoint", "1.2")[2].endswith(f"{hint}:1.2`, from that checkpoint\n")


# ── Paths and files ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_store_without_jobs_is_named(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    missing = f"file://{tmp_path}/storr (there is no such folder yet)"
    assert stoker("--store", "../storr", "ps")[1] == f"no jobs yet in {missing}; `stoker run` starts one\n"
    assert stoker("--store", "../storr", "show", "x")[2].endswith(
        f"{missing} has no jobs yet; `stoker run` starts one\n"
    )
    assert f"nothing was spent in {missing} since" in stoker("--store", "../storr", "costs")[2]
    (tmp_path / "storr").mkdir()
    assert f"no jobs yet in file://{tmp_path}/storr; " in stoker("--store", "../storr", "ps")[1]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("run", ""), "JOB.yaml"),
        (("run", "--env-file", "", "--", "true"), "--env-file"),
        (("offers", ""), "JOB.yaml"),
        (("pull", "x", ""), "FOLDER"),
        (("compare", "x", "--csv", ""), "--csv"),
        (("policy", "set", ""), "FILE"),
        (("policy", "test", ""), "JOB.yaml"),
        (("policy", "test", "--policy", ""), "--policy"),
        (("ssh", "x", "--identity", ""), "--identity"),
        (("exec", "x", "--identity", "", "--", "true"), "--identity"),
    ],
)
def test_an_empty_path_is_refused(stoker: Stoker, store: Store, arguments: tuple[str, ...], name: str) -> None:
    code, out, err = stoker(*arguments)
    assert (code, out) == (2, "") and err.startswith(f"stoker: {name} is empty; name ")


@pytest.fixture
def with_outputs(store: Store) -> str:
    job = submit(store, "outs", *LAUNCHED)
    for name in ("a.txt", "b/c.txt"):
        store.put(f"{keys.outputs(job, 2)}{name}", b"from the job")
    return job


HERE = Offering(provider="local", machine="local", zone="z", spot=False)
LAUNCHED = (Claimed(offering=HERE, nodes=1), Launched(claim=2, nodes=(NodeRef(0, "a"),)))


def test_a_folder_that_cannot_be_made_is_one_line(stoker: Stoker, store: Store, with_outputs: str) -> None:
    for place in ("/proc/x", "train.py/below"):
        code, _, err = stoker("pull", with_outputs, place)
        assert code == 2 and err.startswith(f"stoker: {place}: cannot be written: ")
        assert err.endswith("; name another folder\n")
    assert refusal(lambda: client.pull_outputs(with_outputs, "", store=store)).startswith("the folder to pull into has")
    assert sorted(path.name for path in Path().iterdir()) == ["train.py"]


def test_what_a_pull_replaces_is_said(stoker: Stoker, with_outputs: str) -> None:
    assert "replaced" not in stoker("pull", with_outputs, "here")[2]
    assert "replaced" not in stoker("pull", with_outputs, "here")[2]
    Path("here/a.txt").write_text("by a person")
    Path("here/b/c.txt").write_text("FROM THE JOB")
    err = stoker("pull", with_outputs, "here")[2]
    assert err.endswith("2 files of other contents replaced: a.txt, b/c.txt; another folder keeps both\n")
    assert Path("here/a.txt").read_text() == "from the job"


def test_pipes_and_devices_are_not_read(stoker: Stoker, store: Store) -> None:
    os.mkfifo("fifo")
    wanted = "stoker: fifo: is a pipe or a device; name a plain file\n"
    for arguments in (
        ("run", "fifo"),
        ("offers", "fifo"),
        ("run", "--env-file", "fifo", "--", "true"),
        ("policy", "set", "fifo"),
    ):
        assert stoker(*arguments) == (2, "", wanted)
    assert "is a pipe or a device" in stoker("run", "/dev/zero")[2]
    assert "inputs.d: " in (err := stoker("run", "--set", "inputs.d=fifo", "--", "true")[2])
    assert err.endswith("/fifo is a pipe or a device; name a folder, a file or a URL\n")


def test_variables_of_a_shells_command_are_read(stoker: Stoker, store: Store) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"A=b\n")
    os.close(writer)
    assert env_file(Path(f"/dev/fd/{reader}")) == {"A": "b"}
    os.close(reader)


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pull", "x", "--attempt", "x"), "'--attempt': 'x' is not a whole number; write one such as 2"),
        (("run", "--nodes", "two", "--", "true"), "'--nodes': 'two' is not a whole number; write one such as 2"),
        (("metrics", "x"), "`stoker compare JOB --csv -`"),
        (("status",), "`stoker show JOB`"),
        (("kill", "x"), "`stoker stop JOB`"),
    ],
)
def test_other_words_get_the_right_ones(stoker: Stoker, store: Store, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = stoker(*arguments)
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1


def test_a_reader_that_leaves_early_does_not_end_the_submission(
    stoker: Stoker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        code, out, _ = stoker("run", "--detach", "--", "python", "train.py")
    assert code == 0 and out.startswith("train-")
    assert [one.id for one in client.jobs(store=store)] == [out.strip()]
