"""Outputs of several attempts, read as one tree; and what is asked before they are deleted."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from stoker import client
from stoker.cli import main
from stoker.jobfile import Job
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.log_entries import Claimed, Ended, Event, Launched, NodeRef, Record
from stoker.read.outputs import list_outputs, pull_outputs
from stoker.store import job_log
from stoker.store.base import Store, open_store
from tests.support.sim_data import SPOT_A


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("pass")
    monkeypatch.chdir(tmp_path / "code")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def append(store: Store, job: str, *events: Event) -> None:
    for event in events:
        state = job_log.read(store, job)
        assert state is not None
        assert job_log.append(
            store, job, state.seq + 1, Record(token=job_log.new_token(), by="t", reason="test", event=event)
        )


def type_in(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture
def job(store: Store) -> str:
    """Two attempts, claims 2 and 4."""
    found = client.submit(Job(run="python train.py"), store=store)
    for claim in (2, 4):
        append(
            store, found, Claimed(offering=SPOT_A, nodes=1), Launched(claim=claim, nodes=(NodeRef(0, f"i-{claim}"),))
        )
    return found


def put(store: Store, job: str, claim: int, **files: str) -> None:
    for name, text in files.items():
        store.put(f"{keys.outputs(job, claim)}{name.replace('__', '/')}", text.encode())


def pulled(store: Store, job: str, folder: Path, attempt: int | None = None) -> dict[str, str]:
    pull_outputs(store, list_outputs(store, job, attempt).files, folder)
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_the_last_attempt_that_wrote_a_file_counts(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, events1="1", last="1", deep__a="1")
    put(store, job, 4, events2="2", last="2")
    assert pulled(store, job, tmp_path / "all") == {"events1": "1", "events2": "2", "last": "2", "deep/a": "1"}
    assert pulled(store, job, tmp_path / "first", 1) == {"events1": "1", "last": "1", "deep/a": "1"}
    assert pulled(store, job, tmp_path / "second", 2) == {"events2": "2", "last": "2"}


def test_a_file_of_several_attempts_is_told(
    store: Store, job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One disk would have the lines of both in it, where the script appends."""
    put(store, job, 2, log="1", only="1")
    put(store, job, 4, log="2")
    assert type_in("pull", job, str(tmp_path / "all"), "--outputs") == 0
    told = capsys.readouterr().err
    assert "1 file, such as log, was written by several attempts: the last one's is taken; --attempt 1 gives" in told
    assert type_in("pull", job, str(tmp_path / "one"), "--outputs", "--attempt", "1") == 0
    assert "written by several" not in capsys.readouterr().err


def test_a_folder_in_the_place_of_a_file(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, a="file", b__c="folder")
    put(store, job, 4, a__x="folder", b="file")
    assert pulled(store, job, tmp_path / "all") == {"a/x": "folder", "b": "file"}


def test_the_claim_that_the_end_names_wins(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, last="the one that finished")
    put(store, job, 4, last="never trained")
    append(store, job, Ended(outcome="succeeded", rule="finished", claim=2))
    assert pulled(store, job, tmp_path / "all") == {"last": "the one that finished"}


def test_files_of_claims_that_the_log_does_not_know_are_left_out(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, mine="1")
    put(store, job, 99999999, planted="x")
    assert pulled(store, job, tmp_path / "all") == {"mine": "1"}


def test_names_that_lead_elsewhere(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, link__authorized_keys="evil")
    (tmp_path / "target").mkdir()
    (tmp_path / "target/link").symlink_to(tmp_path / "home")
    pulled(store, job, tmp_path / "target")
    assert not (tmp_path / "home/authorized_keys").exists()


def test_what_there_is_not(store: Store, job: str) -> None:
    with pytest.raises(UserError, match="has no outputs yet"):
        list_outputs(store, job)
    put(store, job, 2, mine="1")
    with pytest.raises(UserError, match="has no attempt 7; it has had 2"):
        list_outputs(store, job, 7)
    with pytest.raises(UserError, match=f"attempt 2 of {job} has no outputs yet"):
        list_outputs(store, job, 2)


def test_saves_that_are_perhaps_unfinished_stay_until_a_later_attempt_goes_on(store: Store, job: str) -> None:
    put(store, job, 2, **{"perhaps-unfinished__step-3": "1"})
    assert [(file.path, file.attempt) for file in list_outputs(store, job).files] == [("perhaps-unfinished/step-3", 1)]
    store.put(f"{keys.checkpoints(job)}{keys.number(4)}/000001-step-4.json", b"")
    with pytest.raises(UserError, match=f"^{job} has no outputs but saves .* unfinished.*; --attempt 1 fetches them$"):
        list_outputs(store, job)
    assert [file.path for file in list_outputs(store, job, 1).files] == ["perhaps-unfinished/step-3"]
    put(store, job, 4, late="2")
    found = list_outputs(store, job)
    assert [file.path for file in found.files] == ["late"]
    assert [(file.path, file.attempt) for file in found.passed] == [("perhaps-unfinished/step-3", 1)]


def test_a_job_that_has_not_started_has_none(store: Store) -> None:
    waiting = client.submit(Job(run="python train.py"), store=store)
    with pytest.raises(UserError, match=f"^{waiting} has no outputs yet; it has not started$"):
        list_outputs(store, waiting)


def test_how_much_has_come_is_told(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, one="1", two="22", gone="333")
    files = list_outputs(store, job).files
    store.delete([file.key for file in files if file.path == "gone"])
    told: list[tuple[int, int]] = []
    assert pull_outputs(store, files, tmp_path / "x", lambda done, of: told.append((done, of))) == (2, 6)
    assert len(told) == 3 and told[-1] == (6, 6) and {of for _, of in told} == {6}
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["one", "two"]


def test_attempts_whose_file_is_not_taken_are_told(store: Store, job: str) -> None:
    append(store, job, Claimed(offering=SPOT_A, nodes=1), Launched(claim=6, nodes=(NodeRef(0, "i-6"),)))
    for claim in (2, 4, 6):
        put(store, job, claim, every=str(claim), **({"first": "1"} if claim == 2 else {}))
    every, first = list_outputs(store, job).files
    assert (every.path, every.attempt, every.replaces) == ("every", 3, (1, 2))
    assert (first.path, first.attempt, first.replaces) == ("first", 1, ())


def test_a_file_in_the_place_of_a_folder(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, run__a="1", run__deep__b="1", kept="1")
    put(store, job, 4, run="2")
    assert pulled(store, job, tmp_path / "all") == {"run": "2", "kept": "1"}


def test_python_pulls_them(store: Store, job: str, tmp_path: Path) -> None:
    put(store, job, 2, mine="1")
    assert client.pull_outputs(job, tmp_path / "here", store=store) == tmp_path / "here"
    assert (tmp_path / "here/mine").read_text() == "1"


# ── rm ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.fixture
def over(store: Store) -> str:
    """A job that ended without a machine, with something to lose."""
    found = client.submit(Job(run="python train.py"), store=store)
    append(store, found, Ended(outcome="stopped", rule="stop"))
    for key in [meta.key for meta in store.list(f"{keys.ACTIVE}{found}/")]:
        store.delete([key])
    put(store, found, 2, model="1" * 5000)
    return found


@pytest.mark.parametrize("answer", [True, False])
def test_rm_asks_on_a_terminal(
    store: Store, over: str, answer: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def confirm(text: str, **_how: object) -> bool:
        asked.append(text)
        if not answer:
            raise click.Abort
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    be_a_terminal(monkeypatch)
    assert type_in("rm", over) == (0 if answer else 130)
    told = capsys.readouterr().err
    assert asked == ["Delete 1 job for good?"]
    assert f"{over}  0 checkpoints and 1 output file, 5.0 kB in all" in told
    assert (store.head(keys.spec(over)) is None) is answer


def test_rm_does_not_ask_whoever_agrees(store: Store, over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "confirm", lambda *_, **__: pytest.fail("asked"))
    be_a_terminal(monkeypatch)
    assert type_in("rm", "-y", over) == 0
    assert store.head(keys.spec(over)) is None


def test_rm_deletes_nothing_where_the_question_cannot_be_seen(
    store: Store, over: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `stoker rm JOB 2>log`, typed by a person."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert type_in("rm", over) == 2
    assert "-y agrees to delete" in capsys.readouterr().err
    assert store.head(keys.spec(over)) is not None


def test_rm_in_a_script_deletes_what_it_names(store: Store, over: str) -> None:
    assert type_in("rm", over) == 0
    assert store.head(keys.spec(over)) is None
