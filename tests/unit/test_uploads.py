"""Folders for machines elsewhere: sent once, by what is in them, and collected when nobody needs them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cli import run
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.spec import Input, Spec
from stoker.providers import registry
from stoker.store.base import StoredFile
from stoker.submit import send, uploads
from stoker.submit.local_environment import localise
from stoker.submit.prepared_job import PreparedJob
from stoker.testing.memory_store import MemoryStore


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(timezone.utc)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    (folder / "sub" / "b").write_bytes(b"bb")
    return folder


def spec(**inputs: Input | str) -> Spec:
    wanted = {name: Input(one) if isinstance(one, str) else one for name, one in inputs.items()}
    return Spec(name="job", run="true", inputs=wanted)


def gather(store: MemoryStore, **inputs: Input | str) -> tuple[Spec, tuple[uploads.Upload, ...]]:
    return uploads.plan_uploads(spec(**inputs), registry.capabilities("ec2"), store.url, store)


def sent(store: MemoryStore) -> dict[str, bytes]:
    found = {meta.key: store.get(meta.key) for meta in store.list(keys.INPUTS)}
    return {key.partition("/")[2]: one.data for key, one in found.items() if one is not None and key[-5:] != ".json"}


def test_a_folder_is_sent_once_as_plain_files(store: MemoryStore, data: Path, tmp_path: Path) -> None:
    made, (upload,) = gather(store, data=str(data))
    assert (upload.size, upload.to_send) == (3, 3)
    assert made.inputs["data"].source == f"{store.url}/inputs/{upload.digest}"
    uploads.send(store, upload)
    assert sent(store) == {f"{upload.digest}/a": b"a", f"{upload.digest}/sub/b": b"bb"}
    # The same contents elsewhere, and other times: not sent again.
    moved = data.rename(tmp_path / "moved")
    os.utime(moved / "a", (1, 1))
    again, (upload,) = gather(store, data=str(moved))
    assert again == made and upload.to_send == 0
    writes = len(list(store.list("")))
    uploads.send(store, upload)
    assert len(list(store.list(""))) == writes


def test_what_is_missing_of_a_folder_is_sent(store: MemoryStore, data: Path) -> None:
    _, (upload,) = gather(store, data=str(data))
    uploads.send(store, upload)
    store.delete([f"{keys.input_files(upload.digest)}sub/b"])
    _, (upload,) = gather(store, data=str(data))
    assert upload.to_send == 2
    uploads.send(store, upload)
    assert len(sent(store)) == 2


def test_how_much_has_gone_is_told(
    store: MemoryStore, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_bytes(b"x" * 1000)
    _, gathered = gather(store, data=str(data), other=str(tmp_path / "other"))
    prepared: Any = SimpleNamespace(uploads=gathered, packed=None)
    heard: list[tuple[int, int]] = []
    told = send._counting(prepared, lambda done, total: heard.append((done, total)))
    for upload in gathered:
        uploads.send(store, upload, told)
    assert [total for _, total in heard] == [1003] * 3
    assert heard[-1][0] == 1003 and heard == sorted(heard)
    # On a terminal, and where there is anything to wait for.
    with run._uploading(prepared) as progress:
        assert progress is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with run._uploading(prepared) as progress:
        assert progress is not None
        progress(1, 1003)
    with run._uploading(SimpleNamespace(uploads=(), packed=None)) as progress:  # type: ignore[arg-type]
        assert progress is None


def test_names_and_contents_make_the_digest(store: MemoryStore, data: Path) -> None:
    _, (first,) = gather(store, data=str(data))
    (data / "a").write_bytes(b"A")
    _, (second,) = gather(store, data=str(data))
    (data / "a").rename(data / "c")
    _, (third,) = gather(store, data=str(data))
    assert len({first.digest, second.digest, third.digest}) == 3


def test_a_file_is_a_file(store: MemoryStore, data: Path) -> None:
    made, (upload,) = gather(store, data=str(data / "sub" / "b"))
    assert made.inputs["data"].source == f"{store.url}/inputs/{upload.digest}/b"


def test_links_are_followed_but_for_those_without_an_end(store: MemoryStore, data: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c").write_bytes(b"c")
    (data / "link").symlink_to(tmp_path / "elsewhere")
    (data / "loop").symlink_to(data)
    (data / "file").symlink_to(data / "a")
    _, (upload,) = gather(store, data=str(data))
    assert [file.name for file in upload.files] == ["a", "file", "link/c", "sub/b"]


def test_a_folder_that_two_links_lead_to_is_sent_under_both_names(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep" / "x").write_bytes(b"x")
    (tmp_path / "real" / "up").symlink_to(tmp_path / "real")
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "val"):
        (data / name).symlink_to(tmp_path / "real")
    _, (upload,) = gather(store, data=str(data))
    assert [file.name for file in upload.files] == ["train/deep/x", "val/deep/x"]


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_what_may_not_be_looked_into_is_named(data: Path, mode: int) -> None:
    """By somebody who is not root, whom nothing is forbidden."""
    data.parent.chmod(0o755)
    (data / "sub").chmod(mode)
    asked = (
        "import os; from pathlib import Path\n"
        "from stoker.model.errors import UserError; from stoker.submit import uploads\n"
        "os.geteuid() == 0 and os.setuid(65534)\n"
        "try: print(uploads.measure_upload('data', Path('data')))\n"
        "except UserError as error: print(error)\n"
    )
    # From within: the folders above may be nobody else's.
    program = [sys.executable, "-c", asked]
    ran = subprocess.run(program, cwd=data.parent, capture_output=True, text=True, check=False)
    (data / "sub").chmod(0o755)
    where = "data/sub/b" if mode else "data/sub"
    assert ran.stdout == f"inputs.data: {where} cannot be read: Permission denied\n", ran.stderr


def test_what_cannot_be_sent_is_named(store: MemoryStore, data: Path) -> None:
    (data / "gone").symlink_to(data / "nothing")
    with pytest.raises(UserError, match=r"^inputs\.data: .*/gone is a link to nothing; remove it"):
        gather(store, data=str(data))
    (data / "gone").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(data / "socket"))
        with pytest.raises(UserError, match=r"^inputs\.data: .*/socket is neither a file nor a folder"):
            gather(store, data=str(data))
    (data / "socket").unlink()
    (data / "new\nline").touch()
    with pytest.raises(UserError, match=r"^inputs\.data: no bucket keeps a file called '.*new\\nline'; rename it"):
        gather(store, data=str(data))


def test_what_fails_to_be_read_is_named(store: MemoryStore, data: Path) -> None:
    # The memory of a process is a file, and nothing is at its beginning.
    with pytest.raises(UserError, match=r"^inputs\.data: /proc/self/mem cannot be read: Input/output error$"):
        uploads.measure_upload("data", Path("/proc/self/mem"))
    with pytest.raises(UserError, match=r"^inputs\.data: .*/none cannot be read: No such file or directory$"):
        uploads.measure_upload("data", data / "none")
    _, (upload,) = gather(store, data=str(data))
    (data / "a").unlink()
    with pytest.raises(UserError, match=r"^inputs\.data: .*/a cannot be read: No such file or directory$"):
        uploads.send(store, upload)


def test_an_empty_folder_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"^inputs\.data: there is no file in .*/empty$"):
        gather(store, data=str(tmp_path / "empty"))


def test_a_file_that_changes_meanwhile_is_told(store: MemoryStore, data: Path) -> None:
    _, (upload,) = gather(store, data=str(data))
    (data / "a").write_bytes(b"other")
    with pytest.raises(UserError, match=r"^inputs\.data: .*/a was changed meanwhile; submit again when it rests"):
        uploads.send(store, upload)


def submit(store: MemoryStore, made: Spec, job: str = "job-1") -> None:
    from stoker.model import codec
    from stoker.model.submission import Submission

    store.put(keys.spec(job), codec.dumps(Submission(job, made, "me")))


def test_what_no_job_refers_to_is_collected(store: MemoryStore, clock: Clock, data: Path) -> None:
    made, (upload,) = gather(store, data=str(data), url="s3://other/inputs/x")
    uploads.send(store, upload)
    assert uploads.collect_uploads(store) == 0  # young
    clock.now -= timedelta(days=2)
    for meta in list(store.list(keys.INPUTS)):
        found = store.get(meta.key)
        assert found is not None
        store.put(meta.key, found.data)
    clock.now += timedelta(days=2)
    submit(store, made)
    assert uploads.collect_uploads(store) == 0  # needed
    store.delete([keys.spec("job-1")])
    assert uploads.collect_uploads(store) == 1
    assert list(store.list(keys.INPUTS)) == []


def test_what_was_collected_is_sent_again_under_a_new_name(store: MemoryStore, clock: Clock, data: Path) -> None:
    made, (upload,) = gather(store, data=str(data))
    now = clock.now
    clock.now = now - timedelta(days=2)
    first = uploads.send(store, upload)
    clock.now = now
    assert uploads.collect_uploads(store) == 1
    with pytest.raises(UserError, match="not in the store any more"):
        uploads.check_uploads_stored(store, made)
    again, (upload,) = gather(store, data=str(data))
    second = uploads.send(store, upload)
    assert second == f"{first}-2" and upload.to_send == upload.size
    assert again.inputs["data"].source == f"{store.url}/{keys.INPUTS}{second}"
    uploads.check_uploads_stored(store, again)
    store.put(keys.input_files(first) + "a", b"landed late")
    assert uploads.collect_uploads(store) == 1, "what was given up is never in use"
    assert {meta.key.split("/")[1] for meta in store.list(keys.INPUTS)} == {second}


def test_a_clone_of_what_is_gone_is_refused(store: MemoryStore, data: Path) -> None:
    made, (upload,) = gather(store, data=str(data))
    with pytest.raises(UserError, match=r"^inputs\.data: its files are not in the store any more"):
        uploads.check_uploads_stored(store, made)
    uploads.send(store, upload)
    uploads.check_uploads_stored(store, made)


def test_no_job_is_submitted_whose_uploads_are_gone(store: MemoryStore, data: Path) -> None:
    made, _ = gather(store, data=str(data))
    with pytest.raises(UserError, match=r"^inputs\.data: its files are not in the store any more"):
        send.send(PreparedJob(made, registry.capabilities("ec2"), (), ()), store)
    assert list(store.list("")) == []


def test_what_cannot_be_known_keeps_everything(store: MemoryStore, clock: Clock, data: Path) -> None:
    clock.now -= timedelta(days=2)
    _, (upload,) = gather(store, data=str(data))
    uploads.send(store, upload)
    store.put(keys.spec("job-1"), json.dumps({"spec": 1}).encode())
    with pytest.raises(Exception, match="nothing is collected"):
        uploads.collect_uploads(store)


# ── Which URLs machines reach ─────────────────────────────────────────────────────────────────────────────────────────


def localised(provider: str, source: str, mode: str = "copy", folder: Path = Path("/")) -> str:
    from dataclasses import replace

    wanted = spec(data=Input(source, mode=mode))  # type: ignore[arg-type]
    wanted = replace(wanted, resources=replace(wanted.resources, provider=provider))
    return localise(wanted, registry.capabilities(provider), folder, None).inputs["data"].source


def test_a_bucket_of_another_cloud_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        localised("ec2", "gs://bucket/data")
    assert str(refused.value) == (
        "inputs.data: machines on ec2 have credentials for s3://, and none for gs://; copy the data there first, or "
        "pass the URL with mode: stream"
    )
    assert localised("ec2", "gs://bucket/data", "stream") == "gs://bucket/data"
    assert localised("ec2", "s3://other/data", "mount") == "s3://other/data"
    assert localised("local", "gs://bucket/data") == "gs://bucket/data"


def test_what_is_no_bucket_can_only_be_streamed() -> None:
    with pytest.raises(UserError, match=r"^inputs\.data: https:// cannot be copied; give s3://bucket/folder or "):
        localised("local", "https://example.com/x.tar")
    assert localised("gce", "https://example.com/x.tar", "stream") == "https://example.com/x.tar"


@pytest.mark.parametrize("provider", ["local", "gce"])
def test_a_folder_by_its_url_is_a_folder(provider: str, data: Path) -> None:
    assert localised(provider, data.as_uri()) == str(data)
    assert localised(provider, "data", folder=data.parent) == str(data)
    with pytest.raises(UserError, match=r"/nowhere does not exist; name a folder, a file or a URL$"):
        localised(provider, "nowhere", folder=data.parent)


def test_what_needs_no_upload_stays_beside_what_does(store: MemoryStore, data: Path) -> None:
    """In whatever order a job names them; each keeps its own source and settings."""
    inputs = {"bucket": "s3://bucket/x", "data": Input(str(data), shard=True), "other": str(data / "a")}
    made, planned = gather(store, **inputs)
    assert [(upload.name, upload.size) for upload in planned] == [("data", 3), ("other", 1)]
    assert list(made.inputs) == ["bucket", "data", "other"]
    assert made.inputs["bucket"] == Input("s3://bucket/x")
    assert made.inputs["data"].shard and not made.inputs["other"].shard
    stored = {upload.name: (upload, uploads.send(store, upload)) for upload in planned}
    assert uploads.with_stored_sources(spec(**inputs), store.url, stored) == made
    uploads.check_uploads_stored(store, made)
    # What is gone is refused, also where other inputs come first.
    store.delete([meta.key for meta in store.list(keys.input_files(stored["other"][1]))])
    with pytest.raises(UserError, match=r"^inputs\.other: its files are not in the store any more"):
        uploads.check_uploads_stored(store, made)


def test_on_this_computer_nothing_is_uploaded(store: MemoryStore, data: Path) -> None:
    asked = spec(data=str(data))
    assert uploads.plan_uploads(asked, registry.capabilities("local"), store.url, store) == (asked, ())


def test_a_store_that_tells_of_each_part_is_asked_to(store: MemoryStore, data: Path) -> None:
    class Telling(MemoryStore):
        def put_file_with_progress(
            self, source: Path, key: Callable[[str], str], progress: Callable[[int], None]
        ) -> StoredFile:
            done = self.put_file(source, key)
            progress(done.size)
            return done

    telling = Telling(lambda: datetime.now(timezone.utc))
    _, (upload,) = gather(telling, data=str(data))
    told: list[int] = []
    uploads.send(telling, upload, told.append)
    assert sorted(told) == [1, 2]
    assert sent(telling) == {f"{upload.digest}/a": b"a", f"{upload.digest}/sub/b": b"bb"}
