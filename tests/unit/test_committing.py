"""Tests of commits step by step: what is sent, what makes a commit be put off, and how it is called."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, checkpoints, manifest_keys, restored_content
from test_sync_gang import gang

from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, OutgoingFile
from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.file_copies import FileCopier, FileCopy
from stoker.agent.checkpoints.folder_commits import FolderCommits, name_of
from stoker.agent.checkpoints.folder_snapshot import File, Signature, scan
from stoker.model.node_facts import BlobRef
from stoker.store.base import StoredFile
from stoker.testing.memory_store import MemoryStore

memory, world = checkpoint_world.memory, checkpoint_world.world


@pytest.fixture
def store(memory: MemoryStore) -> MemoryStore:
    return memory


def after_sending(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Let something happen once all files of the first commit are sent."""
    send, calls = BlobSender.send, iter([then])

    def late(self: BlobSender, *args: object) -> dict[str, BlobRef]:
        found = send(self, *args)  # type: ignore[arg-type]
        next(calls, lambda: None)()
        return found

    monkeypatch.setattr(BlobSender, "send", late)


# ── Saves that the script asks for ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("held", [True, False])
def test_a_save_that_is_replaced_once_it_is_sent_is_committed_if_it_was_held(
    world: World, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    monkeypatch.setattr(FileCopier, "has_room", lambda _self, _size: held)
    after_sending(monkeypatch, lambda: world.save("last", {"model": "2"}, step=2))
    world.save("last", {"model": "1"}, step=1)
    world.tick(rounds=3)
    assert [one.step for one in checkpoints(world.store)] == ([1, 2] if held else [2])


def test_what_would_be_lost_is_the_newest_save_that_waits(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory).begin()
    world.save("none", {"model": ""})
    world.tick()
    assert world.sync.status().unsynced_bytes == 0

    def unstable(*_args: object) -> dict[str, BlobRef]:
        raise FileUnstable("model")

    with monkeypatch.context() as patch:
        patch.setattr(BlobSender, "send", unstable)
        for name, size in (("small", 10), ("large", 1000)):
            world.save(name, {"model": "x" * size})
            world.tick()
            status = world.sync.status()
            marker = (world.folder / name / checkpoint_world.MARKER).stat().st_size
            assert status.unsynced_bytes == size + marker
        assert (status.waiting, status.error) == (2, None)
    world.tick()
    status = world.sync.status()
    assert (status.unsynced_bytes, status.waiting) == (0, 0)


@pytest.mark.parametrize("pressed", [False, True])
def test_a_small_save_goes_before_a_newer_large_one_only_when_seconds_count(world: World, pressed: bool) -> None:
    world.save("small", {"model": "1"})
    world.save("large", {"model": "2" * 10_000})
    if pressed:
        world.sync.hurry(1000.0)
    world.tick(rounds=3)
    assert [one.name for one in checkpoints(world.store)] == (["small", "large"] if pressed else ["large"])


# ── A folder that settles ─────────────────────────────────────────────────────────────────────────────────────────────


class Sending:
    """One choice of a folder with `model.pt` and `run.log`, as it is sent."""

    def __init__(self, world: World) -> None:
        world.write(model="model")
        (world.folder / "run.log").write_text("log")
        world.sync._rounds.watch.scan()
        self.world = world
        self.files = scan(world.folder)

    def send(
        self, copies: Iterable[str] = (), streams: Iterable[str] = (), kept: dict[str, FileCopy] | None = None
    ) -> dict[str, BlobRef]:
        commits = self.world.sync._rounds.folder_commits
        assert isinstance(commits, FolderCommits)
        try:
            return commits._send(
                CommitContents(self.files, frozenset(copies), {}, frozenset(streams), copies=kept or {})
            )
        finally:
            assert not (self.world.scratch / "copies").exists(), "copies are removed, whatever comes"


@pytest.fixture
def sending(world: World) -> Sending:
    return Sending(world)


def test_what_is_sent_comes_from_the_folder_or_from_copies_of_it(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: dict[str, Path] = {}
    send = BlobSender.send

    def noting(self: BlobSender, files: list[OutgoingFile], *args: object) -> dict[str, BlobRef]:
        sources.update({one.file.path: one.source for one in files})
        assert all(one.source.exists() for one in files)
        return send(self, files, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(BlobSender, "send", noting)
    (sending.world.folder / "latest").symlink_to("model.pt")
    sending.files = scan(sending.world.folder)
    copies, folder = sending.world.scratch / "copies", sending.world.folder
    assert set(sending.send(copies=sending.files)) == {"model.pt", "run.log", "latest"}
    assert {sources["model.pt"], sources["run.log"]} == {copies / "0", copies / "1"}
    assert sources["latest"] == folder / "latest", "a link is not copied"
    sending.send()
    assert sources["model.pt"].is_relative_to("/proc/self/fd"), "the file in the folder, held open"
    other = sending.world.root / "kept"
    shutil.copy(folder / "model.pt", other)
    sending.send(copies=["model.pt"], kept={"model.pt": FileCopy(other, 2**62)})
    assert sources["model.pt"] == other


@pytest.mark.parametrize("happens", ["gone", "written"])
def test_a_file_that_changed_since_it_was_seen_is_not_copied(sending: Sending, happens: str) -> None:
    if happens == "gone":
        (sending.world.folder / "model.pt").unlink()
    else:
        sending.world.write(model="other")
    with pytest.raises(FileUnstable):
        sending.send(copies=["model.pt"])


def test_a_file_that_is_open_again_after_it_was_copied_is_not_sent(sending: Sending) -> None:
    sending.world.open = {"run.log"}
    sending.send(copies=["model.pt"])
    sending.send(copies=["model.pt", "run.log"], streams=["run.log"])
    with pytest.raises(FileUnstable, match="opened"):
        sending.send(copies=["model.pt", "run.log"])


def test_what_was_copied_while_a_process_died_is_not_sent(sending: Sending) -> None:
    assert sending.world.sync._rounds.watch.history.members == {1}
    sending.world.alive = False
    sending.send()
    sending.send(copies=["run.log"], streams=["run.log"])
    with pytest.raises(FileUnstable, match="a process ended"):
        sending.send(copies=["model.pt"])


def test_a_kept_file_that_is_written_while_it_is_sent_is_not_committed(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = sending.world.root / "kept"
    kept.write_text("model")
    held = FileCopy(kept, 2**62, Signature.of(kept.stat()))
    after_sending(monkeypatch, lambda: None)
    sending.send(kept={"model.pt": held})
    after_sending(monkeypatch, lambda: bool(kept.write_text("longer than it was")) and None)
    with pytest.raises(FileUnstable, match="written while"):
        sending.send(kept={"model.pt": held})


def named(*paths: str, newest: str = "") -> str:
    """The name of a commit of these files."""
    files = {path: File(path, Signature(1, 1, 1, 5 + (path == newest), 0), 0o644) for path in paths}
    return name_of(files, 7)


def test_a_commit_has_the_name_of_the_newest_thing_in_the_folder() -> None:
    assert named() == "auto-7"
    assert named("model.ckpt.pt") == "model.ckpt"
    assert named("step-1.5/model.pt") == "step-1.5"
    assert named("a/x", "b/x") == "b", "of two that are equally new, the last by name"
    assert named("a/x", "b/x", newest="a/x") == "a"
    assert named("epoch 1/x") == "epoch-1"
    assert named("..hidden/x") == "hidden"
    assert named("n" * 150 + "/x") == "n" * 100
    assert named("...../x") == "auto-7"


# ── Ranks that follow ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_takes_long_is_sent_ahead_once_while_rank_0_is_still_at_it(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, other = gang(tmp_path, memory)
    sent: list[Path] = []
    put_file = memory.put_file

    def noting(source: Path, key: Callable[[str], str]) -> StoredFile:
        sent.append(source)
        return put_file(source, key)

    monkeypatch.setattr(memory, "put_file", noting)
    other.write(shard_1="1")
    other.tick()
    assert not sent
    for _ in range(4):
        assert other.sync._rounds.folder_commits.advance(final=True) is False
        other.clock.s += 1.0
    assert len(sent) == 1
    assert manifest_keys(memory) == []
    lead.write(shard_0="0")
    done = False
    for _ in range(80):
        lead.tick()
        other.clock.s += 0.5
        done |= other.sync._rounds.folder_commits.advance(final=True)
    assert done
    (checkpoint,) = checkpoints(memory)
    assert set(checkpoint.manifests) == {0, 1}
    assert restored_content(memory, tmp_path / "back") == {"shard_0.pt": b"0", "shard_1.pt": b"1"}


def test_a_store_that_is_far_away_gets_all_files_of_a_save(tmp_path: Path) -> None:
    far = checkpoint_world.memory_store(is_local=False)
    world = World(tmp_path, far).begin()
    files = {f"part-{number}": f"{number}".encode() for number in range(20)}
    world.save("step-1", files)
    world.tick()
    assert restored_content(far, tmp_path / "back") == {f"step-1/{name}": data for name, data in files.items()}
