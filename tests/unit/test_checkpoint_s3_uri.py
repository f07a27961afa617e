"""`checkpoint_s3_uri`: what a job goes on from, and which URLs cannot be written."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker import client
from stoker.agent.checkpoints.resume_from import FromFolder, import_checkpoint
from stoker.jobfile import Job
from stoker.model.errors import StoreDenied, UserError
from stoker.sagemaker import PyTorch, checkpoint_uri
from stoker.sagemaker.arguments import BadArgument
from stoker.sagemaker.checkpoint_uri import Resume, announce, find_resume
from stoker.store.base import Store, open_store
from stoker.store.checkpoint_copy import RECORD, CopiedFile, CopyRecord, list_files, read_record, write_record
from stoker.testing.memory_store import Fault, MemoryStore


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print('hello')\n")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "epoch-7").write_text("7")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(place: Path) -> Store:
    return open_store(str(place / "store"))


@pytest.fixture
def url(place: Path) -> str:
    return (place / "copies").as_uri()


def submit(store: Store, place: Path, *, trained: bool) -> str:
    job = client.submit(
        Job(run="python train.py", code=str(place / "src"), resume_from=str(place / "base")), store=store
    )
    if trained:
        import_checkpoint(store, job, FromFolder(place / "base"))
    return job


def touch(url: str, complete: bool) -> None:
    """Write what a job's machine would have: one file and the record."""
    target = open_store(url)
    target.put("epoch-7", b"7")
    record = read_record(target)
    assert record is not None
    files = {path: CopiedFile(meta.etag, "digest") for path, meta in list_files(target).items()}
    write_record(
        target, replace(record, complete=complete, checkpoint=f"{record.job}/00000002/000001-save", files=files)
    )


def test_an_empty_url_is_a_beginning_and_plain_files_are_gone_on_from(store: Store, url: str) -> None:
    assert find_resume(url, store) == Resume()
    open_store(url).put("epoch-1", b"1")
    assert find_resume(url, store) == Resume(url, "going on from the files there")


def test_the_job_that_copied_there_is_gone_on_from(store: Store, url: str, place: Path) -> None:
    job = submit(store, place, trained=True)
    announce(url, job, store, None)
    assert find_resume(url, store).source == job, "its machine may have had no time to copy"
    for complete in (True, False):
        touch(url, complete)
        found = find_resume(url, store)
        assert found.source == job
        assert found.note is not None
        assert found.note.startswith(
            f"going on from the newest checkpoint of {job}, which copied its checkpoints there"
        )
        assert "it has not ended" in found.note


def test_a_job_that_never_trained_leaves_it_to_the_one_before(store: Store, url: str, place: Path) -> None:
    first, second = submit(store, place, trained=True), submit(store, place, trained=False)
    announce(url, first, store, None)
    touch(url, complete=False)
    announce(url, second, store, find_resume(url, store).source)
    assert find_resume(url, store).source == first
    target = open_store(url)
    record = read_record(target)
    assert record is not None
    write_record(target, replace(record, resumed_from=f"{first}:@0.1"))
    assert find_resume(url, store).source == f"{first}:@0.1", "pinned to a checkpoint"
    third = submit(store, place, trained=False)
    announce(url, third, store, find_resume(url, store).source)
    assert find_resume(url, store).source == f"{first}:@0.1"


def test_what_something_else_has_changed_counts_as_it_is(store: Store, url: str, place: Path) -> None:
    job = submit(store, place, trained=True)
    announce(url, job, store, None)
    touch(url, complete=True)
    target = open_store(url)
    target.put("epoch-8", b"of SageMaker itself")
    found = find_resume(url, store)
    assert found.source == url
    assert found.note == f"going on from the files there: something else than {job} has changed them"
    target.delete(["epoch-7", "epoch-8"])
    assert find_resume(url, store) == Resume(), "emptied, to start anew"
    target.delete([RECORD])
    assert find_resume(url, store) == Resume()


def test_half_copied_files_of_another_store_are_refused(store: Store, url: str, place: Path) -> None:
    other = open_store(str(place / "other"))
    job = submit(other, place, trained=True)
    announce(url, job, other, None)
    touch(url, complete=True)
    assert find_resume(url, store).source == url, "a whole copy is as good as any plain files"
    touch(url, complete=False)
    with pytest.raises(BadArgument, match=rf"^checkpoint_s3_uri: .* are of two checkpoints: {job} has not"):
        find_resume(url, store)


def test_half_copied_files_of_a_job_that_is_gone_are_refused(store: Store, url: str, place: Path) -> None:
    target = open_store(url)
    target.put("epoch-7", b"7")
    files = {path: CopiedFile(meta.etag, "digest") for path, meta in list_files(target).items()}
    write_record(target, CopyRecord("gone-1", store.url, datetime.now(timezone.utc), None, False, "gone-1/x", files))
    with pytest.raises(BadArgument, match=r" gone-1 has not copied all of gone-1/x; remove \.stoker-copy\.json there"):
        find_resume(url, store)


def test_a_url_that_cannot_be_written_from_here_is_told(
    store: Store, place: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faults(method: str, _key: str) -> Fault | None:
        return Fault(error=StoreDenied("AccessDenied")) if method == "put" else None

    job = submit(store, place, trained=True)
    bucket = MemoryStore(lambda: datetime.now(timezone.utc), faults=faults)
    monkeypatch.setattr(checkpoint_uri, "open_store", lambda _url: bucket)
    line = announce(url, job, store, None)
    assert line == f"checkpoint_s3_uri: {url} cannot be written from here: AccessDenied; the machines try it, too"


@pytest.mark.parametrize(
    ("uri", "provider", "message"),
    [
        ("store", "local", r"^checkpoints\.copy_to: .*/store has the store, file://.*/store/, in it; give a URL"),
        (".", "local", r"^checkpoints\.copy_to: .* has the store, "),
        ("store/work/x", "local", r"^checkpoints\.copy_to: .* is where the store, .*, keeps other things; give"),
        ("src/train.py", "local", r"^checkpoint"),
        ("saved", "ec2", r"^checkpoints\.copy_to: .*saved is on this computer, where the machines cannot reach it"),
        ("ftp://x/y", "local", r"^.*ftp:// is not a store"),
    ],
)
def test_urls_that_are_refused_at_submission(place: Path, uri: str, provider: str, message: str) -> None:
    from stoker.jobfile import layer_of, resolve
    from stoker.providers import registry
    from stoker.submit.local_environment import localise

    written = uri if "://" in uri else str(place / uri)
    fields = {"run": "python train.py", "code": str(place / "src"), "checkpoints": {"copy_to": written}}
    spec = resolve([layer_of({**fields, "resources": {"provider": provider}}, "x")], registry.capabilities).spec
    with pytest.raises(UserError, match=message):
        localise(spec, registry.capabilities(provider), place / "src", open_store(str(place / "store")))


def test_the_estimator_names_its_own_argument(place: Path, store: Store) -> None:
    def estimator(uri: str) -> PyTorch:
        return PyTorch("train.py", source_dir="src", instance_type="local", checkpoint_s3_uri=uri)

    with pytest.raises(UserError, match=r"^checkpoint_s3_uri: store/work/x is where the store, "):
        estimator("store/work/x").fit(wait=False)
    with pytest.raises(UserError, match=r"^checkpoint_s3_uri: ftp:// is not a store"):
        estimator("ftp://x/y").fit(wait=False)
    assert not list((place / "store").glob("jobs/*"))
    with pytest.raises(UserError, match=r"^checkpoint_s3_uri: saved is on this computer, where the machines cannot"):
        estimator("saved")._resume("ec2", store)


def test_a_folder_beside_the_keys_of_the_store_may_be_one(place: Path) -> None:
    """The guide's URI is below its output_path, which is the store where no other is named."""
    estimator = PyTorch(
        "train.py", source_dir="src", instance_type="local", checkpoint_s3_uri="store/tensorflow-spot-1/checkpoints"
    )
    with estimator._prepared(None, None) as (prepared, _, _):
        assert prepared.spec.checkpoints.copy_to == (place / "store/tensorflow-spot-1/checkpoints").as_uri()


def test_a_job_file_may_name_the_copies_too(place: Path) -> None:
    spec = Job(run="python train.py", checkpoints={"copy_to": "s3://bucket/copies"}).spec()
    assert spec.checkpoints.copy_to == "s3://bucket/copies"
    with pytest.raises(UserError, match=r"checkpoints\.copy_to: .*Stoker does not replace"):
        Job(run="python train.py", checkpoints={"copy_to": "s3://bucket/${USER}"}).spec()
