"""Bad input on the command line and from Python: one line that names what is wrong, and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from stoker import client
from stoker.cli import main
from stoker.governor import background
from stoker.jobfile import Job
from stoker.maintenance import delete
from stoker.maintenance.reindex import reindex
from stoker.model.log_entries import Ended, Event, Record
from stoker.store import job_log
from stoker.store.base import Store, open_store

Stoker = Callable[..., tuple[int, str, str]]
DAY = timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(background, "ensure_governed", lambda _store, _jobs: background.GovernorChoice())
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Stoker:
    """Run a command line in this process; return its exit code, stdout and stderr."""

    def run_it(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return run_it


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
        f"{young} is kept: it did not end more than 1d ago\n{active} is kept: it did not end more than 1d ago\n"
        "nothing is deleted\n",
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
