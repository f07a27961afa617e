"""Extracting what others named: nothing outside of the folder is ever written, whatever lies in it or happens to it."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_world import JOB, content, memory_store

from stoker.agent.checkpoints.resume_from import FromJob, import_checkpoint
from stoker.agent.environment.package_sources import PackedWheels
from stoker.agent.fetch_programs import fetch_program, tool_name
from stoker.agent.inputs.cache import CacheEntry
from stoker.agent.inputs.download import InputDownload
from stoker.model import keys
from stoker.model.errors import SetupFailed, StokerError
from stoker.model.node_facts import BlobRef, Manifest
from stoker.model.submission import Wheel
from stoker.read.outputs import OutputFile, pull_outputs
from stoker.store.base import Meta, Store
from stoker.store.checkpoint_manifests import encode
from stoker.store.checkpoints import fetch_checkpoint, list_checkpoints
from stoker.store.safe_extraction import Extraction, PathObstructed
from stoker.testing.memory_store import MemoryStore
from tests.support.newest_checkpoint import restore_newest

LINK = stat.S_IFLNK | 0o777
KEYS = "authorized_keys"


@pytest.fixture
def store() -> MemoryStore:
    return memory_store()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The puller's home, with something that must stay as it is."""
    made = tmp_path / "home"
    (made / ".ssh").mkdir(parents=True)
    (made / ".ssh" / KEYS).write_text("mine")
    (made / "work/pulled").mkdir(parents=True)
    return made


def commit(store: Store, ordinal: int, files: Mapping[str, str], links: Mapping[str, str] = {}) -> None:
    """What a machine that runs a stranger's code can put into the store."""
    blobs = []
    for path, text in {**files, **links}.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        store.put(keys.blob(JOB, 0, digest), text.encode())
        blobs.append(BlobRef(path=path, digest=digest, size=len(text.encode()), mode=LINK if path in links else 0o644))
    manifest = Manifest(
        name=f"step-{ordinal}",
        job=JOB,
        claim=1,
        rank=0,
        ordinal=ordinal,
        committed_at=datetime.now(timezone.utc),
        files=tuple(blobs),
    )
    key = keys.checkpoint_key(1, ordinal, manifest.name)
    store.create(keys.manifest(JOB, key), encode(manifest))


def pull_each(store: Store, target: Path) -> None:
    for checkpoint in list_checkpoints(store, JOB):
        fetch_checkpoint(store, JOB, checkpoint, target)


def test_three_pulls_do_not_write_outside(store: MemoryStore, home: Path) -> None:
    """The first leaves a link up to the folder, the second a link made through it, the third a file through that."""
    commit(store, 1, {"x/file": "harmless"}, {"x/y": ".."})
    commit(store, 2, {}, {"x/y/z": "../.."})
    commit(store, 3, {f"z/.ssh/{KEYS}": "the attacker's"})
    commit(store, 4, {f"x/y/z/.ssh/{KEYS}": "the attacker's"})
    pull_each(store, home / "work/pulled")
    assert (home / ".ssh" / KEYS).read_text() == "mine"
    assert sorted(path.name for path in home.iterdir()) == [".ssh", "work"]
    assert sorted(path.name for path in (home / "work").iterdir()) == ["pulled"]
    assert (home / "work/pulled/z/.ssh" / KEYS).read_text() == "the attacker's"


def test_a_link_stays_possible_and_gives_way_later(store: MemoryStore, home: Path) -> None:
    target = home / "work/pulled"
    commit(store, 1, {"step-1/model": "one"}, {"latest": "step-1"})
    pull_each(store, target)
    assert (target / "latest/model").read_text() == "one"
    commit(store, 2, {"latest/model": "two"})
    pull_each(store, target)
    assert not (target / "latest").is_symlink()
    assert (target / "latest/model").read_text() == "two"
    assert (target / "step-1/model").read_text() == "one"


def obstacle(kind: str, path: Path, outside: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(outside)
        case "dangling":
            path.symlink_to(outside.with_name("new"))
        case "hard link":
            path.hardlink_to(outside)
        case "pipe":
            os.mkfifo(path)
        case "socket":
            made = socket.socket(socket.AF_UNIX)
            here = Path.cwd()
            os.chdir(path.parent)  # A socket's name may not be long.
            made.bind(path.name)
            os.chdir(here)
            made.close()


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe", "socket"])
@pytest.mark.parametrize("name", ["model", "deep/er/model"])
@pytest.mark.timeout(60)
def test_what_has_the_name_of_a_file_is_replaced_and_never_opened(
    store: MemoryStore, home: Path, kind: str, name: str
) -> None:
    target, outside = home / "work/pulled", home / ".ssh" / KEYS
    obstacle(kind, target / name, outside)
    commit(store, 1, {name: "pulled"})
    pull_each(store, target)
    assert stat.S_ISREG((target / name).lstat().st_mode)
    assert (target / name).read_text() == "pulled"
    store.put(f"{keys.outputs(JOB, 1)}{name}", b"an output")
    (target / name).unlink()
    obstacle(kind, target / name, outside)
    pull_outputs(store, (OutputFile(name, f"{keys.outputs(JOB, 1)}{name}", 9, 1),), target)
    assert (target / name).read_bytes() == b"an output"
    assert outside.read_text() == "mine"
    assert [path.name for path in outside.parent.iterdir()] == [KEYS]


@pytest.mark.parametrize("kind", ["pipe", "socket", "hard link"])
@pytest.mark.timeout(60)
def test_what_has_the_name_of_a_folder_and_is_no_link_is_told(store: MemoryStore, home: Path, kind: str) -> None:
    target = home / "work/pulled"
    obstacle(kind, target / "deep", home / ".ssh" / KEYS)
    commit(store, 1, {"deep/model": "pulled"})
    with pytest.raises(PathObstructed, match=r"deep is there and is not a folder; remove it"):
        pull_each(store, target)
    assert [path.name for path in target.iterdir()] == ["deep"]


def test_a_folder_is_never_replaced_by_a_file(store: MemoryStore, home: Path) -> None:
    target = home / "work/pulled"
    (target / "model/own").mkdir(parents=True)
    commit(store, 1, {"model": "pulled"})
    with pytest.raises(PathObstructed, match=r"model is a folder"):
        pull_each(store, target)
    assert (target / "model/own").is_dir()


@pytest.mark.parametrize("path", ["../up", "/etc/x", "a/../../up", "a//b", "./a", "", "a\0b", ".."])
def test_no_name_leads_out(tmp_path: Path, path: str) -> None:
    with Extraction(tmp_path / "folder") as extraction, extraction.staging() as staging:
        with staging.new_file("0") as file:
            file.write_bytes(b"evil")
        for act in (
            lambda: staging.place("0", path),
            lambda: staging.place_link(path, "x"),
            lambda: extraction.create(path),
            lambda: extraction.create_anew(path),
            lambda: extraction.make_folder(path),
            lambda: extraction.make_link(path, "x"),
        ):
            with pytest.raises(PathObstructed):
                act()
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.slow
def test_a_folder_that_is_swapped_for_a_link_all_the_time_is_not_passed(tmp_path: Path) -> None:
    """As another process of the computer may, while a pull goes on."""
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (target / "a").mkdir(parents=True)
    over = threading.Event()

    def swap() -> None:
        aside = target / "aside"
        while not over.is_set():
            try:
                (target / "a").rename(aside)
                (target / "a").symlink_to(outside)
                (target / "a").unlink()
                aside.rename(target / "a")
            except OSError:
                for path in (aside, target / "a"):
                    if path.is_symlink():
                        path.unlink(missing_ok=True)

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        with Extraction(target) as extraction:
            for number in range(2000):
                try:
                    extraction.write(f"a/{number}", b"evil")
                except (PathObstructed, OSError):
                    continue
    finally:
        over.set()
        racer.join()
    assert not list(outside.iterdir())


def test_staged_files_that_are_swapped_are_not_taken(tmp_path: Path) -> None:
    with Extraction(tmp_path / "target") as extraction, extraction.staging(".staging-") as staging:
        with staging.new_file("0") as file:
            (made,) = (tmp_path / "target").glob(".staging-*/0")
            made.unlink()
            made.symlink_to(tmp_path / "outside")
            file.write_bytes(b"pulled")
        with pytest.raises(OSError, match=r"."):
            staging.place("0", "model")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


# ── The commands and the node ─────────────────────────────────────────────────────────────────────────────────────────


def test_outputs_do_not_go_through_links_of_an_earlier_pull(store: MemoryStore, home: Path) -> None:
    target = home / "work/pulled"
    (target / "up").symlink_to("../..")
    store.put(f"{keys.outputs(JOB, 1)}up/.ssh/{KEYS}", b"the attacker's")
    path = f"up/.ssh/{KEYS}"
    pull_outputs(store, (OutputFile(path, f"{keys.outputs(JOB, 1)}{path}", 14, 1),), target)
    assert (home / ".ssh" / KEYS).read_text() == "mine"


def test_a_restore_writes_below_its_folder_alone(store: MemoryStore, home: Path) -> None:
    folder = home / "work/checkpoints"
    folder.mkdir()
    (folder / "x").symlink_to(home / ".ssh")
    commit(store, 1, {f"x/{KEYS}": "the attacker's"})
    assert restore_newest(store, JOB, folder) is not None
    assert (home / ".ssh" / KEYS).read_text() == "mine"
    assert content(folder) == {f"x/{KEYS}": b"the attacker's"}


def test_a_restore_moves_nothing_out_of_its_folder(store: MemoryStore, home: Path) -> None:
    """A training left links where the next restore puts what it replaces."""
    folder = home / "work/checkpoints"
    folder.mkdir()
    (folder / KEYS).write_text("the attacker's")
    (home / "work/.checkpoints.replaced").symlink_to(home / ".ssh")
    (folder / ".tmp-replaced").symlink_to(home / ".ssh")
    commit(store, 1, {KEYS: "saved"})
    try:
        restore_newest(store, JOB, folder)
    except OSError:
        pass  # Better none than one through a link.
    assert (home / ".ssh" / KEYS).read_text() == "mine"
    assert [path.name for path in (home / ".ssh").iterdir()] == [KEYS]


def test_an_import_of_another_job_writes_below_its_scratch_alone(store: MemoryStore, home: Path) -> None:
    commit(store, 1, {"model": "one"}, {"latest": "model"})
    key = import_checkpoint(store, "job-2", FromJob(JOB), scratch=home / "work")
    assert list_checkpoints(store, "job-2")[-1].key == key
    assert sorted(path.name for path in (home / "work").iterdir()) == ["pulled"]


class _Bucket:
    def get_part(self, meta: Meta, begin: int, end: int) -> memoryview:
        return memoryview(b"the attacker's"[begin:end])


@pytest.mark.parametrize("large", [False, True])
def test_inputs_do_not_go_through_links_that_a_training_left(
    home: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr("stoker.agent.inputs.cache.PART_BYTES", 5)
    meta = Meta(f"sub/{KEYS}", 14, datetime.now(timezone.utc), "etag")
    listing: Any = SimpleNamespace(bucket=_Bucket(), files=(meta,), url_digest="f" * 64, digest="d" * 64, size=14)
    listing.single = None
    kept = CacheEntry(home / "work/inputs", listing)
    assert not kept.acquire(lambda: None, lambda: None)
    kept.files.mkdir()
    (kept.files / "sub").symlink_to(home / ".ssh")
    InputDownload(kept, kept.missing(), lambda _: None).run(lambda: None)
    kept.release()
    assert (home / ".ssh" / KEYS).read_text() == "mine"
    assert (kept.files / "sub" / KEYS).read_bytes() == b"the attacker's"


def test_a_wheel_or_a_program_does_not_name_its_place(store: MemoryStore, tmp_path: Path) -> None:
    data = b"evil"
    digest = hashlib.sha256(data).hexdigest()
    store.put(keys.wheel(digest), data)
    wheel = Wheel(name="../../outside.whl", digest=digest, size=4)
    index = PackedWheels(store, (wheel,), tmp_path / "node/wheels", lambda call: call())
    with pytest.raises(StokerError):
        index.open()
    with pytest.raises(SetupFailed, match="is no digest"):
        fetch_program(store, {tool_name("uv"): "../../outside"}, "uv", tmp_path / "node/shelf")
    assert [path.name for path in tmp_path.iterdir()] == ["node"]
